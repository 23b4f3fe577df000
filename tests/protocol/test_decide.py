"""The decision: what must hold before a checkpoint's record may enter the ledger, and what it leaves there."""

from dataclasses import replace
from typing import Any

import pytest

from sinkruntime.protocol.events import (
    Action,
    ClaimEpoch,
    Decide,
    Effect,
    NoteRecovered,
    OutcomeKind,
    RaiseEpoch,
    Refusal,
)
from sinkruntime.protocol.ledger import CheckpointState, LastDecision, Ledger, Part, PartState, Position, SinkEntry
from sinkruntime.protocol.machine import outstanding, step
from tests.protocol.build import (
    EPOCH,
    TOKEN,
    aborting,
    after,
    committed,
    decided,
    decision,
    offset,
    opening,
    outcome,
    position,
    record,
    refused,
    report,
    running,
    stored,
)


def at(event: Decide, **fields: Any) -> Decide:
    """The same decision with another record."""
    return replace(event, record=replace(event.record, **fields))


def test_a_decision_leaves_its_record_the_source_position_and_the_sinks() -> None:
    ledger = running()
    made, effects = step(ledger, decision(1))
    assert made == replace(
        ledger,
        decided=1,
        last=LastDecision(1, "record-1", position(0)),
        records=(record(1),),
        sinks={"a": SinkEntry(since=1), "b": SinkEntry(since=1)},
    )
    assert effects == (Effect(Action.COMMIT, 1, "a"), Effect(Action.COMMIT, 1, "b"))


def test_a_later_decision_keeps_the_sinks_first_checkpoint_and_adds_new_sinks() -> None:
    ledger = after(running(), decision(1, sinks={"a": Part()}), decision(2, targets={"b": "uuid-b"}))
    assert ledger.sinks == {"a": SinkEntry(since=1), "b": SinkEntry(since=2, target="uuid-b")}
    again = after(ledger, decision(3))
    assert again.sinks["b"].target == "uuid-b", "an identity that was not asked for is not forgotten"


def test_of_each_sink_only_the_first_checkpoint_is_owed() -> None:
    ledger, effects = step(decided(1), decision(2))
    assert effects == ()
    owed = [(e.number, e.sink) for e in outstanding(ledger) if e.action is Action.COMMIT]
    assert owed == [(1, "a"), (1, "b")]


def test_whatever_state_a_driver_sends_its_parts_begin_pending() -> None:
    cheating = Part(rows=7, state=PartState.COMMITTED, done=((0, 3),), attempts=9)
    ledger = after(running(), decision(1, sinks={"a": cheating}))
    assert ledger.records[0].parts == {"a": Part(rows=7)}
    ledger = after(running(), at(decision(1), state=CheckpointState.SETTLED))
    assert ledger.records[0].state is CheckpointState.DECIDED


def test_the_states_of_the_checkpoint_before_are_superseded() -> None:
    first = decision(1, states={"a": stored("1-states"), "b": stored("inline", inline=True)})
    ledger = after(running(), first, decision(2, states={"a": stored("2-states")}))
    assert ledger.records[0].superseded == ()
    assert ledger.records[1].superseded == ("1-states",)
    assert ledger.last is not None
    assert ledger.last.states == {"a": stored("2-states")}


@pytest.mark.parametrize("number", [1, 3])
def test_only_the_next_number_is_decided(number: int) -> None:
    event = at(decision(2), number=number)
    assert refused(decided(1), event) is Refusal.NOT_NEXT


def test_only_the_process_that_claimed_the_epoch_decides() -> None:
    assert refused(running(), decision(1, claimant="driver-0")) is Refusal.NOT_CLAIMED
    unclaimed = after(running(), RaiseEpoch(2), NoteRecovered(TOKEN, 1, 2, final=False))
    assert refused(unclaimed, decision(1, epoch=2, claimant="")) is Refusal.NOT_CLAIMED


