"""What a coordinator removes and when: losing attempts, payload objects, orphans, what older epochs left."""

import asyncio
import threading
import time
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.errors import ConfigurationError, LedgerUnavailable
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import ObjectName
from sinkruntime.protocol.events import RaiseEpoch
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, PartState
from tests.protocol.build import part_of
from tests.unit.coordinator.world import Said, World, play, settled


def held(ledger: Ledger) -> bool:
    return part_of(ledger, 1, "a").state is PartState.HELD


def refuse(operation: str, request: CommitRequest) -> Said:
    return Answer.REFUSED if operation == "commit" else None


def test_post_commit_failure_does_not_undo_commit() -> None:
    def broken(checkpoint: int) -> None:
        raise RuntimeError("no notification today")

    async def scene(world: World) -> None:
        world.sinks["a"].hook = broken
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(settled)
            assert ledger.sinks["a"].committed == 1

    assert play(scene).target.count("clean") == 1


def test_a_post_commit_that_hangs_is_bounded_and_cleaning_follows() -> None:
    go = threading.Event()

    async def scene(world: World) -> None:
        world.sinks["a"].hook = lambda checkpoint: assert_true(go.wait(5.0))
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)
            go.set()

    assert play(scene, settings=CommitSettings(timeout_seconds=0.05)).target.count("clean") == 1


def assert_true(value: bool) -> None:
    assert value


def test_a_hung_call_of_another_lane_never_lets_a_commit_pass_for_done() -> None:
    """The clean-up of checkpoint 1 hangs and drops the committers while a round on checkpoint 2 is under way."""
    go, hung = threading.Event(), threading.Event()
    rounds: list[int] = []

    def hook(checkpoint: int) -> None:
        if checkpoint == 1:
            hung.set()
            go.wait(5.0)

    async def scene(world: World) -> None:
        def pre_commit(committables: Any) -> Any:
            if committables[0][0].checkpoint == 2:
                rounds.append(2)
                while not world.target.count("clean"):  # it follows upon the hung call
                    time.sleep(0.002)
            return committables

        world.sinks["a"].hook = hook
        world.sinks["a"].pre_commit = pre_commit  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await asyncio.to_thread(hung.wait, 5.0)
            await asyncio.sleep(0.1)
            await world.decide(2)
            await world.until(settled)
            go.set()

    world = play(scene, settings=CommitSettings(timeout_seconds=0.2, backoff_first_seconds=0.001))
    assert world.target.visible == {("a", 1, 0), ("a", 2, 0)}
    assert rounds[0] == 2


def test_payloads_are_removed_after_cleaning_and_never_before() -> None:
    seen: list[tuple[bool, bool]] = []

    class Watching(MemoryLedgerStore):
        async def remove_object(self, name: ObjectName) -> None:
            stored = await self.load()
            assert stored is not None
            record = stored.ledger.record(1)
            assert record is not None
            seen.append((record.state is CheckpointState.SETTLED, world.target.count("clean") == 1))
            await super().remove_object(name)

    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, large=True)
            assert len(world.store.objects) == 1
            await world.until(settled)

    world = World(store=Watching())
    asyncio.run(scene(world))
    assert seen == [(True, True)]
    assert world.store.objects == {}


class Flaky(MemoryLedgerStore):
    """Payload objects cannot be read or removed a few times."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.removals = 2, 2

    async def get_object(self, name: ObjectName) -> bytes:
        self.reads -= 1
        if self.reads >= 0:
            raise LedgerUnavailable("no route")
        return await super().get_object(name)

    async def remove_object(self, name: ObjectName) -> None:
        self.removals -= 1
        if self.removals >= 0:
            raise LedgerUnavailable("no route")
        await super().remove_object(name)


def test_a_payload_store_that_is_away_for_a_while_is_tried_again() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, large=True)
            await world.until(settled)

    world = play(scene, store=Flaky())
    assert world.target.visible == {("a", 1, 0)}
    assert world.store.objects == {}


def test_a_payload_that_is_gone_is_held_as_corrupt() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.decide(1, large=True)
        world.store.objects.clear()
        async with world.working():
            ledger = await world.until(held)
            assert part_of(ledger, 1, "a").reason == "LedgerCorrupt"

    assert play(scene).target.of("commit") == []


def test_a_failing_clean_is_tried_again_until_it_works() -> None:
    async def scene(world: World) -> None:
        failures = [1, 2, 3]
        note = world.sinks["a"].create_committer

        def create() -> Any:
            committer = note()

            def clean(checkpoint: int, epoch: int) -> None:
                if failures:
                    failures.pop()
                    raise ConnectionError("busy")
                world.target.calls.append(("cleaned", "a", checkpoint, ()))

            committer.clean = clean  # type: ignore[union-attr, method-assign]
            return committer

        world.sinks["a"].create_committer = create  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    assert play(scene).target.count("cleaned") == 1


def test_recovery_runs_again_until_the_older_processes_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkruntime.coordinator.coordinator.RECOVER_AGAIN_SECONDS", 0.005)

    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.until(lambda ledger: world.target.count("recover") >= 3)
            assert Authority.TOKEN not in (await world.ledger()).closed
            world.older_gone = True
            await world.until(lambda ledger: ledger.closed.get(Authority.TOKEN) == 1)
            ran = world.target.count("recover")
            await asyncio.sleep(0.03)
            assert world.target.count("recover") == ran

    play(scene, older_gone=False)


def test_orphan_payload_objects_of_older_epochs_are_removed_and_no_others() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.store.put_object("1-orphan", b"")
        await world.store.put_object("1-orphan.x.tmp", b"")
        await world.store.put_object("2-running", b"")
        await world.store.put_object("3-future", b"")
        await world.store.put_object("strange", b"")
        async with world.working():
            await world.happen(lambda ledger: RaiseEpoch(2) if ledger.epoch == 1 else None)
            await world.until(lambda ledger: ledger.closed.get(Authority.TOKEN) == 2)
        assert sorted(world.store.objects) == ["2-running", "3-future", "strange"]

    play(scene)


def test_an_updated_payload_that_is_not_yet_on_record_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkruntime.coordinator.coordinator.RECOVER_AGAIN_SECONDS", 0.005)

    async def scene(world: World) -> None:
        world.target.say = refuse
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(held)
            await world.store.put_object("1-updated", b"as a round under way would put it")
            await world.happen(lambda ledger: RaiseEpoch(2) if ledger.epoch == 1 else None)
            ran = world.target.count("recover")
            await world.until(lambda ledger: world.target.count("recover") > ran + 1)
            assert "1-updated" in world.store.objects
            world.target.visible.add(("a", 1, 0))
            await world.until(lambda ledger: ledger.closed.get(Authority.TOKEN) == 2)
            assert "1-updated" not in world.store.objects

    play(scene)


class Locked(MemoryLedgerStore):
    """Payload objects cannot be removed: whoever holds their storage says that a Secret is missing."""

    async def remove_object(self, name: ObjectName) -> None:
        raise ConfigurationError("SecretNotFound", "there is no Secret `keys`")


def test_payloads_that_cannot_be_removed_end_no_tenure() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, large=True)
            await world.until(lambda ledger: ledger.records[0].state is CheckpointState.SETTLED)
            await asyncio.sleep(0.05)
            await world.decide(2)
            await world.until(lambda ledger: ledger.sinks["a"].committed == 2)

    world = play(scene, store=Locked())
    assert world.target.visible == {("a", 1, 0), ("a", 2, 0)}
    assert len(world.store.objects) == 1
