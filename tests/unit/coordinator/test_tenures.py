"""Tenures of a coordinator, a person's word, aborts, and an orderly end."""

import asyncio
import threading
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.errors import Fenced
from sinkruntime.protocol.events import Accept, BeginAbort, RaiseEpoch, RaiseToken
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, PartState
from tests.protocol.build import EPOCH, TOKEN, part_of
from tests.unit.coordinator.world import Said, World, play, settled


def held(ledger: Ledger) -> bool:
    return part_of(ledger, 1, "a").state is PartState.HELD


def refuse(operation: str, request: CommitRequest) -> Said:
    return Answer.REFUSED if operation == "commit" else None


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


def test_a_word_to_abandon_counts_once_and_never_for_what_is_held_later() -> None:
    wishes = Wishes(nonce=1, accept=frozenset({"AbandonPending"}), who="ann")

    async def scene(world: World) -> None:
        world.target.say = lambda op, request: Answer.REFUSED if op == "commit" else None
        await world.begin()
        async with world.working(wishes):
            await world.decide(1)
            await world.until(lambda ledger: bool(ledger.aborts) and settled(ledger))
            await world.happen(lambda ledger: None if ledger.aborts[0].accepted else Accept(TOKEN, 1, 1, "Aborted"))
            await world.decide(2)
            probes = world.target.count("probe")
            await world.until(lambda ledger: part_of(ledger, 2, "a").state is PartState.HELD)
            ledger = await world.until(lambda ledger: world.target.count("probe") > probes + 1)
        assert [(abort.first, abort.last) for abort in ledger.aborts] == [(1, 1)]
        assert ledger.pending[0].state is CheckpointState.DECIDED
        assert [(a.nonce, a.reason) for a in ledger.acceptances] == [(1, "AbandonPending"), (1, "Aborted")]

    play(scene)
