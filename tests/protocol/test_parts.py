"""What outcomes do to parts and checkpoints: every pair of states, legal and illegal, and every transition."""

from dataclasses import replace
from itertools import product

import pytest

from sinkruntime.protocol.events import Action, Effect, Forget, Outcome, OutcomeKind, Refusal, Release
from sinkruntime.protocol.ledger import HISTORY_MAX, CheckpointState, Ledger, Part, PartState, Settled, SinkEntry
from sinkruntime.protocol.machine import outstanding, step
from sinkruntime.protocol.table import CHECKPOINTS, OWED, PARTS, Fact
from tests.protocol.build import (
    EPOCH,
    TOKEN,
    aborting,
    after,
    committed,
    decided,
    decision,
    in_state,
    outcome,
    part_of,
    refused,
    report,
    running,
    stored,
)

C, P, K = CheckpointState, PartState, OutcomeKind

#: Which part states a checkpoint can have in each of its states.
REACHABLE = {
    C.DECIDED: {P.PENDING, P.IN_DOUBT, P.HELD, P.COMMITTED, P.GIVEN_UP},
    C.ABORTING: {P.PENDING, P.IN_DOUBT, P.HELD, P.FENCED},
    C.COMMITTED: {P.COMMITTED, P.GIVEN_UP, P.CLEANED},
    C.ABORTED: {P.FENCED, P.CLEANED},
    C.SETTLED: {P.CLEANED},
}
TRIED = {K.COMMITTED: P.COMMITTED, K.REFUSED: P.HELD, K.UNKNOWN: P.IN_DOUBT, K.PROGRESS: P.PENDING}
FENCING = {K.COMMITTED: P.COMMITTED, K.UNKNOWN: P.IN_DOUBT, K.FENCED: P.FENCED, K.PROGRESS: P.PENDING}
#: Written down a second time, by hand: the machine's own table is what is tested.
LEGAL = {
    (C.DECIDED, P.PENDING): {**TRIED, K.ABSENT: P.PENDING},
    (C.DECIDED, P.IN_DOUBT): {**TRIED, K.ABSENT: P.PENDING},
    (C.DECIDED, P.HELD): {
        K.COMMITTED: P.COMMITTED,
        K.REFUSED: P.HELD,
        K.UNKNOWN: P.IN_DOUBT,
        K.ABSENT: P.HELD,
        K.PROGRESS: P.HELD,
    },
    (C.DECIDED, P.COMMITTED): {K.COMMITTED: P.COMMITTED},
    (C.ABORTING, P.PENDING): FENCING,
    (C.ABORTING, P.IN_DOUBT): FENCING,
    (C.ABORTING, P.HELD): {**FENCING, K.PROGRESS: P.HELD},
    (C.ABORTING, P.FENCED): {K.FENCED: P.FENCED},
    (C.COMMITTED, P.COMMITTED): {K.COMMITTED: P.COMMITTED, K.CLEANED: P.CLEANED},
    (C.COMMITTED, P.GIVEN_UP): {K.CLEANED: P.CLEANED},
    (C.ABORTED, P.FENCED): {K.CLEANED: P.CLEANED},
}
#: A second sink that keeps the checkpoint in its state, so that the first one's part can be looked at.
ANCHOR = {
    C.DECIDED: P.PENDING,
    C.ABORTING: P.PENDING,
    C.COMMITTED: P.COMMITTED,
    C.ABORTED: P.FENCED,
    C.SETTLED: P.CLEANED,
}
EVERY = [(c, p, k) for c, states in REACHABLE.items() for p, k in product(sorted(states), K)]


def anchored(state: CheckpointState, part: PartState) -> Ledger:
    """Checkpoint 1 in `state`, its sink `a` in `part`, and sink `b` such that the checkpoint stays where it is."""
    ledger = decided(1)
    parts = {"a": Part(state=part), "b": Part(state=ANCHOR[state])}
    return replace(ledger, records=(replace(ledger.records[0], state=state, parts=parts, superseded=("object",)),))


