"""Aborts: begun for a whole suffix, fenced newest first, lifted where a commit had landed, recorded before removal."""

from dataclasses import replace

from sinkruntime.protocol.events import Action, BeginAbort, Effect, Forget, OutcomeKind, RaiseToken, Refusal
from sinkruntime.protocol.ledger import Abort, CheckpointState, Ledger, Part, PartState
from sinkruntime.protocol.machine import outstanding, step
from tests.protocol.build import (
    aborting,
    after,
    committed,
    decided,
    decision,
    outcome,
    part_of,
    refused,
    report,
    running,
    stored,
)

C, P, K = CheckpointState, PartState, OutcomeKind


def fenced(ledger: Ledger, number: int, *sinks: str) -> Ledger:
    return after(ledger, report(*(outcome(number, sink, K.FENCED) for sink in sinks)))


def states(ledger: Ledger) -> dict[int, CheckpointState]:
    return {record.number: record.state for record in ledger.records}


def fences(ledger: Ledger) -> list[tuple[int, str]]:
    return [(e.number, e.sink) for e in outstanding(ledger) if e.action is Action.FENCE]


def test_an_abort_takes_the_whole_suffix_and_says_who_and_why() -> None:
    ledger = decided(1, 2, 3)
    made, effects = step(ledger, BeginAbort(1, 2, "ann", "wrong table"))
    expected = [
        record if record.number == 1 else replace(record, state=C.ABORTING, who="ann", why="wrong table")
        for record in ledger.records
    ]
    assert made == replace(ledger, records=tuple(expected))
    assert effects == (Effect(Action.FENCE, 3, "a"), Effect(Action.FENCE, 3, "b"))


def test_a_checkpoint_of_which_a_sink_is_committed_is_never_aborted() -> None:
    ledger = committed(decided(1, 2), 1, "a")
    assert refused(ledger, BeginAbort(1, 1, "ann", "why")) is Refusal.HAS_COMMITTED_PART
    assert states(aborting(ledger, 2)) == {1: C.DECIDED, 2: C.ABORTING}


def test_there_must_be_something_to_abort() -> None:
    assert refused(decided(1), BeginAbort(1, 2, "ann", "why")) is Refusal.UNKNOWN_PART
    assert refused(committed(decided(1), 1, "a", "b"), BeginAbort(1, 1, "ann", "why")) is Refusal.UNKNOWN_PART


def test_an_abort_under_way_can_be_widened_and_not_begun_again() -> None:
    ledger = aborting(decided(1, 2, 3), 3)
    assert refused(ledger, BeginAbort(1, 3, "bob", "again")) is Refusal.UNKNOWN_PART
    wider = after(ledger, BeginAbort(1, 2, "bob", "more"))
    assert states(wider) == {1: C.DECIDED, 2: C.ABORTING, 3: C.ABORTING}
    assert [record.who for record in wider.records] == ["", "bob", "ann"]


def test_the_newest_is_fenced_first_and_recorded_before_anything_is_removed() -> None:
    ledger = aborting(decided(1, 2), 1)
    assert fences(ledger) == [(2, "a"), (2, "b")]
    ledger = fenced(ledger, 2, "a")
    assert ledger.aborts == ()
    assert [e.action for e in outstanding(ledger) if e.action is Action.DISCARD] == []
    made, effects = step(ledger, report(outcome(2, "b", K.FENCED)))
    assert made.aborts == (Abort(2, 2, "ann", "wrong table"),)
    assert states(made) == {1: C.ABORTING, 2: C.ABORTED}
    assert set(effects) == {
        Effect(Action.FENCE, 1, "a"),
        Effect(Action.FENCE, 1, "b"),
        Effect(Action.DISCARD, 2, "a"),
        Effect(Action.DISCARD, 2, "b"),
    }


def test_neighbours_of_one_word_grow_into_one_entry() -> None:
    ledger = fenced(fenced(aborting(decided(1, 2, 3), 2), 3, "a", "b"), 2, "a", "b")
    assert ledger.aborts == (Abort(2, 3, "ann", "wrong table"),)
    other = aborting(aborting(decided(1, 2), 2), 1, who="bob")
    other = fenced(fenced(other, 2, "a", "b"), 1, "a", "b")
    assert other.aborts == (Abort(2, 2, "ann", "wrong table"), Abort(1, 1, "bob", "wrong table"))


