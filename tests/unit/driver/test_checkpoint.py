"""One batch in the driver: slot, staging, lineage, payloads, expiry, and a decision whose answer may be lost."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sinkruntime.driver.driver import STAGINGS_MAX
from sinkruntime.driver.staging import Assignment, LineageIncomplete, Staging, TaskResult, Written
from sinkruntime.errors import AnswerLost, Fenced, InDoubt, StartRefused
from sinkruntime.ledger.payloads import INLINE_BYTES_MAX, load_payload
from sinkruntime.ledger.store import Stored
from sinkruntime.protocol.events import Decide, RaiseEpoch, RaiseToken
from sinkruntime.protocol.ledger import Ledger, Position
from tests.protocol.build import (
    aborting,
    after,
    committed,
    decided,
    position,
    running,
)
from tests.unit.driver.world import World, play, result, soon, whole


def test_a_batch_is_staged_and_decided() -> None:
    async def scene(world: World) -> None:
        assert await world.driver(targets={"a": "uuid-a"}).checkpoint(position(0), world.stage) is True
        ledger = await world.ledger()
        (record,) = ledger.records
        assert (record.number, record.epoch, record.revision, record.position) == (1, 1, "rev-1", position(0))
        assert record.decided_ms == 1_000_000
        assert {sink: part.rows for sink, part in record.parts.items()} == {"a": 6, "b": 6}
        items = await load_payload(world.store, record.parts["a"].payload)
        assert [(lineage.subtask, written.data) for lineage, written in items] == [(0, b"a0"), (1, b"a1")]
        assert ledger.sinks["a"].target == "uuid-a"

    assert play(scene).staged == [Assignment(1, 1)]


def test_a_decided_batch_is_skipped_without_staging() -> None:
    async def scene(world: World) -> None:
        assert await world.driver().checkpoint(position(0), world.stage) is False

    assert play(scene, decided(1)).staged == []


@pytest.mark.parametrize("place", [position(0, "query-2"), position(5), replace(position(0), end=position(3).end)])
def test_a_batch_that_does_not_follow_stops_before_staging(place: Position) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(StartRefused, match="TargetAheadOfSource"):
            await world.driver().checkpoint(place, world.stage)

    assert play(scene, decided(1)).staged == []


def test_a_batch_job_is_decided_once() -> None:
    async def scene(world: World) -> None:
        assert await world.driver().checkpoint(position(0), world.stage, "rev-1/0") is True
        assert await world.driver().checkpoint(position(0), world.stage, "rev-1/0") is False

    assert len(play(scene).staged) == 1


def test_an_empty_batch_has_a_decision_too() -> None:
    async def scene(world: World) -> None:
        async def empty(assignment: Assignment) -> Staging:
            return whole(assignment, committable=None, rows=0)

        assert await world.driver().checkpoint(position(0), empty) is True
        (record,) = (await world.ledger()).records
        assert [(part.payload, part.rows) for part in record.parts.values()] == [(None, 0), (None, 0)]

    play(scene)


def test_the_driver_waits_for_a_slot_before_it_stages() -> None:
    async def scene(world: World) -> None:
        task = asyncio.create_task(world.driver().checkpoint(position(2), world.stage))
        await soon(lambda: world.store.waits == 1)
        assert world.staged == []
        await world.put(committed(await world.ledger(), 1, "a", "b"))
        assert await asyncio.wait_for(task, 2.0) is True

    assert play(scene, decided(1, 2)).staged == [Assignment(3, 1)]


def test_a_driver_fenced_while_it_waits_stages_nothing() -> None:
    async def scene(world: World) -> None:
        task = asyncio.create_task(world.driver().checkpoint(position(2), world.stage))
        await soon(lambda: world.store.waits == 1)
        await world.happen(RaiseEpoch(2))
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 2.0)

    assert play(scene, decided(1, 2)).staged == []


def test_a_driver_fenced_while_it_stages_raises_and_decides_nothing() -> None:
    async def scene(world: World) -> None:
        async def overtaken(assignment: Assignment) -> Staging:
            await world.happen(RaiseEpoch(2))
            return whole(assignment)

        with pytest.raises(Fenced, match="StaleEpoch"):
            await world.driver().checkpoint(position(0), overtaken)
        assert (await world.ledger()).decided == 0

    play(scene)


def test_an_abort_begun_while_it_stages_leaves_the_batch_undecided() -> None:
    async def scene(world: World) -> None:
        async def disturbed(assignment: Assignment) -> Staging:
            await world.put(aborting(await world.ledger(), 1))
            return whole(assignment)

        with pytest.raises(InDoubt, match="Aborted"):
            await world.driver().checkpoint(position(1), disturbed)
        assert (await world.ledger()).decided == 1

    play(scene, decided(1))


Break = Callable[[Assignment, list[TaskResult], dict[str, int]], Any]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a, results, n: results.pop(), "missing"),
        (lambda a, results, n: results.append(results[0]), "twice"),
        (lambda a, results, n: n.update(a=3), "missing"),
        (lambda a, results, n: results.append(result(a, "a", 2)), "beyond"),
        (lambda a, results, n: results.append(result(a, "z", 0)), "not in the pass"),
        (lambda a, results, n: n.pop("a"), "the job has"),
        (lambda a, results, n: n.update(z=0), "the job has"),
        (lambda a, results, n: results.__setitem__(0, result(replace(a, epoch=7), "b", 1)), "of another pass"),
        (lambda a, results, n: results.__setitem__(0, result(replace(a, checkpoint=9), "b", 1)), "of another pass"),
        (lambda a, results, n: results.__setitem__(0, result(a, "b", 1, subtasks=9)), "of another pass"),
    ],
)
def test_committer_not_called_until_all_tasks_prepared(damage: Break, said: str) -> None:
    async def scene(world: World) -> None:
        async def stage(assignment: Assignment) -> Staging:
            staging = whole(assignment)
            results, numbers = list(staging.results), dict(staging.subtasks)
            damage(assignment, results, numbers)
            return Staging(results, numbers)

        with pytest.raises(LineageIncomplete, match=said):
            await world.driver().checkpoint(position(0), stage)
        assert (await world.ledger()) == running()
        assert world.store.objects == {}

    play(scene)


def test_what_staging_raises_is_raised_and_nothing_is_decided() -> None:
    async def scene(world: World) -> None:
        async def failing(assignment: Assignment) -> Staging:
            raise RuntimeError("a task failed")

        with pytest.raises(RuntimeError, match="a task failed"):
            await world.driver().checkpoint(position(0), failing)
        assert (await world.ledger()) == running()

    play(scene)


def test_large_committables_lie_beside_the_ledger_before_the_decision() -> None:
    async def scene(world: World) -> None:
        async def large(assignment: Assignment) -> Staging:
            staging = whole(assignment)
            big = result(assignment, "a", 0, committable=Written(1, os.urandom(2 * INLINE_BYTES_MAX)))
            others = [r for r in staging.results if (r.sink, r.lineage.subtask) != ("a", 0)]
            return Staging([big, *others], staging.subtasks)

        await world.driver().checkpoint(position(0), large)
        (record,) = (await world.ledger()).records
        payload = record.parts["a"].payload
        assert payload is not None
        assert list(world.store.objects) == [payload.pointer]
        assert record.parts["b"].payload is not None
        assert record.parts["b"].payload.inline is not None

    play(scene)


def test_the_states_of_the_last_decision_reach_the_next_writers() -> None:
    async def scene(world: World) -> None:
        async def stateful(assignment: Assignment) -> Staging:
            world.staged.append(assignment)
            return whole(assignment, states=(Written(2, b"state"),))

        driver = world.driver()
        await driver.checkpoint(position(0), stateful)
        await driver.checkpoint(position(1), stateful)

    assert play(scene).staged[1].states == {sink: [Written(2, b"state")] * 2 for sink in "ab"}


def living(world: World, lives: Sequence[float]) -> Callable[[Assignment], Awaitable[Staging]]:
    """Passes whose first result has so long to live, one by one."""
    left = list(lives)

    async def stage(assignment: Assignment) -> Staging:
        world.staged.append(assignment)
        life = left.pop(0)
        staging = whole(assignment)
        first = replace(staging.results[0], remaining_life_seconds=life)
        return Staging([first, *staging.results[1:]], staging.subtasks)

    return stage


def test_a_batch_that_would_expire_too_soon_is_staged_again() -> None:
    async def scene(world: World) -> None:
        assert await world.driver().checkpoint(position(0), living(world, [119.0, 500.0])) is True

    world = play(scene)
    assert world.staged == [Assignment(1, 1), Assignment(1, 1)]
    assert world.store.removed == [], "a driver removes nothing"


def test_a_batch_that_always_expires_too_soon_stops_the_job() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(InDoubt, match="would have expired too soon"):
            await world.driver().checkpoint(position(0), living(world, [1.0] * 9))
        assert (await world.ledger()).decided == 0

    assert len(play(scene).staged) == STAGINGS_MAX


def test_what_can_expire_ages_while_the_ledger_cannot_be_reached() -> None:
    async def scene(world: World) -> None:
        replace_ledger = world.store.replace

        async def late(ledger: Ledger, version: str) -> Stored:
            world.clock.now += 60.0
            return await replace_ledger(ledger, version)

        world.store.faults = ["unavailable"]
        world.store.replace = late  # type: ignore[method-assign]
        assert await world.driver().checkpoint(position(0), living(world, [150.0, 500.0])) is True

    assert len(play(scene).staged) == 2


@pytest.mark.parametrize("faults", [["lost-applied"], ["lost"], ["unavailable", "lost", "lost-applied"]])
def test_a_decision_whose_answer_is_lost_is_made_exactly_once(faults: list[str]) -> None:
    async def scene(world: World) -> None:
        world.store.faults = faults
        driver = world.driver()
        assert await driver.checkpoint(position(0), world.stage) is True
        assert [record.number for record in (await world.ledger()).records] == [1]
        assert await driver.checkpoint(position(1), world.stage) is True

    world = play(scene)
    assert len(world.staged) == 2
    assert world.store.removed == []


def test_a_decision_that_landed_counts_even_where_a_coordinator_was_faster_to_change_the_ledger() -> None:
    async def scene(world: World) -> None:
        replace_ledger = world.store.replace

        async def landed(ledger: Ledger, version: str) -> Stored:
            world.store.replace = replace_ledger  # type: ignore[method-assign]
            await replace_ledger(ledger, version)
            await world.happen(RaiseToken(2, "coordinator-2"))
            raise AnswerLost("no answer")

        world.store.replace = landed  # type: ignore[method-assign]
        assert await world.driver().checkpoint(position(0), world.stage) is True
        assert len((await world.ledger()).records) == 1

    play(scene)


def test_a_driver_that_gets_no_answer_is_in_doubt_and_removes_nothing() -> None:
    async def scene(world: World) -> None:
        async def never(ledger: Ledger, version: str) -> Stored:
            world.clock.now += 400.0
            raise AnswerLost("no answer")

        world.store.replace = never  # type: ignore[method-assign]
        with pytest.raises(InDoubt, match="600 s"):
            await world.driver().checkpoint(position(0), world.stage)

    assert play(scene).store.removed == []


def test_a_number_taken_by_anothers_record_fences() -> None:
    async def scene(world: World) -> None:
        async def raced(assignment: Assignment) -> Staging:
            ledger = await world.ledger()
            twin = after(ledger, Decide(decided(1).records[0], "driver-1", 4, 60.0))
            await world.put(twin)
            return whole(assignment)

        with pytest.raises(Fenced, match="NotNext"):
            await world.driver().checkpoint(position(0), raced)

    play(scene)