def test_an_older_or_unraised_epoch_decides_nothing() -> None:
    assert refused(running(epoch=2), decision(1, claimant="driver-2")) is Refusal.STALE_EPOCH
    assert refused(running(), decision(1, epoch=2, claimant="driver-1")) is Refusal.STALE_EPOCH


def test_max_pending_checkpoints_take_all_slots() -> None:
    ledger = decided(1, 2)
    assert refused(ledger, decision(3, max_pending=2)) is Refusal.NO_SLOT
    assert after(ledger, decision(3, max_pending=3)).decided == 3
    assert after(committed(ledger, 1, "a", "b"), decision(3, max_pending=2)).decided == 3


def test_checkpoints_of_older_epochs_come_first() -> None:
    ledger = after(decided(1), *opening(2))
    assert refused(ledger, decision(2, epoch=2)) is Refusal.OLDER_PENDING
    assert after(committed(ledger, 1, "a", "b"), decision(2, epoch=2)).decided == 2


def test_recover_has_run_in_this_epoch_for_every_authority_that_commits() -> None:
    ledger = after(running(), RaiseEpoch(2), ClaimEpoch(2, "driver-2"))
    assert refused(ledger, decision(1, epoch=2)) is Refusal.NOT_RECOVERED
    ledger = after(ledger, NoteRecovered(TOKEN, 1, 2, final=False))
    in_driver = {"a": Part(), "b": Part(authority=EPOCH)}
    assert refused(ledger, decision(1, epoch=2, sinks=in_driver)) is Refusal.NOT_RECOVERED
    assert after(ledger, decision(1, epoch=2)).decided == 1
    both = after(ledger, NoteRecovered(EPOCH, 2, 2, final=False))
    assert after(both, decision(1, epoch=2, sinks=in_driver)).decided == 1


def test_staged_data_must_live_through_two_commit_attempts() -> None:
    assert refused(running(), decision(1, remaining_life_seconds=119.9)) is Refusal.EXPIRES_TOO_SOON
    assert after(running(), decision(1, remaining_life_seconds=120.0)).decided == 1


@pytest.mark.parametrize(
    ("place", "refusal"),
    [
        (position(1, "query-2"), Refusal.QUERY_CHANGED),
        (position(0), Refusal.OLDER_BATCH),
        (Position("query-1", 0, offset(0), offset(9)), Refusal.OLDER_BATCH),
        (Position("query-1", 1, offset(7), offset(8)), Refusal.NOT_PREDECESSOR),
        (position(2), Refusal.NOT_PREDECESSOR),
    ],
)
def test_a_batch_starts_where_the_last_decision_ended(place: Position, refusal: Refusal) -> None:
    assert refused(decided(1), at(decision(2), position=place)) is refusal


def test_a_batch_number_may_be_skipped_by_spark_but_never_rows() -> None:
    skipping = Position("query-1", 5, offset(1), offset(2))
    assert after(decided(1), at(decision(2), position=skipping)).last == LastDecision(2, "record-2", skipping)


def test_a_batch_job_is_decided_once_whatever_the_position() -> None:
    ledger = after(running(), decision(1, batch="rev-1/0"))
    assert ledger.batches == ("rev-1/0",)
    assert refused(ledger, decision(2, batch="rev-1/0")) is Refusal.BATCH_DECIDED
    other = at(decision(2, batch="rev-1/1"), position=position(0))
    assert after(ledger, other).batches == ("rev-1/0", "rev-1/1")


def aborted_one() -> Ledger:
    fenced = (outcome(1, "a", OutcomeKind.FENCED), outcome(1, "b", OutcomeKind.FENCED))
    return after(aborting(decided(1), 1), report(*fenced))


def test_nothing_is_decided_during_an_abort_or_before_it_is_accepted() -> None:
    assert refused(aborting(decided(1, 2), 2), decision(3)) is Refusal.ABORTED
    ledger = aborted_one()
    assert ledger.aborts[0].accepted is False
    assert refused(ledger, decision(2)) is Refusal.ABORTED