def test_an_accepted_entry_does_not_grow() -> None:
    ledger = fenced(aborting(decided(1, 2), 2), 2, "a", "b")
    ledger = replace(ledger, aborts=(replace(ledger.aborts[0], accepted=True),))
    ledger = fenced(aborting(ledger, 1), 1, "a", "b")
    assert [abort.accepted for abort in ledger.aborts] == [True, False]


def test_a_late_commit_lifts_the_abort_of_its_checkpoint_and_of_all_before() -> None:
    ledger = aborting(decided(1, 2, 3), 1)
    ledger = fenced(ledger, 3, "a", "b")
    ledger = fenced(ledger, 2, "b")
    made = after(ledger, report(outcome(2, "a", K.COMMITTED)))
    assert states(made) == {1: C.DECIDED, 2: C.DECIDED, 3: C.ABORTED}
    assert part_of(made, 2, "b").state is P.IN_DOUBT, "its fence is lifted by a later order, after a probe"
    assert [(record.who, record.why) for record in made.records[:2]] == [("", ""), ("", "")]
    assert made.aborts == (Abort(3, 3, "ann", "wrong table"),)
    assert fences(made) == []


def test_a_late_commit_of_the_only_sink_commits_the_checkpoint() -> None:
    ledger = aborting(after(running(), decision(1, sinks={"a": Part()})), 1)
    made = after(ledger, report(outcome(1, "a", K.COMMITTED)))
    assert states(made) == {1: C.COMMITTED}
    assert made.aborts == ()


def test_an_unknown_answer_to_a_fence_is_asked_again() -> None:
    ledger = after(aborting(decided(1), 1), report(outcome(1, "a", K.UNKNOWN, reason="CannotFence")))
    assert part_of(ledger, 1, "a").state is P.IN_DOUBT
    assert fences(ledger) == [(1, "a"), (1, "b")]


def test_a_takeover_goes_on_with_the_abort() -> None:
    ledger = fenced(aborting(decided(1), 1), 1, "a")
    taken = after(ledger, RaiseToken(2, "coordinator-2"))
    assert part_of(taken, 1, "a").state is P.FENCED
    assert part_of(taken, 1, "b").state is P.IN_DOUBT
    assert fences(taken) == [(1, "b")]


def test_an_aborted_checkpoint_leaves_when_what_it_staged_is_removed() -> None:
    ledger = after(running(), decision(1, sinks={"a": Part(payload=stored("1-abc"))}))
    ledger = fenced(aborting(ledger, 1), 1, "a")
    made, effects = step(ledger, report(outcome(1, "a", K.CLEANED)))
    assert states(made) == {1: C.SETTLED}
    assert effects == (Effect(Action.REMOVE_PAYLOADS, 1),)
    assert made.sinks["a"].committed == 0
    forgotten = after(made, Forget(1, (1,)))
    assert [(entry.number, entry.aborted) for entry in forgotten.history] == [(1, True)]


def test_a_held_part_can_be_aborted() -> None:
    ledger = after(decided(1), report(outcome(1, "a", K.REFUSED, reason="X", message="no")))
    ledger = fenced(aborting(ledger, 1), 1, "a", "b")
    assert states(ledger) == {1: C.ABORTED}


def test_a_checkpoint_of_which_a_writer_is_committed_is_never_aborted() -> None:
    ledger = after(decided(1), report(outcome(1, "a", K.PROGRESS, done=((0, 0),))))
    assert refused(ledger, BeginAbort(1, 1, "ann", "why")) is Refusal.HAS_COMMITTED_PART


def test_an_abort_is_lifted_where_some_writers_committables_had_landed() -> None:
    ledger = aborting(decided(1), 1)
    ledger = after(ledger, report(outcome(1, "b", K.FENCED), outcome(1, "a", K.PROGRESS, done=((0, 0),))))
    assert states(ledger) == {1: C.DECIDED}
    assert part_of(ledger, 1, "a").state is P.PENDING
    assert part_of(ledger, 1, "b").state is P.IN_DOUBT
