"""Commit rounds: what is tried again, what is asked first, what is held, in which order."""

import asyncio
import threading
import time
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.protocol.ledger import PartState
from tests.protocol.build import part_of
from tests.unit.coordinator.world import Aggregated, Said, Target, World, play, settled


def test_a_decided_checkpoint_is_committed_cleaned_and_forgotten() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=3)
            ledger = await world.until(settled)
            assert ledger.sinks["a"].committed == ledger.sinks["a"].evidence == 1

    world = play(scene)
    assert world.target.visible == {("a", 1, 0), ("a", 1, 1), ("a", 1, 2)}
    assert world.target.of("post_commit", "clean") == [("post_commit", "a", 1, ()), ("clean", "a", 1, ())]
    assert world.target.count("probe") == 0


def test_runtime_retries_failed_subset_only() -> None:
    failures = {1: 2, 3: 1}

    def say(operation: str, request: CommitRequest) -> Said:
        left = failures.get(request.lineage.subtask, 0)
        if operation == "commit" and left:
            failures[request.lineage.subtask] = left - 1
            return Answer.RETRY_LATER
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=4)
            await world.until(settled)

    world = play(scene, settings=CommitSettings(backoff_first_seconds=0.001, parallel_chunks=1))
    assert [call[3] for call in world.target.of("commit")] == [(0, 1, 2, 3), (1, 3), (1,)]
    assert [r.retries for r in world.target.requests if r.lineage.subtask == 1] == [0, 1, 2]


def test_runtime_never_discards_returned_failures() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        late = request.retries < 6 and request.lineage.subtask == 0
        return Answer.RETRY_LATER if operation == "commit" and late else None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=2)
            await world.decide(2)
            await world.until(settled)

    world = play(scene)
    assert {("a", 1, 0), ("a", 1, 1), ("a", 2, 0)} == world.target.visible
    order = [call[2] for call in world.target.of("commit")]
    assert order == sorted(order), "checkpoint 2 waited for the last failure of checkpoint 1"


def test_an_unanswered_request_counts_as_committed() -> None:
    async def scene(world: World) -> None:
        world.target.call = lambda *_: None  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: ledger.sinks.get("a") is not None and settled(ledger))
            assert ledger.sinks["a"].committed == 1

    play(scene)


@pytest.mark.parametrize("landed", [True, False])
def test_an_exception_is_unknown_and_the_target_is_asked_before_anything_else(landed: bool) -> None:
    raised = False

    def say(operation: str, request: CommitRequest) -> Said:
        nonlocal raised
        if operation == "commit" and not raised:
            raised = True
            if landed:
                world.target.visible.add(("a", 1, 0))
            return ConnectionError("reset by peer")
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    world = World()
    asyncio.run(scene(world))
    names = [call[0] for call in world.target.of("commit", "probe")]
    assert names == (["commit", "probe"] if landed else ["commit", "probe", "commit"])
    if not landed:
        assert [r.may_have_landed for r in world.target.requests if r.answer is Answer.COMMITTED] == [True]
    assert world.target.visible == {("a", 1, 0)}


def test_a_call_out_of_time_is_unknown_and_its_late_effect_is_harmless() -> None:
    release = threading.Event()
    entered: list[CommitRequest] = []

    def say(operation: str, request: CommitRequest) -> Said:
        if operation == "commit" and not entered:
            entered.append(request)
            release.wait(5.0)
            return None
        if operation == "probe":
            release.set()
            time.sleep(0.02)  # the late commit lands now
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(settled)
            assert ledger.sinks["a"].committed == 1

    world = play(scene, settings=CommitSettings(timeout_seconds=0.05, backoff_first_seconds=0.001))
    assert world.target.visible == {("a", 1, 0)}
    assert world.target.of("commit", "probe")[1][0] == "probe"
    assert world.metrics.get("commit_failures", "a") >= 1


def test_update_and_retry_replaces_the_payload() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.UPDATE_AND_RETRY_LATER if operation == "commit" and request.committable != "new" else None

    originals: list[Any] = []

    def call(operation: str, sink: str, requests: Any) -> None:
        originals[0](operation, sink, requests)
        for request in requests:
            if request.answer is Answer.UPDATE_AND_RETRY_LATER:
                request.update("new" if request.lineage.subtask == 1 else request.committable, "renewed")
                if request.lineage.subtask == 0:
                    request.reply(Answer.COMMITTED)

    async def scene(world: World) -> None:
        originals.append(world.target.call)
        world.target.call = call  # type: ignore[method-assign]
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=2, large=True)
            (old,) = world.store.objects
            await world.until(settled)
            assert old not in world.store.objects
            assert world.store.objects == {}

    world = play(scene, settings=CommitSettings(backoff_first_seconds=0.001, parallel_chunks=1))
    assert world.target.requests[-1].committable == "new"
    assert world.target.requests[-1].lineage.subtask == 1


def test_retries_exhausted_is_held_with_what_was_said_last() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda operation, request: Answer.RETRY_LATER if operation == "commit" else None
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
            part = part_of(ledger, 1, "a")
            assert (part.reason, part.message) == ("RetriesExhausted", "after 3 attempts: as the test says")

    world = play(scene, settings=CommitSettings(backoff_first_seconds=0.001, attempts_max=3))
    assert world.target.count("commit") == 3