@pytest.mark.parametrize(("state", "part", "kind"), EVERY)
def test_every_outcome_in_every_state(state: CheckpointState, part: PartState, kind: OutcomeKind) -> None:
    ledger = anchored(state, part)
    event = report(outcome(1, "a", kind))
    expected = LEGAL.get((state, part), {}).get(kind)
    if expected is None:
        assert refused(ledger, event) is Refusal.NOT_ALLOWED
        return
    taken = after(ledger, event)
    found = taken.record(1)
    assert found is not None
    assert found.parts["a"].state is expected
    lifted = state is C.ABORTING and kind is K.COMMITTED
    assert found.state is (C.DECIDED if lifted else state)


def test_the_table_has_no_row_that_is_not_reachable() -> None:
    reachable = {(part, kind) for (_, part), rows in LEGAL.items() for kind in rows}
    assert set(PARTS) == reachable
    assert set(OWED) <= {(state, part) for state, parts in REACHABLE.items() for part in parts}


def test_the_whole_ledger_after_a_commit() -> None:
    ledger = decided(1)
    made, effects = step(ledger, report(outcome(1, "a", K.COMMITTED)))
    only = ledger.records[0]
    parts = {"a": Part(state=P.COMMITTED, attempts=1), "b": Part()}
    assert made == replace(
        ledger,
        records=(replace(only, parts=parts),),
        sinks={"a": SinkEntry(since=1, committed=1, evidence=1), "b": SinkEntry(since=1)},
    )
    assert effects == ()


def test_a_checkpoint_is_committed_when_all_its_sinks_are() -> None:
    ledger = committed(decided(1), 1, "a")
    assert ledger.records[0].state is C.DECIDED
    made, effects = step(ledger, report(outcome(1, "b", K.COMMITTED)))
    assert made.records[0].state is C.COMMITTED
    assert effects == (Effect(Action.CLEAN, 1, "a"), Effect(Action.CLEAN, 1, "b"))


def test_a_cleaned_checkpoint_without_payload_objects_leaves_the_ledger() -> None:
    ledger = committed(decided(1), 1, "a", "b")
    ledger = after(ledger, report(outcome(1, "a", K.CLEANED)))
    assert part_of(ledger, 1, "a").state is P.CLEANED
    made, effects = step(ledger, report(outcome(1, "b", K.CLEANED)))
    assert made == replace(
        ledger, records=(), history=(Settled(1, 1, "rev-1", 0, '{"x":0}', '{"x":1}', {"a": 0, "b": 0}),)
    )
    assert effects == ()


@pytest.mark.parametrize("where", ["committable", "states"])
def test_a_cleaned_checkpoint_with_payload_objects_is_settled_until_they_are_removed(where: str) -> None:
    if where == "committable":
        ledger = after(running(), decision(1, sinks={"a": Part(payload=stored("1-abc"))}))
        number = 1
    else:
        ledger = after(running(), decision(1, states={"a": stored("1-abc")}, sinks={"a": Part()}))
        ledger = after(committed(ledger, 1, "a"), report(outcome(1, "a", K.CLEANED)))
        ledger = after(ledger, decision(2, sinks={"a": Part()}))
        number = 2
    ledger, effects = step(committed(ledger, number, "a"), report(outcome(number, "a", K.CLEANED)))
    assert [r.state for r in ledger.records] == [C.SETTLED]
    assert effects == (Effect(Action.REMOVE_PAYLOADS, number),)
    forgotten, effects = step(ledger, Forget(1, (number,)))
    assert forgotten == replace(ledger, records=(), history=forgotten.history)
    assert [entry.number for entry in forgotten.history] == list(range(1, number + 1))
    assert effects == ()


