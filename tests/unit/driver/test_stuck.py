"""A driver before what only a person can help: told by name, never waited for where nobody can speak."""

import pytest

from sinkruntime.driver.driver import stuck
from sinkruntime.errors import ExitCode, Held, InDoubt, SinkjobError
from sinkruntime.protocol.events import Outcome, OutcomeKind
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.protocol.start import SourceView
from tests.protocol.build import after, decided, opening, outcome, position, report
from tests.unit.driver.world import World, nothing, play

LOST = outcome(1, "a", OutcomeKind.REFUSED, reason="CommittableLost", message="file x is gone")
DOUBTED = outcome(1, "a", OutcomeKind.UNKNOWN, reason="InDoubt", message="cannot tell")
SLOW = outcome(1, "a", OutcomeKind.UNKNOWN, reason="OutOfTime", message="no answer")
CASES = [(LOST, Held, "CommittableLost"), (DOUBTED, InDoubt, "InDoubt")]


def told(ledger: Ledger, said: Outcome) -> Ledger:
    return after(ledger, report(said))


@pytest.mark.parametrize(("said", "kind", "reason"), CASES)
def test_full_slots_behind_a_stuck_part_end_a_run_that_nobody_attends(
    said: Outcome, kind: type[SinkjobError], reason: str
) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(kind, match="checkpoint 1 of sink a") as caught:
            await world.driver(attended=False).checkpoint(position(2), world.stage)
        assert caught.value.reason == reason
        assert caught.value.exit_code is ExitCode.FENCED_OR_IN_DOUBT

    assert play(scene, told(decided(1, 2), said)).staged == []


def test_a_free_slot_is_used_although_an_earlier_part_is_stuck() -> None:
    async def scene(world: World) -> None:
        assert await world.driver(attended=False).checkpoint(position(1), world.stage) is True

    assert len(play(scene, told(decided(1), LOST)).staged) == 1


@pytest.mark.parametrize(("said", "kind", "reason"), CASES)
def test_an_older_epochs_stuck_part_stops_the_start(said: Outcome, kind: type[SinkjobError], reason: str) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(kind) as caught:
            await world.driver(epoch=2, claimant="driver-2").start(SourceView(), nothing)
        assert caught.value.reason == reason

    play(scene, told(after(decided(1), *opening(2)), said))


@pytest.mark.parametrize("said", [LOST, DOUBTED])
def test_the_end_of_a_run_does_not_wait_for_a_stuck_part(said: Outcome) -> None:
    async def scene(world: World) -> None:
        assert [(number, sink) for number, sink, _ in stuck(await world.driver().drained())] == [(1, "a")]

    play(scene, told(decided(1), said))


def test_a_commit_without_an_answer_is_not_stuck() -> None:
    assert stuck(told(decided(1), SLOW)) == []
