"""The operator dies before or after each of its writes, or their answers are lost: the job comes out the same.

One life of a job is played, from its creation over a failed driver, a suspension and an edit to its deletion, again and
again with another write going wrong. Whoever looks next starts with empty caches, as a process that was started again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sinkoperator import names
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.environment import Environment
from sinkruntime.errors import SinkjobError
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, POD, SINK_JOB, Api
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.protocol.ledger import Authority
from tests.kube.faults import Died, Fault, Faults
from tests.kube.operator_world import WAIT_SECONDS, Kubelet, Looker, manifest

#: Of the life that is played: more writes than it has, seen in a life without a fault.
WRITES_MAX = 44


class Life:
    """A job's life, with an operator that is started again whenever it dies."""

    def __init__(self, api: Api, namespace: str, faults: Faults) -> None:
        self.api = api
        self.namespace = namespace
        self.faults = faults
        self.pods: dict[str, set[str]] = {}  # uids by name: no driver pod is ever made twice
        self.deaths = 0
        self.looker = Looker(faults.wrap(api), namespace)

    async def until(self, done: Callable[[], Awaitable[Any]]) -> Any:
        """Look until it is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := await done()):
            assert time.monotonic() < deadline, f"never came: {await self.looker.status()} {self.faults.writes}"
            try:
                await self.looker.look()
            except Died:
                self.deaths += 1
                await self.looker.__aexit__()
                self.looker = Looker(self.faults.wrap(self.api), self.namespace)
                await self.looker.__aenter__()
            except SinkjobError:
                await asyncio.sleep(0.01)  # the work queue's backoff
            await self.check()
        return found

    async def check(self) -> None:
        """What must hold at every instant."""
        pods, _ = await self.api.list(POD, self.namespace, labels=names.selector("one"))
        alive = [pod for pod in pods if pod["status"]["phase"] not in ("Failed", "Succeeded")]
        assert len(alive) <= 1, [pod["metadata"]["name"] for pod in alive]
        ledger = await self.looker.ledger()
        for pod in pods:
            self.pods.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])
            assert ledger is not None
            assert ledger.epoch >= int(pod["metadata"]["labels"][names.EPOCH_LABEL])

    async def edit(self, **spec: Any) -> None:
        """As a person does."""
        await self.api.patch(SINK_JOB, self.namespace, "one", {"spec": spec})

    async def phase(self, *wanted: str) -> bool:
        """Whether the status says so."""
        return (await self.looker.status()).get("phase") in wanted

    async def claim(self, epoch: int) -> None:
        """The driver's first act."""
        store = ConfigMapLedgerStore(self.api, LedgerPlace(self.namespace, "one"))
        settings = DriverSettings(
            epoch=epoch, claimant=f"test {epoch}", revision="r", authority={"lake": Authority.TOKEN},
            max_pending=4, commit_timeout_seconds=60.0, patience_seconds=5.0,
        )  # fmt: skip
        await Driver(store, settings, Environment.real()).claim()

    async def runs(self, epoch: int) -> Kubelet:
        """A driver starts and claims."""
        await self.until(lambda: self.looker.driver(epoch))
        kubelet = Kubelet(self.api, self.namespace, names.driver_name("one", epoch))
        await kubelet.runs()
        await self.claim(epoch)
        await self.until(lambda: self.phase("Running"))
        return kubelet

    async def stops(self, epoch: int) -> None:
        """The pod that is being deleted ends, and its kubelet lets it go."""
        name = names.driver_name("one", epoch)

        async def deleting() -> bool:
            pod = await self.looker.driver(epoch)
            return pod is None or "deletionTimestamp" in pod["metadata"]

        await self.until(deleting)
        await self.api.delete(POD, self.namespace, name, grace_seconds=0)


async def play(api: Api, namespace: str, faults: Faults) -> Life:
    """The whole life."""
    await api.create(SINK_JOB, namespace, manifest())
    life = Life(api, namespace, faults)
    await life.looker.__aenter__()
    try:
        first = await life.runs(1)
        await first.ends(1, message='{"reason": "TargetDown", "message": "it was down"}')
        await life.runs(2)
        await life.edit(suspend=True)
        await life.stops(2)
        await life.until(lambda: life.phase("Suspended"))
        await life.edit(suspend=False)
        await life.runs(3)
        await life.edit(sparkConf={"spark.some.setting": "1"})
        await life.stops(3)
        await life.runs(4)
        status = await life.looker.status()
        await api.delete(SINK_JOB, namespace, "one")
        await life.stops(4)
        await life.until(lambda: gone(api, namespace))
    finally:
        await life.looker.__aexit__()
    assert status["restarts"]["total"] == 1
    assert status["epoch"] == 4
    assert all(len(uids) == 1 for uids in life.pods.values()), life.pods
    assert set(life.pods) == {names.driver_name("one", epoch) for epoch in (1, 2, 3, 4)}
    return life


async def gone(api: Api, namespace: str) -> bool:
    """Whether the job has gone, and what it owned can go: nothing of it holds a finalizer."""
    if await api.get(SINK_JOB, namespace, "one") is not None:
        return False
    left, _ = await api.list(CONFIG_MAP, namespace, labels=names.selector("one"))
    assert all(not body["metadata"].get("finalizers") for body in left)
    assert names.ledger_name("one") not in [body["metadata"]["name"] for body in left]
    revisions, _ = await api.list(CONTROLLER_REVISION, namespace, labels=names.selector("one"))
    assert revisions == []
    return True


async def test_a_life_without_a_fault(api: Api, namespace: str) -> None:
    faults = Faults()
    await play(api, namespace, faults)

    assert 20 < len(faults.writes) <= WRITES_MAX


def combinations() -> Iterator[Any]:
    """Each write with each fault; one fault a write, in turn, unless all are asked for."""
    for at in range(1, WRITES_MAX + 1):
        for index, fault in enumerate(Fault):
            usual = index == at % len(Fault)
            marks = [pytest.mark.slow] if usual else [pytest.mark.slow, pytest.mark.exhaustive]
            yield pytest.param(at, fault, marks=marks, id=f"{at}-{fault.value}")


@pytest.mark.parametrize(("at", "fault"), list(combinations()))
async def test_a_write_that_goes_wrong_changes_nothing(api: Api, namespace: str, at: int, fault: Fault) -> None:
    faults = Faults(at, fault)
    life = await play(api, namespace, faults)

    if len(faults.writes) >= at:
        assert life.deaths == (fault in (Fault.DIES_BEFORE, Fault.DIES_AFTER))
