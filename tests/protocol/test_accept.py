"""A person's word: taken once per nonce and reason, with each of its effects."""

from dataclasses import replace
from typing import Any

import pytest

from sinkruntime.protocol.events import Accept, OutcomeKind, Refusal, TargetView
from sinkruntime.protocol.ledger import Abort, Acceptance, CheckpointState, Ledger, PartState, SinkEntry
from sinkruntime.protocol.machine import step
from tests.protocol.build import (
    EPOCH,
    TOKEN,
    aborting,
    after,
    committed,
    decided,
    in_state,
    opening,
    outcome,
    part_of,
    refused,
    report,
    running,
)

C, P, K = CheckpointState, PartState, OutcomeKind


def word(reason: str, nonce: int = 1, detail: str = "", **effects: Any) -> Accept:
    return replace(Accept(TOKEN, 1, nonce, reason, detail), **effects)


def settled(*numbers: int) -> Ledger:
    ledger = decided(*numbers)
    for number in numbers:
        ledger = committed(ledger, number, "a", "b")
        ledger = after(ledger, report(*(outcome(number, sink, K.CLEANED) for sink in "ab")))
    return ledger


def test_an_acceptance_is_recorded_and_changes_nothing_else_by_itself() -> None:
    ledger = settled(1)
    made, effects = step(ledger, word("TargetReplaced", detail="what was found"))
    assert made == replace(ledger, acceptances=(Acceptance(1, "TargetReplaced", "what was found"),))
    assert effects == ()


def test_a_reason_is_accepted_once_per_nonce() -> None:
    ledger = after(running(), word("TargetReplaced"))
    assert refused(ledger, word("TargetReplaced", detail="other")) is Refusal.ALREADY_ACCEPTED
    both = after(ledger, word("NewCheckpoint"), word("TargetReplaced", nonce=2))
    assert [(a.nonce, a.reason) for a in both.acceptances] == [
        (1, "TargetReplaced"),
        (1, "NewCheckpoint"),
        (2, "TargetReplaced"),
    ]


def test_rebase_lets_the_next_batch_start_anywhere() -> None:
    ledger = settled(1)
    assert ledger.last is not None
    assert after(ledger, word("NewCheckpoint", rebase=True)) == replace(
        ledger, last=None, acceptances=(Acceptance(1, "NewCheckpoint", ""),)
    )


def test_a_target_behind_is_taken_over_as_it_is() -> None:
    ledger = settled(1, 2)
    made = after(ledger, word("TargetBehindLedger", views={"a": TargetView(1, "uuid-2")}))
    assert made.sinks == {
        "a": SinkEntry(since=1, committed=2, evidence=1, target="uuid-2"),
        "b": SinkEntry(since=1, committed=2, evidence=2),
    }
    assert (made.decided, made.firsts) == (2, (1,))


def test_a_target_ahead_has_the_numbers_go_on_after_it() -> None:
    ledger = after(settled(1), *opening(2))
    made = after(ledger, word("TargetAheadOfLedger", views={"a": TargetView(5, "uuid")}))
    assert (made.decided, made.sinks["a"].evidence) == (5, 5)
    assert made.firsts == (1, 6), "numbers that this epoch never decides are not in its range"


def test_a_sink_that_the_ledger_does_not_know_is_taken_over() -> None:
    made = after(running(), word("TargetAheadOfLedger", views={"new": TargetView(3, "uuid")}))
    assert made.sinks == {"new": SinkEntry(since=1, evidence=3, target="uuid")}
    assert made.decided == 3


def test_accepting_an_abort_lets_the_job_go_on() -> None:
    fenced = report(outcome(1, "a", K.FENCED), outcome(1, "b", K.FENCED))
    ledger = after(aborting(decided(1), 1), fenced)
    assert after(ledger, word("TargetReplaced")).aborts == ledger.aborts
    assert after(ledger, word("Aborted")).aborts == (Abort(1, 1, "ann", "wrong table", accepted=True),)


@pytest.mark.parametrize("state", [P.HELD, P.IN_DOUBT])
def test_a_lost_part_is_given_up_and_the_checkpoint_goes_on_without_it(state: PartState) -> None:
    made, effects = step(in_state(C.DECIDED, state), word("CommittableLost", lost=((1, "a"),)))
    assert part_of(made, 1, "a").state is P.GIVEN_UP
    assert made.records[0].state is C.COMMITTED
    assert (made.sinks["a"].committed, made.sinks["a"].evidence) == (0, 0)
    assert [effect.action for effect in effects] == ["clean"]


@pytest.mark.parametrize("state", [P.HELD, P.IN_DOUBT])
def test_a_part_that_a_person_found_in_the_target_is_committed(state: PartState) -> None:
    made = after(in_state(C.DECIDED, state), word("InDoubt", landed=((1, "a"),)))
    assert part_of(made, 1, "a").state is P.COMMITTED
    assert made.records[0].state is C.COMMITTED
    assert made.sinks["a"].committed == 1


@pytest.mark.parametrize("state", [P.PENDING, P.COMMITTED, P.GIVEN_UP])
def test_nobodys_word_is_taken_on_a_part_that_needs_none(state: PartState) -> None:
    ledger = in_state(C.DECIDED, state)
    assert refused(ledger, word("CommittableLost", lost=((1, "a"),))) is Refusal.NOT_ALLOWED
    assert refused(ledger, word("InDoubt", landed=((1, "a"),))) is Refusal.NOT_ALLOWED


@pytest.mark.parametrize("state", [C.ABORTING, C.COMMITTED, C.ABORTED])
def test_nobodys_word_overrules_a_checkpoint_that_is_not_to_be_committed(state: CheckpointState) -> None:
    assert refused(in_state(state, P.IN_DOUBT), word("InDoubt", landed=((1, "a"),))) is Refusal.NOT_ALLOWED


def test_an_unknown_part_cannot_be_spoken_of() -> None:
    assert refused(decided(1), word("InDoubt", landed=((2, "a"),))) is Refusal.UNKNOWN_PART


def test_a_fenced_speaker_is_not_heard() -> None:
    assert refused(running(token=2), word("TargetReplaced")) is Refusal.STALE_TOKEN
    late = Accept(EPOCH, 1, 1, "TargetReplaced")
    assert refused(running(epoch=2), late) is Refusal.STALE_EPOCH


def test_parts_that_are_held_for_what_a_person_accepts_are_tried_again() -> None:
    held = after(decided(1), report(*(outcome(1, sink, K.REFUSED, reason="TargetBehindLedger") for sink in "ab")))
    made = after(held, word("TargetBehindLedger", views={"a": TargetView()}))
    assert part_of(made, 1, "a").state is P.IN_DOUBT
    assert part_of(made, 1, "b").state is P.HELD  # its target was not looked at
    other = after(held, word("TargetReplaced", views={"a": TargetView()}))
    assert part_of(other, 1, "a").state is P.HELD
