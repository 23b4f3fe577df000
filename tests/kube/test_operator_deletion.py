"""The end of a job with a decided checkpoint that nobody commits: what each `deletionPolicy` does, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sinkoperator import names
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, NAMESPACE, POD, SINK_JOB, Api
from sinkruntime.ledger.change import change
from sinkruntime.protocol.events import ClaimEpoch, Event, NoteRecovered, RaiseToken
from sinkruntime.protocol.ledger import Authority, Ledger, Part
from tests.kube.operator_world import Kubelet, Looker, manifest
from tests.protocol.build import decision


async def with_a_pending_checkpoint(api: Api, looker: Looker, **spec: Any) -> str:
    """The job is applied, its driver has decided checkpoint 1; returns the ledger id."""
    await api.create(SINK_JOB, looker.namespace, manifest(**spec))
    pod = await looker.settle(lambda: looker.driver(1))
    await Kubelet(api, looker.namespace, names.driver_name("one", 1)).runs()
    revision = pod["metadata"]["labels"][names.REVISION_LABEL]
    made = decision(1, 1, {"lake": Part(rows=1)})
    decided = replace(made, record=replace(made.record, revision=revision))
    events: list[Event] = [
        ClaimEpoch(1, "driver-1"), RaiseToken(1, "nobody"), NoteRecovered(Authority.TOKEN, 1, 1, False), decided,
    ]  # fmt: skip
    store = looker.store()
    for event in events:
        await change(store, once(event), Environment.real(), 5.0)
    ledger = await looker.ledger()
    assert ledger is not None
    assert len(ledger.pending) == 1
    return ledger.ledger_id


def once(event: Event) -> Callable[[Ledger], Event | None]:
    """The event, and then nothing more."""
    left = [event]
    return lambda _: left.pop() if left else None


async def delete(api: Api, looker: Looker) -> None:
    """A person deletes the job, and its driver ends."""
    await api.delete(SINK_JOB, looker.namespace, "one")

    async def stopping() -> bool:
        pod = await looker.driver(1)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    await looker.settle(stopping)
    await api.delete(POD, looker.namespace, names.driver_name("one", 1), grace_seconds=0)


async def is_gone(api: Api, looker: Looker) -> bool:
    """Whether the SinkJob is."""
    return await api.get(SINK_JOB, looker.namespace, "one") is None


async def test_drain_waits_for_whoever_commits(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        await with_a_pending_checkpoint(api, looker, deletionPolicy="Drain")
        await delete(api, looker)
        await looker.look(times=5)

        assert (await looker.status())["phase"] == "Draining"
        assert (namespace, "one") in looker.told.running, "a coordinator is asked for"
        assert not await is_gone(api, looker)


async def test_abort_is_asked_of_the_coordinator(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        await with_a_pending_checkpoint(api, looker, deletionPolicy="Abort")
        await delete(api, looker)
        await looker.look(times=5)

        assert set(looker.told.aborts) == {1}
        assert not await is_gone(api, looker), "the coordinator has not recorded it yet"


async def test_an_orphaned_ledger_stays_and_is_taken_over_by_the_next_job_of_its_name(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        ledger_id = await with_a_pending_checkpoint(api, looker, deletionPolicy="Orphan")
        await delete(api, looker)
        await looker.settle(lambda: is_gone(api, looker))

        kept = await api.get(CONFIG_MAP, namespace, names.ledger_name("one"))
        assert kept is not None
        assert not kept["metadata"].get("finalizers")
        revisions, _ = await api.list(CONTROLLER_REVISION, namespace, labels=names.selector("one"))
        assert len(revisions) == 1, "the pending checkpoint's own"

        await api.create(SINK_JOB, namespace, manifest())
        await looker.settle(lambda: looker.driver(2))
        ledger = await looker.ledger()
        assert ledger is not None
        assert (ledger.ledger_id, ledger.epoch, len(ledger.pending)) == (ledger_id, 2, 1)


async def test_a_drain_that_takes_too_long_leaves_an_orphan_and_says_so(api: Api, namespace: str) -> None:
    async with Looker(api, namespace) as looker:
        await with_a_pending_checkpoint(api, looker, deletionPolicy="Drain", deletionTimeout="1s")
        await delete(api, looker)
        await looker.settle(lambda: is_gone(api, looker))

        assert "DrainTimedOut" in looker.told.events
        ledger = await looker.ledger()
        assert ledger is not None
        assert len(ledger.pending) == 1


async def test_a_job_that_is_let_go_by_hand_leaves_its_ledger(api: Api, namespace: str) -> None:
    """Somebody removes all finalizers: garbage collection takes what may go, and never the ledger."""
    async with Looker(api, namespace) as looker:
        await with_a_pending_checkpoint(api, looker)
        await api.patch(SINK_JOB, namespace, "one", {"metadata": {"finalizers": None}})
        await api.delete(SINK_JOB, namespace, "one")
        await looker.look(times=3)

        assert await is_gone(api, looker)
        assert (namespace, "one") not in looker.told.running
        ledger = await looker.ledger()
        assert ledger is not None
        assert len(ledger.pending) == 1


async def test_nothing_is_waited_for_once_the_namespace_is_deleted_too(api: Api, namespace: str) -> None:
    """Even where no look has anything to write: that the manifest is invalid means that no revision is kept again."""
    async with Looker(api, namespace) as looker:
        await with_a_pending_checkpoint(api, looker, deletionPolicy="Drain")
        unknown = [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/out", "nothing": "known"}}]
        await api.patch(SINK_JOB, namespace, "one", {"spec": {"sinks": unknown}})
        await delete(api, looker)
        await looker.look(times=5)
        assert (await looker.status())["phase"] == "Draining"

        await api.delete(NAMESPACE, "", namespace)
        await looker.settle(lambda: is_gone(api, looker))

        assert "Orphaned" in looker.told.events
