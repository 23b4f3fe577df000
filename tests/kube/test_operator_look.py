"""A look at a job on a real API server: what is made, in which order, and what is told."""

from __future__ import annotations

from sinkoperator import names
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
