"""A job's checkpoint storage that answers wrongly, or not at all, harms a worker process and not the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sinkoperator.commits.egress import Egress
from sinkoperator.commits.frames import Json
from sinkoperator.commits.nursery import Nursery
from sinkoperator.commits.settings import WorkerSettings
from sinkoperator.spills import JobSpill
from sinkoperator.world import World
from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from sinkruntime.kube import Api
from sinkruntime.ledger.spill_files import FILE_BYTES_MAX
from tests.unit.operator.commit_jobs import KEY, Cluster
from tests.unit.operator.commit_world import Stage, place
from tests.unit.operator.plan_world import raw_of

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request, and never answer."""
    await reader.read()
    writer.close()


async def excessive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whatever is asked for has more bytes than any payload."""
    await reader.readuntil(b"\r\n\r\n")
    said = f"Content-Length: {FILE_BYTES_MAX + 1}\r\nLast-Modified: Sat, 21 Nov 2026 08:00:00 GMT\r\n"
    writer.write(f"HTTP/1.1 200 OK\r\n{said}\r\n".encode())
    await writer.drain()
    writer.close()


def play(stage: Stage, tmp_path: Path, answer: Answer, act: Callable[[JobSpill], Awaitable[None]]) -> None:
    """`act` on a storage at a server that answers so."""

    async def run(nursery: Nursery) -> None:
        server = await asyncio.start_server(answer, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        cluster = Cluster()
        keys = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "a-secret"}
        cluster.secret("keys", **keys, **{"fs.s3a.endpoint": f"http://127.0.0.1:{port}"})
        storage = {"location": "s3a://bucket/checkpoint", "optionsFrom": [{"secretRef": {"name": "keys"}}]}
        world: Any = SimpleNamespace(
            job=lambda key: {"spec": raw_of(checkpoint=storage)}, revisions=SimpleNamespace(of=lambda key: [])
        )
        async with place(tmp_path, nursery, egress=Egress.parse(["127.0.0.0/8"])) as made:
            spill = JobSpill(cast("Api", cluster), cast("World", world), KEY, made.pool, file_seconds=5.0)
            await act(spill)
            assert made.pool.workers == ()
        server.close()

    stage.run(run)


def storages_of(cluster: Cluster, *options_from: Json) -> list[Json]:
    """What a worker is given."""
    storage = {"location": "s3a://bucket/checkpoint", "optionsFrom": list(options_from)}
    world: Any = SimpleNamespace(
        job=lambda key: {"spec": raw_of(checkpoint=storage)}, revisions=SimpleNamespace(of=lambda key: [])
    )
    pool: Any = SimpleNamespace(settings=WorkerSettings())
    found: list[Json] = asyncio.run(JobSpill(cast("Api", cluster), world, KEY, pool)._opening())["storages"]
    return found


def test_options_are_what_the_driver_reads_from_its_mounted_files() -> None:
    cluster = Cluster()
    cluster.secret("keys", **{"fs.s3a.secret.key": "\ufeffa-secret\n"})
    cluster.put("ConfigMap", "plain", {"data": {"fs.s3a.endpoint": "http://store:9000\n"}})
    (storage,) = storages_of(cluster, {"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "plain"}})
    assert storage["options"] == {"fs.s3a.secret.key": "a-secret", "fs.s3a.endpoint": "http://store:9000"}


@pytest.mark.parametrize(("kind", "reason"), [("secretRef", "SecretNotFound"), ("configMapRef", "ConfigMapNotFound")])
def test_an_object_that_is_missing_has_a_reason_of_its_own(kind: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storages_of(Cluster(), {kind: {"name": "keys"}})
    assert caught.value.reason == reason


def test_a_storage_that_never_answers_is_given_up(stage: Stage, tmp_path: Path) -> None:
    async def act(spill: JobSpill) -> None:
        with pytest.raises(LedgerUnavailable, match="no answer within 5"):
            await spill.read("1-abc")

    play(stage, tmp_path, silent, act)


def test_a_file_that_no_payload_can_be_is_not_taken_in(stage: Stage, tmp_path: Path) -> None:
    async def act(spill: JobSpill) -> None:
        with pytest.raises(LedgerCorrupt, match="more than any can have"):
            await spill.read("1-abc")

    play(stage, tmp_path, excessive, act)