def test_only_the_newest_settled_checkpoints_are_kept_for_people() -> None:
    ledger = running()
    for number in range(1, HISTORY_MAX + 3):
        ledger = committed(after(ledger, decision(number)), number, "a", "b")
        ledger = after(ledger, report(outcome(number, "a", K.CLEANED), outcome(number, "b", K.CLEANED)))
    assert ledger.records == ()
    assert [entry.number for entry in ledger.history] == list(range(3, HISTORY_MAX + 3))


def test_only_settled_checkpoints_are_forgotten_and_each_may_be_twice() -> None:
    ledger = committed(decided(1), 1, "a", "b")
    assert refused(ledger, Forget(1, (1,))) is Refusal.NOT_ALLOWED
    assert after(running(), Forget(1, (1,))) == running()


@pytest.mark.parametrize(("number", "sink"), [(2, "a"), (1, "z")])
def test_an_outcome_of_what_is_not_on_record_is_refused(number: int, sink: str) -> None:
    assert refused(decided(1), report(outcome(number, sink, K.COMMITTED))) is Refusal.UNKNOWN_PART


@pytest.mark.parametrize("state", [P.PENDING, P.IN_DOUBT, P.HELD])
def test_an_earlier_checkpoint_of_the_sink_is_committed_first(state: PartState) -> None:
    ledger = decided(1, 2)
    first, second = ledger.records
    ledger = replace(ledger, records=(replace(first, parts={**first.parts, "a": Part(state=state)}), second))
    assert refused(ledger, report(outcome(2, "a", K.COMMITTED))) is Refusal.OUT_OF_ORDER
    both = report(outcome(1, "a", K.COMMITTED), outcome(2, "a", K.COMMITTED))
    assert after(ledger, both).sinks["a"] == SinkEntry(since=1, committed=2, evidence=2)


def test_a_sink_does_not_wait_for_another_sink() -> None:
    ledger = committed(decided(1, 2), 1, "a")
    ledger, effects = step(ledger, report(outcome(2, "a", K.COMMITTED)))
    assert ledger.sinks["a"].committed == 2
    assert effects == ()
    assert [(e.number, e.sink) for e in outstanding(ledger) if e.action is Action.COMMIT] == [(1, "b")]


def test_a_held_sink_commits_nothing_later_and_the_others_go_on() -> None:
    ledger = after(decided(1, 2), report(outcome(1, "a", K.REFUSED, reason="QuotaExceeded", message="no room")))
    assert part_of(ledger, 1, "a") == Part(state=P.HELD, attempts=1, reason="QuotaExceeded", message="no room")
    owed = [(e.action, e.number, e.sink) for e in outstanding(ledger) if e.action is not Action.RECOVER]
    assert owed == [(Action.HOLD, 1, "a"), (Action.COMMIT, 1, "b")]


def test_a_report_is_taken_whole_or_not_at_all() -> None:
    good, bad = outcome(1, "a", K.COMMITTED), outcome(9, "a", K.COMMITTED)
    assert refused(decided(1), report(good, bad)) is Refusal.UNKNOWN_PART


def test_progress_is_kept_until_the_part_ends() -> None:
    ledger = after(decided(1), report(outcome(1, "a", K.PROGRESS, done=((0, 2), (5, 5)))))
    assert part_of(ledger, 1, "a") == Part(done=((0, 2), (5, 5)), attempts=1)
    ledger = after(ledger, report(outcome(1, "a", K.UNKNOWN, reason="OutOfTime")))
    assert part_of(ledger, 1, "a").done == ((0, 2), (5, 5))
    ended = part_of(after(ledger, report(outcome(1, "a", K.COMMITTED))), 1, "a")
    assert ended == Part(state=P.COMMITTED, attempts=3)


def test_an_updated_payload_replaces_the_old_whose_object_is_removed_with_the_checkpoint() -> None:
    ledger = after(running(), decision(1, sinks={"a": Part(payload=stored("1-old"))}))
    ledger = after(ledger, report(outcome(1, "a", K.PROGRESS, payload=stored("1-new"))))
    assert part_of(ledger, 1, "a").payload == stored("1-new")
    assert ledger.records[0].superseded == ("1-old",)
    same = after(ledger, report(outcome(1, "a", K.PROGRESS, payload=stored("1-new"))))
    assert same.records[0].superseded == ("1-old",), "the object in use is not superseded by itself"


