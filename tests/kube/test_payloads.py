"""Payload objects in ConfigMaps: chunks, torn writes, restored ledgers, and the largest in the checkpoint storage."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sinkruntime.environment import Environment
from sinkruntime.errors import AnswerLost, ConfigurationError, LedgerCorrupt, LedgerTooLarge, LedgerUnavailable
from sinkruntime.kube import CONFIG_MAP, Api, Object, Unavailable
from sinkruntime.ledger.change import patiently
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.configmap_payloads import CHUNK_BYTES_MAX, SPILL_BYTES_MIN
from sinkruntime.ledger.payloads import object_name
from sinkruntime.ledger.spill import Spill
from tests.kube.control_plane import ControlPlane
from tests.kube.test_watch import QUICK
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Toxiproxy
from tests.unit.ledger.contract import NEW

THREE_CHUNKS = 2 * CHUNK_BYTES_MAX + 7


def content(size: int) -> tuple[str, bytes]:
    data = os.urandom(size)
    return object_name(7, hashlib.sha256(data).hexdigest()), data


async def opened(api: Api, namespace: str, spill: Spill | None = None) -> ConfigMapLedgerStore:
    store = ConfigMapLedgerStore(api, LedgerPlace(namespace, "flights"), spill=spill)
    if await store.load() is None:
        await store.create(NEW)
    return store


async def chunks(api: Api, namespace: str) -> list[Object]:
    found, _ = await api.list(CONFIG_MAP, namespace, labels="app.kubernetes.io/component=payload")
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 1), (1, 1), (CHUNK_BYTES_MAX, 1), (CHUNK_BYTES_MAX + 1, 2), (THREE_CHUNKS, 3), (SPILL_BYTES_MIN - 1, 5)],
)
async def test_a_payload_comes_back_whatever_its_size(api: Api, namespace: str, size: int, count: int) -> None:
    store = await opened(api, namespace)
    name, data = content(size)
    await store.put_object(name, data)
    found = await chunks(api, namespace)
    assert [one["metadata"]["name"] for one in found] == [f"flights-payload-{name}-{index}" for index in range(count)]
    ledger = await api.get(CONFIG_MAP, namespace, "flights-ledger")
    assert ledger is not None
    for one in found:
        assert one["immutable"]
        assert one["metadata"]["ownerReferences"][0]["uid"] == ledger["metadata"]["uid"]
        assert one["metadata"]["labels"]["sinkjob.io/job"] == "flights"
    assert await store.get_object(name) == data
    assert await store.list_objects() == [name]
    await store.remove_object(name)
    assert await chunks(api, namespace) == []


async def test_one_chunk_costs_one_write(api: Api, namespace: str) -> None:
    store = await opened(api, namespace)
    name, data = content(100_000)
    before = api.requests.copy()
    await store.put_object(name, data)
    assert dict(api.requests - before) == {("create", "ConfigMap", "200"): 1}


async def test_the_same_put_again_changes_nothing_and_another_content_is_refused(api: Api, namespace: str) -> None:
    store = await opened(api, namespace)
    name, data = content(THREE_CHUNKS)
    await store.put_object(name, data)
    before = await chunks(api, namespace)
    await store.put_object(name, data)
    assert await chunks(api, namespace) == before
    with pytest.raises(LedgerCorrupt, match="with another content"):
        await store.put_object(name, data[:-1] + b"x")
    assert await store.get_object(name) == data


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Api, int], None]:
    """Lets so many creates of ConfigMaps pass, and then none: as a process does that dies there."""

    def install(api: Api, passing: int) -> None:
        whole, left = api.create, [passing]

        async def create(kind: object, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
            if left[0] == 0:
                raise Unavailable("the process is gone")
            left[0] -= 1
            return await whole(CONFIG_MAP, namespace, body, dry_run=dry_run)

        monkeypatch.setattr(api, "create", create)

    return install


@pytest.mark.parametrize("passing", [0, 1, 2])
async def test_a_torn_put_is_seen_and_completed_by_the_next(
    api: Api, namespace: str, breaks: Callable[[Api, int], None], passing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(api, namespace)
    name, data = content(THREE_CHUNKS)
    breaks(api, passing)
    with pytest.raises(LedgerUnavailable, match="the process is gone"):
        await store.put_object(name, data)
    monkeypatch.undo()
    assert await store.list_objects() == ([name] if passing else [])
    with pytest.raises(LedgerCorrupt, match="missing or torn"):
        await store.get_object(name)
    again = await opened(api, namespace)
    await again.put_object(name, data)
    assert await again.get_object(name) == data


async def test_a_torn_put_can_be_removed(
    api: Api, namespace: str, breaks: Callable[[Api, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(api, namespace)
    name, data = content(THREE_CHUNKS)
    breaks(api, 2)
    with pytest.raises(LedgerUnavailable):
        await store.put_object(name, data)
    monkeypatch.undo()
    await store.remove_object(name)
    assert await chunks(api, namespace) == []
    await store.remove_object(name)


async def test_pieces_of_another_cut_are_overwritten(api: Api, namespace: str) -> None:
    """A release with other chunks died within its put."""
    store = await opened(api, namespace)
    name, data = content(THREE_CHUNKS)
    await store.put_object(name, data)
    first, second, third = await chunks(api, namespace)
    for one in (first, second):
        await api.delete(CONFIG_MAP, namespace, one["metadata"]["name"])
    metadata = {key: second["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    await api.create(CONFIG_MAP, namespace, {"metadata": metadata, "binaryData": third["binaryData"]})
    with pytest.raises(LedgerCorrupt, match="missing or torn"):
        await store.get_object(name)
    await store.put_object(name, data)
    assert await store.get_object(name) == data


async def test_a_chunk_that_is_gone_or_changed_by_hand_is_corrupt(api: Api, namespace: str) -> None:
    store = await opened(api, namespace)
    name, data = content(THREE_CHUNKS)
    await store.put_object(name, data)
    _, second, _ = await chunks(api, namespace)
    await api.delete(CONFIG_MAP, namespace, second["metadata"]["name"])
    with pytest.raises(LedgerCorrupt, match="lacks chunk 1 of 3") as caught:
        await store.get_object(name)
    assert "CommittableLost" in caught.value.advice
    metadata = {"name": second["metadata"]["name"], "labels": second["metadata"]["labels"]}
    await api.create(CONFIG_MAP, namespace, {"metadata": metadata, "binaryData": {"payload": "AAAA"}})
    with pytest.raises(LedgerCorrupt, match="does not have its digest"):
        await store.get_object(name)


async def test_a_restored_ledger_takes_the_old_payloads_over(api: Api, namespace: str) -> None:
    """Their old owner is gone: to the cluster they are garbage."""
    store = await opened(api, namespace)
    name, data = content(10)
    await store.put_object(name, data)
    orphaned = {"metadata": {"ownerReferences": None}}
    (chunk,) = await chunks(api, namespace)
    await api.patch(CONFIG_MAP, namespace, chunk["metadata"]["name"], orphaned)
    await store.put_object(name, data)
    (chunk,) = await chunks(api, namespace)
    ledger = await api.get(CONFIG_MAP, namespace, "flights-ledger")
    assert ledger is not None
    assert [owner["uid"] for owner in chunk["metadata"]["ownerReferences"]] == [ledger["metadata"]["uid"]]


async def test_an_api_server_that_is_away_or_loses_answers_is_told_apart(
    api: Api, namespace: str, toxiproxy: Toxiproxy, control_plane: ControlPlane
) -> None:
    await opened(api, namespace)
    name, data = content(10)
    with toxiproxy.proxy(control_plane.address) as proxy:
        kubeconfig = control_plane.kubeconfig_for(proxy.listen, name="proxied")
        async with await Api.connect(replace(QUICK, kubeconfig=str(kubeconfig))) as proxied:
            store = await opened(proxied, namespace)
            toxic = proxy.add_toxic("limit_data", bytes=0)
            with pytest.raises(AnswerLost):
                await store.put_object(name, data)
            proxy.remove_toxic(toxic)  # which may cut the next connection, too
            await patiently(lambda: store.put_object(name, data), "it is not there", Environment.real(), 20.0)
            assert await store.get_object(name) == data
            proxy.disable()
            for call in (
                lambda: store.get_object(name),  # reads notice that the open connection is cut
                store.list_objects,
                lambda: store.remove_object(name),
                lambda: store.put_object(name, data),
            ):
                with pytest.raises(LedgerUnavailable):
                    await call()


async def test_without_a_ledger_there_is_no_owner(api: Api, namespace: str) -> None:
    store = ConfigMapLedgerStore(api, LedgerPlace(namespace, "flights"))
    with pytest.raises(LedgerCorrupt, match="is gone"):
        await store.put_object("1-aa", b"x")
    elsewhere = ConfigMapLedgerStore(api, LedgerPlace("nowhere-at-all", "flights"))
    with pytest.raises(LedgerCorrupt):
        await elsewhere.put_object("1-aa", b"x")


@pytest.fixture
def s3_spill(s3_server: S3Server, namespace: str) -> Spill:
    bucket = s3_server.make_bucket(namespace)
    options = {
        "spark.hadoop.fs.s3a.access.key": s3_server.access_key,
        "fs.s3a.secret.key": s3_server.secret_key,
        "fs.s3a.endpoint": s3_server.endpoint,
        "fs.s3a.path.style.access": "true",
    }
    return Spill(f"s3a://{bucket}/checkpoints/flights/", options, own=False)


async def test_a_very_large_one_lies_in_the_checkpoint_storage(
    api: Api, namespace: str, s3_spill: Spill, s3_server: S3Server
) -> None:
    store = await opened(api, namespace, s3_spill)
    name, data = content(SPILL_BYTES_MIN)
    await store.put_object(name, data)
    await store.put_object(name, data)
    file = s3_server.data_dir / namespace / "checkpoints/flights/_sinkjob/payloads" / name
    assert file.read_bytes() == data
    assert await store.get_object(name) == data
    assert await store.list_objects() == [name]
    file.write_bytes(data[:-1])
    with pytest.raises(LedgerCorrupt, match="digest"):
        await store.get_object(name)
    with pytest.raises(LedgerCorrupt, match="not known here"):
        await (await opened(api, namespace)).get_object(name)
    await store.remove_object(name)
    assert not file.exists()
    with pytest.raises(LedgerCorrupt, match="missing or torn"):
        await store.get_object(name)


async def test_a_spill_that_died_before_its_file_is_seen_and_removed(
    api: Api, namespace: str, s3_spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(api, namespace, s3_spill)
    name, data = content(SPILL_BYTES_MIN)

    async def die(name: str, data: bytes) -> None:
        raise LedgerUnavailable("the process is gone")

    monkeypatch.setattr(s3_spill, "write", die)
    with pytest.raises(LedgerUnavailable):
        await store.put_object(name, data)
    monkeypatch.undo()
    assert await store.list_objects() == [name]
    with pytest.raises(LedgerCorrupt, match="is missing in s3a://"):
        await store.get_object(name)
    await store.put_object(name, data)
    assert await store.get_object(name) == data
    await store.remove_object(name)
    assert await store.list_objects() == []


async def test_a_storage_that_cannot_be_reached_is_told_before_anything_is_decided(
    api: Api, namespace: str, tmp_path: Path, s3_server: S3Server
) -> None:
    name, data = content(SPILL_BYTES_MIN)
    with pytest.raises(LedgerTooLarge, match="no checkpoint storage"):
        await (await opened(api, namespace)).put_object(name, data)
    with pytest.raises(ConfigurationError, match="path of the driver's machine"):
        await (await opened(api, namespace, Spill(str(tmp_path), {}, own=False))).put_object(name, data)
    wrong = {"fs.s3a.access.key": "no", "fs.s3a.secret.key": "no", "fs.s3a.endpoint": s3_server.endpoint}
    with pytest.raises(LedgerUnavailable, match="cannot be written to s3a://"):
        await (await opened(api, namespace, Spill(f"s3a://{namespace}/a", wrong, own=False))).put_object(name, data)
