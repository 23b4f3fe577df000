"""From a decision to a commit against a real API server: ledger, revision, secret and token as a cluster keeps them.

The test plays the driver; coordinators and workers are real, and so is the target, an S3 server.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from sinkoperator import names
from sinkoperator.commits.egress import Egress
from sinkoperator.commits.frames import Json
from sinkoperator.commits.manager import Charge, Key, Manager
from sinkruntime.api import Lineage, Sink, SinkIdentity
from sinkruntime.driver.staging import Written
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, SECRET, SERVICE_ACCOUNT, Api, Watch
from sinkruntime.ledger.change import change
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.payloads import pack, store_payloads
from sinkruntime.protocol.events import Decide, Event
from sinkruntime.protocol.ledger import Ledger, Part
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.models import SinkJobSpec
from tests.protocol.build import decision, part_of, running
from tests.servers.s3 import S3Server
from tests.sinks.harness import Row, stage
from tests.unit.operator.commit_world import Place, place, spec

LOOPBACK = Egress.parse(["127.0.0.0/8"])


@dataclass
class Job:
    """One job in the cluster, whose driver the test plays."""

    key: Key
    api: Api
    place: Place
    store: ConfigMapLedgerStore
    held: bool = True
    environment: Environment = field(default_factory=Environment.real)
    revision: str = ""

    def store_of(self, key: Key) -> ConfigMapLedgerStore:
        return self.store

    def holds(self, key: Key) -> bool:
        return self.held

    def observe(self, key: Key, ledger: Ledger) -> None:
        """Nobody looks."""

    def changed(self, key: Key) -> None:
        """Nobody waits."""

    async def apply(self, manifest: Json) -> Charge:
        """Keep the revision as the operator does, and make the charge of it."""
        read = SinkJobSpec.model_validate(manifest, by_alias=True, by_name=False)
        self.revision = revision_of(read)
        name = names.revision_name(self.key[1], self.revision)
        body = {"metadata": {"name": name}, "revision": 1, "data": {"spec": manifest}}
        await self.api.create(CONTROLLER_REVISION, self.key[0], body)
        return Charge(read, self.revision, f"{self.revision}/0/x")

    async def decide(self, number: int, items: Sequence[tuple[Lineage, Written]]) -> None:
        """As a driver does, on the ledger of this cluster."""
        payload = (await store_payloads(self.store, 1, {"a": pack(items)}))["a"]
        made = decision(number, 1, {"a": Part(payload, len(items))})
        event = replace(made, record=replace(made.record, revision=self.revision))
        await change(self.store, partial(_once, event=event), self.environment, 30.0)

    async def ledger(self) -> Ledger:
        stored = await self.store.load()
        assert stored is not None
        return stored.ledger

    async def until(self, condition: Callable[[Ledger], bool], seconds: float = 30.0) -> Ledger:
        deadline = time.monotonic() + seconds
        while not condition(ledger := await self.ledger()):
            assert time.monotonic() < deadline, f"it did not come to pass: {ledger.records}"
            await asyncio.sleep(0.02)
        return ledger

    async def secret(self, name: str, **values: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        await self.api.create(SECRET, self.key[0], {"metadata": {"name": name}, "data": data})


def _once(ledger: Ledger, event: Decide) -> Event | None:
    return None if ledger.decided >= event.record.number else event


@asynccontextmanager
async def job(api: Api, namespace: str, tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[Job, Manager]]:
    """A job with a ledger, and a manager that may coordinate it."""
    watch: Watch = api.watch(CONFIG_MAP, namespace)
    async with place(tmp_path, **changes) as there, watch:
        await watch.synced.wait()
        made = Job(
            (namespace, "flights"), api, there, ConfigMapLedgerStore(api, LedgerPlace(namespace, "flights"), watch)
        )
        await made.store.create(running(token=0))
        manager = Manager(api, there.pool, made, made.environment)
        try:
            yield made, manager
        finally:
            await manager.close(5.0)


def settled(ledger: Ledger) -> bool:
    """Everything that was decided is committed, cleaned and gone."""
    return ledger.decided > 0 and not ledger.records


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")


def staged(sink: Sink, checkpoint: int, *tasks: Sequence[Row]) -> list[tuple[Lineage, Written]]:
    """What the writers of a checkpoint have prepared, as it travels in a decision."""
    writer = sink.committable_serializer
    found = stage(sink, checkpoint, *tasks).present()
    return [(at, Written(writer.version, writer.serialize(committable))) for at, committable in found]


def rows_in(server: S3Server, bucket: str) -> list[int]:
    """The ids of all rows that a reader of the bucket sees."""
    with closing(server.client()) as client:
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix="lake/").get("Contents", [])]
        visible = [key for key in keys if not any(part.startswith(("_", ".")) for part in key.split("/"))]
        read = [client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in visible]
    tables = [pyarrow.parquet.read_table(io.BytesIO(data), columns=["id"]) for data in read]
    return sorted(int(str(number)) for table in tables for number in table["id"].to_pylist())


@pytest.mark.integration
async def test_files_on_s3_are_committed_with_keys_from_a_secret_that_comes_late(
    api: Api, namespace: str, tmp_path: Path, s3_server: S3Server, bucket: str
) -> None:
    storage = {"endpoint": s3_server.endpoint, "region": s3_server.region, "pathStyle": True}
    options = {"path": f"s3://{bucket}/lake", "storage": storage}
    keys = {"accessKey": s3_server.access_key, "secretKey": s3_server.secret_key}
    sink = FileSink(
        Options.model_validate({**options, "storage": storage | keys}),
        SinkIdentity("ledger-1", "a", f"{namespace}/flights"),
    )
    manifest: Json = {
        "source": {"format": "rate"},
        "commit": {"retry": {"initialBackoff": "50ms", "maxBackoff": "200ms"}},
        "sinks": [
            {"name": "a", "type": "file", "options": options, "optionsFrom": [{"secretRef": {"name": "s3-keys"}}]}
        ],
    }
    async with job(api, namespace, tmp_path, egress=LOOPBACK) as (made, manager):
        manager.run(made.key, await made.apply(manifest))
        await made.decide(1, await asyncio.to_thread(staged, sink, 1, [(1, "a"), (2, "b")], [(3, "c")]))
        ledger = await made.until(lambda ledger: part_of(ledger, 1, "a").reason == "SecretNotFound")
        assert namespace in part_of(ledger, 1, "a").message
        await made.secret("s3-keys", **{f"storage.{name}": value for name, value in keys.items()})
        await made.until(settled)
        for number in range(2, 5):
            await made.decide(number, await asyncio.to_thread(staged, sink, number, [(10 * number, "x")]))
        ledger = await made.until(settled)
        assert ledger.sinks["a"].committed == 4
    assert await asyncio.to_thread(rows_in, s3_server, bucket) == [1, 2, 3, 20, 30, 40]


async def test_a_worker_gets_the_token_of_the_jobs_own_service_account(
    api: Api, namespace: str, tmp_path: Path
) -> None:
    notes = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/job", "eks.amazonaws.com/audience": "lake"}
    await api.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "flights-job", "annotations": notes}})
    async with job(api, namespace, tmp_path) as (made, manager):
        made.place.behave("commit", "once open token")
        manifest = {**spec(made.place.folder), "serviceAccountName": "flights-job"}
        manager.run(made.key, await made.apply(manifest))
        await made.decide(1, [(Lineage(1, 1, 0, 1, 0), Written(1, b'{"n":1}'))])
        await made.until(settled)
        found = json.loads((made.place.folder / "token.json").read_text())
    claims = found["token"].split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert said["sub"] == f"system:serviceaccount:{namespace}:flights-job"
    assert said["aud"] == ["lake"]
    assert found["mode"] == "0o600"


async def test_the_ledger_of_a_job_that_is_taken_over_is_finished_by_the_next_manager(
    api: Api, namespace: str, tmp_path: Path
) -> None:
    """The first one's worker hangs in a commit, then it is lost; the second one raises the token, probes, commits."""
    async with job(api, namespace, tmp_path) as (made, first):
        made.place.behave("committed", "once hang")
        charge = await made.apply(spec(made.place.folder))
        first.run(made.key, charge)
        await made.until(lambda ledger: first.begun(made.key))
        await made.decide(1, [(Lineage(1, 1, 0, 1, 0), Written(1, b'{"n":1}'))])
        await made.until(lambda ledger: bool(made.place.committed()))
        second = Manager(api, made.place.pool, made, made.environment)
        try:
            second.run(made.key, charge)
            ledger = await made.until(settled)
        finally:
            await second.close(5.0)
        assert ledger.token == 2
        assert ledger.sinks["a"].committed == 1
        assert len(made.place.calls("commit")) == 1
        assert len(made.place.calls("probe")) == 1
