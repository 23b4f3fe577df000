"""A look at a job on a real API server: what is made, in which order, and what is told."""

from __future__ import annotations

import pytest

from sinkoperator import names
from sinkoperator.world import Key
from sinkruntime.kube import ROLE, SINK_JOB, Api
from tests.kube.operator_world import Kubelet, Looker, manifest


async def test_a_new_job_gets_a_ledger_rights_and_a_driver(api: Api, namespace: str) -> None:
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:
        pod = await looker.settle(lambda: looker.driver(1))

        ledger = await looker.ledger()
        assert ledger is not None
        assert (ledger.epoch, ledger.claim) == (1, "")
        assert pod["metadata"]["labels"][names.EPOCH_LABEL] == "1"
        assert await api.get(ROLE, namespace, names.access_name("one")) is not None
        assert names.driver_name("one", 1) in await looker.config_maps()
        job = await api.get(SINK_JOB, namespace, "one")
        assert job is not None
        assert names.JOB_FINALIZER in job["metadata"]["finalizers"]
        assert job["status"]["observedGeneration"] == 1
        assert "DriverCreated" in looker.told.events


async def test_looking_again_makes_nothing_new(api: Api, namespace: str) -> None:
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:
        await looker.settle(lambda: looker.driver(1))
        await looker.look(times=5)
        before = dict(api.requests)
        await looker.look(times=5)

        writes = {key: count - before.get(key, 0) for key, count in api.requests.items() if key[0] in WRITES}
        assert {key: count for key, count in writes.items() if count} == {}
        assert [pod["metadata"]["name"] for pod in await looker.pods()] == [names.driver_name("one", 1)]


WRITES = ("create", "patch", "update", "delete")


async def test_a_driver_that_failed_is_followed_by_the_next_epoch(api: Api, namespace: str) -> None:
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:
        await looker.settle(lambda: looker.driver(1))
        await Kubelet(api, namespace, names.driver_name("one", 1)).runs()
        await Kubelet(api, namespace, names.driver_name("one", 1)).ends(1)

        await looker.settle(lambda: looker.driver(2))

        ledger = await looker.ledger()
        assert ledger is not None
        assert ledger.epoch == 2
        assert (await looker.status())["restarts"]["total"] == 1


@pytest.mark.parametrize("asked", range(7))
async def test_nothing_is_written_for_a_job_once_its_shard_is_another_replicas(
    api: Api, namespace: str, asked: int
) -> None:
    """The question is asked before each step; the shard is lost when it has been asked so often."""
    await api.create(SINK_JOB, namespace, manifest())
    async with Looker(api, namespace) as looker:
        asks = 0
        writes_at_loss: list[int] = []

        def writes() -> int:
            return sum(count for key, count in api.requests.items() if key[0] in WRITES)

        def begins(_: Key) -> bool:
            nonlocal asks
            asks += 1
            if asks <= asked:
                return True
            writes_at_loss.append(writes())
            return False

        looker.begins = begins
        await looker.look()
        assert writes_at_loss, "it is asked that often"
        assert writes() == writes_at_loss[0]
        assert await looker.look() is None, "a key that waited, or was backing off, gets no look"
        assert writes() == writes_at_loss[0]
