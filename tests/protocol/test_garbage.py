"""What may be removed, against a model that remembers every decision of every epoch."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.protocol.events import OutcomeKind, RaiseEpoch
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.protocol.ledger import Ledger
from tests.protocol.build import after, committed, decided, decision, opening, outcome, report, running


@dataclass
class History:
    """Which epoch decided which number, and which of them are over."""

    decided: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)


def play(decisions: list[int], unfinished: int) -> tuple[Ledger, History]:
    """Epochs that decide so many checkpoints each; the last `unfinished` of the last epoch are not yet settled."""
    ledger, history, number = running(epoch=0), History(), 0
    total = sum(decisions)
    for epoch, count in enumerate(decisions, start=1):
        ledger = after(ledger, *opening(epoch))
        for _ in range(count):
            number += 1
            ledger = after(ledger, decision(number, epoch))
            history.decided[number] = epoch
            left_open = epoch == len(decisions) and number > total - unfinished
            if not left_open:
                done = (outcome(number, sink, OutcomeKind.CLEANED) for sink in "ab")
                ledger = after(committed(ledger, number, "a", "b"), report(*done))
                history.over.add(number)
    return after(ledger, RaiseEpoch(len(decisions) + 1)), history


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 3))
def test_garbage_by_ranges_is_what_a_full_memory_would_say(decisions: list[int], unfinished: int) -> None:
    ledger, history = play(decisions, min(unfinished, decisions[-1]))
    garbage = Garbage.of(ledger)
    for epoch in range(-1, ledger.epoch + 3):
        for number in range(sum(decisions) + 4):
            older = 1 <= epoch < ledger.epoch
            mine = history.decided.get(number) == epoch
            assert garbage.undecided(number, epoch) is (older and not mine)
            assert garbage.settled(number, epoch) is (older and mine and number in history.over)


def test_nothing_of_the_running_epoch_is_garbage() -> None:
    garbage = Garbage.of(decided(1))
    assert not any(garbage.undecided(number, 1) or garbage.settled(number, 1) for number in range(5))


@pytest.mark.parametrize("epoch", [3, 4])
def test_an_epoch_without_a_range_is_not_touched(epoch: int) -> None:
    garbage = Garbage("ledger-1", epoch=9, firsts=(1, 3, 5), unsettled=frozenset())
    assert not garbage.undecided(7, epoch)
    assert garbage.undecided(7, 2)


def test_a_number_without_a_record_is_not_taken_for_undecided() -> None:
    ledger, _ = play([2, 0], 0)
    assert ledger.records == ()
    assert not Garbage.of(ledger).undecided(2, 1)
    assert Garbage.of(ledger).undecided(3, 1)
    assert Garbage.of(ledger).undecided(2, 2), "the same number staged by an epoch that decided nothing"