def test_rows_are_counted_once_when_their_part_is_committed() -> None:
    ledger = decided(1, 2, sinks={"a": Part(rows=5), "b": Part(rows=3)})
    told = report(outcome(1, "a", K.COMMITTED))
    ledger = after(ledger, replace(told, reported_ms=100), replace(told, reported_ms=200))
    assert ledger.sinks["a"] == SinkEntry(since=1, committed=1, evidence=1, rows=5, committed_ms=100)
    ledger = after(ledger, replace(report(outcome(2, "a", K.COMMITTED)), reported_ms=90))
    assert (ledger.sinks["a"].rows, ledger.sinks["a"].committed_ms) == (10, 100), "a clock that was set back"
    assert ledger.sinks["b"] == SinkEntry(since=1)


def test_a_commit_without_evidence_leaves_the_expected_evidence() -> None:
    ledger = after(decided(1, 2), report(outcome(1, "a", K.COMMITTED), outcome(2, "a", K.COMMITTED, evidence=False)))
    assert ledger.sinks["a"] == SinkEntry(since=1, committed=2, evidence=1)


@pytest.mark.parametrize("state", sorted(P))
def test_release_has_the_target_asked_about_what_is_held_and_nothing_else(state: PartState) -> None:
    ledger = in_state(C.DECIDED, state)
    released = part_of(after(ledger, Release(TOKEN, 1)), 1, "a").state
    assert released is (P.IN_DOUBT if state is P.HELD else state)
    assert after(ledger, Release(EPOCH, 1)) == ledger, "the token's parts are not the driver's to release"


def test_release_owes_a_probe() -> None:
    ledger = after(decided(1), report(outcome(1, "a", K.REFUSED, reason="X")))
    _, effects = step(ledger, Release(TOKEN, 1))
    assert effects == (Effect(Action.PROBE, 1, "a"),)


def test_release_during_an_abort_changes_nothing() -> None:
    held = after(decided(1), report(outcome(1, "a", K.REFUSED, reason="X")))
    ledger = aborting(held, 1)
    assert after(ledger, Release(TOKEN, 1)) == ledger


TRANSITIONS = {
    (C.DECIDED, Fact.ALL_COMMITTED): (C.DECIDED, P.PENDING, outcome(1, "a", K.COMMITTED), C.COMMITTED),
    (C.ABORTING, Fact.PART_LANDED): (C.ABORTING, P.IN_DOUBT, outcome(1, "a", K.COMMITTED), C.COMMITTED),
    (C.ABORTING, Fact.ALL_FENCED): (C.ABORTING, P.PENDING, outcome(1, "a", K.FENCED), C.ABORTED),
    (C.COMMITTED, Fact.ALL_CLEANED): (C.COMMITTED, P.COMMITTED, outcome(1, "a", K.CLEANED), None),
    (C.ABORTED, Fact.ALL_CLEANED): (C.ABORTED, P.FENCED, outcome(1, "a", K.CLEANED), None),
}


@pytest.mark.parametrize(
    ("state", "part", "event", "end"), TRANSITIONS.values(), ids=[f"{c}-{f}" for c, f in TRANSITIONS]
)
def test_every_transition_of_a_checkpoint_with_one_sink(
    state: CheckpointState, part: PartState, event: Outcome, end: CheckpointState | None
) -> None:
    found = after(in_state(state, part), report(event)).record(1)
    assert (found.state if found else None) is end


def test_every_row_of_the_checkpoint_table_is_tested() -> None:
    by_event = {(C.DECIDED, Fact.ABORT_BEGUN), (C.SETTLED, Fact.PAYLOADS_REMOVED)}  # in test_abort and above
    assert set(CHECKPOINTS) == set(TRANSITIONS) | by_event
