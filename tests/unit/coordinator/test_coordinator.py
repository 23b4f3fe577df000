"""The coordinator's loop: tenures, clean-ups, recovery, aborts, a person's word, metrics, logs, an orderly end."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.coordinator.runner import ABANDONED_MAX, OutOfTime, ThreadRunner, TooManyAbandoned
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.errors import Fenced, LedgerUnavailable
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import ObjectName
from sinkruntime.protocol.events import BeginAbort, RaiseEpoch, RaiseToken
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, PartState
from tests.protocol.build import EPOCH, part_of
from tests.unit.coordinator.world import FAST, Said, World, play, settled


def held(ledger: Ledger) -> bool:
    return part_of(ledger, 1, "a").state is PartState.HELD


def refuse(operation: str, request: CommitRequest) -> Said:
    return Answer.REFUSED if operation == "commit" else None


# --- tenures


def test_a_coordinator_whose_token_is_passed_is_fenced_and_starts_nothing_more() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        task = asyncio.create_task(world.coordinator().run())
        await world.until(lambda ledger: ledger.token == 1)
        await world.happen(lambda ledger: RaiseToken(2, "other") if ledger.token == 1 else None)
        with pytest.raises(Fenced, match="the ledger is at 2"):
            await asyncio.wait_for(task, 5.0)

    assert play(scene).target.of("commit", "probe") == []


def test_a_fenced_coordinators_outcome_is_not_persisted() -> None:
    going, go = threading.Event(), threading.Event()

    def say(operation: str, request: CommitRequest) -> Said:
        going.set()
        go.wait(5.0)
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        task = asyncio.create_task(world.coordinator().run())
        await world.until(lambda ledger: ledger.token == 1)
        await world.decide(1)
        await asyncio.to_thread(going.wait, 5.0)
        await world.happen(lambda ledger: RaiseToken(2, "other") if ledger.token == 1 else None)
        go.set()
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 5.0)
        assert part_of(await world.ledger(), 1, "a").state is PartState.IN_DOUBT

    play(scene)


def test_a_token_whose_answer_was_lost_is_not_raised_twice() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.happen(lambda ledger: RaiseToken(1, "coordinator-1") if ledger.token == 0 else None)
        async with world.working():
            assert (await world.ledger()).token == 1

    play(scene)


def test_under_the_epoch_only_the_drivers_sinks_are_committed() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(settled)
            assert (ledger.token, ledger.closed) == (0, {EPOCH: 1})

    assert play(scene, authority=Authority.EPOCH).target.visible == {("a", 1, 0)}


def test_a_coordinator_of_an_older_epoch_is_fenced() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.happen(lambda ledger: RaiseEpoch(2) if ledger.epoch == 1 else None)
        with pytest.raises(Fenced):
            await world.coordinator().run()

    play(scene, authority=Authority.EPOCH)


def test_stop_waits_for_what_runs_and_reports_it() -> None:
    going, go = threading.Event(), threading.Event()

    def say(operation: str, request: CommitRequest) -> Said:
        going.set()
        go.wait(5.0)
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        coordinator = world.coordinator()
        task = asyncio.create_task(coordinator.run())
        await world.until(lambda ledger: ledger.token == 1)
        await world.decide(1)
        await world.decide(2)
        await asyncio.to_thread(going.wait, 5.0)
        coordinator.stop()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        await asyncio.wait_for(task, 5.0)
        ledger = await world.ledger()
        assert ledger.sinks["a"].committed == 1

    world = play(scene)
    assert world.target.visible == {("a", 1, 0)}
    assert world.target.count("close") == 1


# --- clean-ups and payloads


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
    """While checkpoint 1 is cleaned (and hangs), checkpoint 2 is committed with the same committers."""
    go, hung = threading.Event(), threading.Event()

    def hook(checkpoint: int) -> None:
        if checkpoint == 1:
            hung.set()
            go.wait(5.0)

    def pre_commit(committables: Any) -> Any:
        if committables[0][0].checkpoint == 2:
            hung.wait(5.0)
            time.sleep(0.08)  # the other lane's call runs out of its time now, and the handle is dropped
        return committables

    async def scene(world: World) -> None:
        world.sinks["a"].hook = hook
        world.sinks["a"].pre_commit = pre_commit  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.decide(2)
            await world.until(settled)
            go.set()

    world = play(scene, settings=CommitSettings(timeout_seconds=0.1, backoff_first_seconds=0.001))
    assert world.target.visible == {("a", 1, 0), ("a", 2, 0)}


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


# --- recovery


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


# --- aborts and a person's word


def test_an_abort_fences_discards_and_cleans() -> None:
    async def scene(world: World) -> None:
        world.target.say = refuse
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.decide(2)
            await world.until(held)
            token = (await world.ledger()).token
            await world.happen(lambda ledger: None if ledger.aborts else _abort(ledger, token))
            ledger = await world.until(settled)
            assert [(abort.first, abort.last, abort.who) for abort in ledger.aborts] == [(1, 2, "ann")]

    world = play(scene)
    assert [call[2] for call in world.target.of("fence")] == [2, 1], "newest first"
    assert sorted(call[2] for call in world.target.of("abort")) == [1, 2]
    assert world.target.visible == set()


def _abort(ledger: Ledger, token: int) -> BeginAbort | None:
    aborting = any(record.state is CheckpointState.ABORTING for record in ledger.records)
    return None if aborting else BeginAbort(token, 1, "ann", "wrong table")


def test_a_part_that_landed_is_not_aborted() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda op, request: Answer.REFUSED if op == "commit" else None
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(held)
            world.target.say = lambda op, request: Answer.UNKNOWN if op == "probe" and not late else None
            late: list[int] = []
            token = (await world.ledger()).token
            await world.happen(lambda ledger: _abort(ledger, token))
            world.target.visible.add(("a", 1, 0))
            late.append(1)
            ledger = await world.until(settled)
            assert (ledger.aborts, ledger.sinks["a"].committed) == ((), 1)

    play(scene)


def test_a_sink_that_cannot_fence_is_never_aborted() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda op, request: {"commit": Answer.REFUSED, "fence": Answer.UNKNOWN}.get(op)
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(held)
            token = (await world.ledger()).token
            await world.happen(lambda ledger: _abort(ledger, token))
            await world.until(lambda ledger: world.target.count("fence") >= 3)
            assert (await world.ledger()).aborts == ()

    assert play(scene).target.of("abort") == []


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        (Wishes(retry_held=True), PartState.COMMITTED),
        (Wishes(nonce=1, accept=frozenset({"CommittableLost"})), PartState.GIVEN_UP),
    ],
)
def test_a_new_tenure_grants_a_persons_word(wishes: Wishes, expected: PartState) -> None:
    def lost(operation: str, sink: str, requests: Any) -> None:
        for request in requests:
            request.reply(Answer.REFUSED if operation == "commit" else Answer.ABSENT, "CommittableLost", "gone")

    seen: list[PartState] = []

    def observe(ledger: Ledger) -> None:
        record = ledger.record(1)
        if record is not None:
            seen.append(record.parts["a"].state)

    async def scene(world: World) -> None:
        call, world.target.call = world.target.call, lost  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(held)
        if wishes.retry_held:
            world.target.call = call  # type: ignore[method-assign]
        world.services["observe"] = observe
        async with world.working(wishes):
            await world.until(settled)
        assert expected in seen

    play(scene)


# --- what is told


def test_the_counters_tell_attempts_successes_failures_and_what_is_pending() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.RETRY_LATER if operation == "commit" and request.retries < 2 else None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)
            world.target.say = refuse
            await world.decide(2)
            await world.until(lambda ledger: part_of(ledger, 2, "a").state is PartState.HELD)
            await world.until(lambda ledger: world.metrics.get("held") == 1)

    metrics = play(scene).metrics
    assert (metrics.get("commit_attempts", "a"), metrics.get("commit_successes", "a")) == (4, 1)
    assert metrics.get("commit_failures", "a") == 3
    assert metrics.get("pending") == 1
    assert abs(metrics.get("last_commit_seconds", "a") - time.time()) < 60


def test_each_round_is_one_structured_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.RETRY_LATER if operation == "commit" and request.retries == 0 else None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    with caplog.at_level(logging.INFO):
        play(scene)
    told = [record.__dict__["sinkjob"] for record in caplog.records if "sinkjob" in record.__dict__]
    common = {"checkpoint": 1, "epoch": 1, "sink": "a"}
    assert told == [
        {**common, "attempt": 0, "outcome": "progress", "reason": "Said"},
        {**common, "attempt": 1, "outcome": "committed", "reason": ""},
        {**common, "attempt": 0, "outcome": "cleaned", "reason": ""},
    ]


def test_backoff_grows_up_to_a_bound_and_is_jittered() -> None:
    settings = CommitSettings(backoff_first_seconds=0.2, backoff_max_seconds=30.0)
    assert [settings.backoff_after(n, 0.0) for n in (1, 2, 3, 8, 9, 500)] == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    assert settings.backoff_after(2, 0.999) == pytest.approx(0.2, rel=0.01)


def test_the_time_limit_doubles_per_attempt_up_to_a_bound() -> None:
    settings = CommitSettings(timeout_seconds=60.0, timeout_max_seconds=1800.0)
    assert [settings.timeout_of(n) for n in (0, 1, 4, 5, 900)] == [60.0, 120.0, 960.0, 1800.0, 1800.0]


# --- the runner


def test_a_hung_call_ends_in_time_and_too_many_stop_new_ones() -> None:
    go = threading.Event()

    async def scene() -> None:
        runner = ThreadRunner()
        for _ in range(ABANDONED_MAX):
            with pytest.raises(OutOfTime):
                await runner.call(lambda: go.wait(5.0), 0.001)
        with pytest.raises(TooManyAbandoned):
            await runner.call(lambda: 1, 1.0)
        go.set()
        for _ in range(500):
            await asyncio.sleep(0.002)
            try:
                assert await runner.call(lambda: 1, 1.0) == 1
            except TooManyAbandoned:
                continue
            return
        raise AssertionError("it never recovered")

    asyncio.run(scene())


def test_what_a_call_raises_is_raised_where_it_was_awaited() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        asyncio.run(ThreadRunner().call(fail, 1.0))


def test_a_call_in_vain_is_not_held_against_its_sink() -> None:
    """A committer that cannot connect is tried again, and closes what it had opened."""

    async def scene(world: World) -> None:
        opens: list[int] = []

        def create(make: Callable[[], Any], fails: int) -> Callable[[], Any]:
            def created() -> Any:
                tier = make()

                def opened() -> None:
                    opens.append(1)
                    if len(opens) <= fails:
                        raise ConnectionError("no route")

                tier.open = opened
                return tier

            return created

        sink = world.sinks["a"]
        sink.create_aggregated_committer = create(sink.create_aggregated_committer, 3)  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    world = play(scene, tiers={"a": "both"}, settings=FAST)
    assert world.target.count("close", "a") == 4, "three in vain, and one at the end"