def test_a_refused_part_is_held_with_its_reason_and_nothing_later_commits_on_that_sink() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.REFUSED if operation == "commit" and request.lineage.checkpoint == 1 else None

    async def scene(world: World) -> None:
        world.target.say = say
        world.sinks["b"].target = Target()
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.decide(2)
            await world.until(lambda ledger: ledger.sinks["b"].committed == 2)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
            assert (part_of(ledger, 1, "a").reason, part_of(ledger, 1, "a").message) == ("Said", "as the test says")
            looks = world.target.count("probe")
            await world.until(lambda ledger: world.target.count("probe") > looks + 1)
            assert part_of(await world.ledger(), 2, "a").state is PartState.PENDING
            world.target.visible.add(("a", 1, 0))
            await world.until(settled)

    world = play(scene, tiers={"a": "committer", "b": "committer"})
    commits = [call[2] for call in world.target.of("commit") if call[1] == "a"]
    assert commits == [1, 2], "the look found it committed; it was never sent again"


def test_earlier_batch_fully_committed_before_next() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda operation, request: time.sleep(0.001)
        await world.begin()
        async with world.working():
            for number in range(1, 5):
                await world.decide(number, subtasks=5)
            await world.until(settled)

    world = play(scene, settings=CommitSettings(chunk_size=1, parallel_chunks=3))
    order = [call[2] for call in world.target.of("commit")]
    assert order == sorted(order)
    assert len(order) == 20


def test_committables_go_in_parallel_chunks_and_sinks_side_by_side() -> None:
    meeting = threading.Barrier(6, timeout=5.0)  # 3 chunks of each of 2 sinks must be in a call at the same time

    def say(operation: str, request: CommitRequest) -> Said:
        if operation == "commit":
            meeting.wait()
        return None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=3)
            await world.until(settled)

    world = play(scene, tiers={"a": "committer", "b": "committer"}, settings=CommitSettings(chunk_size=1))
    assert sorted(call[3] for call in world.target.of("commit")) == [(0,), (0,), (1,), (1,), (2,), (2,)]


def test_a_takeover_asks_the_target_first() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.decide(1, subtasks=2)
        world.target.visible.add(("a", 1, 0))
        async with world.working():
            await world.until(settled)

    world = play(scene)
    first, *others = world.target.of("commit", "probe")
    assert first[0] == "probe"
    committed = [call for call in others if call[0] == "commit"]
    assert [call[3] for call in committed] == [(1,)], "what landed is not sent again"


def test_every_round_has_an_order_above_the_one_before() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda op, r: Answer.RETRY_LATER if op == "commit" and r.retries < 2 else None
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)
        async with world.working():
            await world.decide(2)
            await world.until(settled)

    orders = [request.order for request in play(scene).target.requests]
    assert orders == sorted(set(orders))
    assert {token for token, _ in orders} == {1, 2}


def test_both_tiers_commit_the_writers_first_and_the_whole_last() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=2)
            await world.until(settled)

    world = play(scene, tiers={"a": "both"}, settings=CommitSettings(parallel_chunks=1))
    assert world.target.of("commit") == [("commit", "a", 1, (0, 1)), ("commit", "a+", 1, (0,))]
    assert world.target.of("clean") == [("clean", "a", 1, ()), ("clean", "a+", 1, ())]


def test_an_aggregated_tier_gets_one_request_per_checkpoint_even_of_no_committables() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1, subtasks=3)
            await world.decide(2, subtasks=0)
            await world.until(settled)

    world = play(scene, tiers={"a": "aggregated"})
    assert world.target.of("commit") == [("commit", "a+", 1, (0,)), ("commit", "a+", 2, (0,))]
    assert [len(request.committable) for request in world.target.requests] == [3, 0]


def test_an_aggregated_tier_is_asked_first_after_a_takeover() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.decide(1, subtasks=3)
        async with world.working():
            await world.until(settled)

    assert [c[0] for c in play(scene, tiers={"a": "aggregated"}).target.of("probe", "commit")] == ["probe", "commit"]


def test_the_predecessor_is_the_last_checkpoint_that_left_evidence() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.decide(2, subtasks=0)
            await world.decide(3)
            await world.until(settled)

    assert [(r.lineage.checkpoint, r.previous) for r in play(scene).target.requests] == [(1, 0), (3, 1)]


def test_a_combine_that_fails_is_an_outcome_and_not_the_coordinators_end() -> None:
    async def scene(world: World) -> None:
        class Broken(Aggregated):
            def combine(self, committables: Any) -> Any:
                raise ValueError("version 7 is not known")

        world.sinks["a"].create_aggregated_committer = lambda: Broken(world.target, "a+")  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").state is PartState.HELD)
            assert part_of(ledger, 1, "a").message == "ValueError: version 7 is not known"

    play(scene, tiers={"a": "aggregated"})


def test_a_long_message_is_cut() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda op, request: ValueError("x" * 100_000) if op == "commit" else Answer.UNKNOWN
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").message != "")
            assert len(part_of(ledger, 1, "a").message) <= 1000

    play(scene)
