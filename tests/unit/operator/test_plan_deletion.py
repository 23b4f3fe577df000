"""The end of a job: `deletionPolicy` with its deadline, and the order in which its objects are let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import BeginAbort, OrphanLedger, PruneRevisions, ReleaseLedger, RemoveFinalizer
from sinkoperator.deletion import abort_suffix, deletion_policy, deletion_timeout_seconds
from sinkoperator.names import FORCE_DELETE_ANNOTATION
from sinkoperator.observed import Observed, Trouble
from sinkoperator.plan import plan
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, PartState
from tests.unit.operator.plan_world import (
    NOW,
    UID,
    acts,
    condition,
    driver,
    held,
    job,
    kinds,
    ledger,
    observed,
    part,
    raw_of,
    record,
    revision,
    told,
)

GO = ["StopCoordinator", "RemoveFinalizer"]


def deleted(found: Ledger | None, *drivers: Any, since: float = NOW - 10, **changes: Any) -> Observed:
    """A job that is being deleted since 10 s."""
    raw = raw_of(**changes)
    made = observed(found, *drivers, raw=raw)
    return replace(made, job=job(raw, deleting_since=since))


def test_drain_stops_the_driver_commits_lets_the_ledger_go_then_the_job() -> None:
    stopping = plan(deleted(ledger(2, record(1, 2)), driver(2)))
    assert kinds(stopping) == ["StopDriver"]
    assert stopping.status["phase"] == "Draining"
    assert told(stopping)[0] == "Draining"
    waiting = plan(deleted(ledger(2, record(1, 2))))
    assert kinds(waiting) == []
    assert waiting.look_again_seconds <= 15
    cleaning = record(1, 2, {"lake": part(PartState.COMMITTED)}, state=CheckpointState.COMMITTED)
    assert kinds(plan(deleted(ledger(2, cleaning)))) == [], "clean-up is owed, too"
    done = plan(deleted(ledger(2)))
    assert kinds(done) == ["StopCoordinator", "ReleaseLedger", "PruneRevisions", "RemoveFinalizer"]
    assert done.status["phase"] == "Terminating"


def test_a_job_without_a_ledger_goes_at_once() -> None:
    assert kinds(plan(replace(deleted(None), revisions=()))) == GO


def test_a_job_without_our_finalizer_is_not_touched() -> None:
    seen = deleted(ledger(2, record(1, 2)))
    assert acts(plan(replace(seen, job=replace(seen.job, finalizers=("another/one",))))) == []


def test_drain_commits_what_the_driver_commits() -> None:
    owed = record(1, 2, {"lake": part(authority=Authority.EPOCH)})
    seen = deleted(ledger(2, owed), driver(2))
    stopping = plan(seen)
    gone = replace(seen, drivers=(), job=replace(seen.job, status=dict(stopping.status)))
    assert kinds(plan(gone)) == ["RaiseEpoch", "EnsureAccess", "CreateDriver"]
    only = replace(gone, drivers=(driver(3, commit_only=True),), ledger=held(ledger(3, owed)))
    assert kinds(plan(only)) == []
    done = replace(only, ledger=held(ledger(3)))
    assert kinds(plan(done)) == ["StopDriver"], "its job is done"


def test_the_deadline_turns_drain_into_orphan_with_an_event() -> None:
    seen = deleted(ledger(2, record(1, 2)), driver(2), since=NOW - 301)
    made = plan(seen)
    assert kinds(made) == ["StopCoordinator", "OrphanLedger", "RemoveFinalizer"]
    assert "DrainTimedOut" in told(made)
    former = replace(revision(), name="former")
    kept = plan(replace(seen, revisions=(*seen.revisions, former)))
    pruned = [action.revisions for action in acts(kept) if isinstance(action, PruneRevisions)]
    assert pruned == [("former",)], "its records name the other one"
    later = plan(replace(seen, ledger=held(ledger(2, record(1, 2)), owner_uid="", finalizer=False)))
    assert kinds(later) == GO, "the ledger was let go before a crash"


def test_the_deadline_is_looked_at_in_time() -> None:
    made = plan(deleted(ledger(2, record(1, 2)), since=NOW - 295))
    assert made.look_again_seconds <= 5


def test_orphan_stops_the_driver_first_and_keeps_what_is_owed() -> None:
    seen = deleted(ledger(2, record(1, 2)), driver(2), deletionPolicy="Orphan")
    assert kinds(plan(seen)) == ["StopDriver"]
    made = plan(replace(seen, drivers=()))
    assert kinds(made) == ["StopCoordinator", "OrphanLedger", "RemoveFinalizer"]
    assert "Orphaned" in told(made)


@pytest.mark.parametrize("terminating", [True, False])
def test_in_a_terminating_namespace_or_by_the_annotation_nothing_is_waited_for(terminating: bool) -> None:
    seen = deleted(ledger(2, record(1, 2)), driver(2))
    notes = {} if terminating else {FORCE_DELETE_ANNOTATION: UID}
    hurry = replace(seen, namespace_terminating=terminating, job=replace(seen.job, annotations=notes))
    assert kinds(plan(hurry)) == ["StopCoordinator", "OrphanLedger", "RemoveFinalizer"]


def test_the_annotation_of_another_sinkjob_counts_for_nothing() -> None:
    seen = deleted(ledger(2, record(1, 2)))
    other = replace(seen, job=replace(seen.job, annotations={FORCE_DELETE_ANNOTATION: "another"}))
    assert kinds(plan(other)) == []


def test_abort_waits_for_the_driver_and_gives_up_what_no_sink_has() -> None:
    landed = record(1, 2, {"lake": part(PartState.COMMITTED), "b": part()})
    found = ledger(2, landed, record(2, 2), record(3, 2))
    assert kinds(plan(deleted(found, driver(2), deletionPolicy="Abort"))) == ["StopDriver"]
    made = plan(deleted(found, deletionPolicy="Abort"))
    assert [action.first for action in acts(made) if isinstance(action, BeginAbort)] == [2]
    assert kinds(made) == ["BeginAbort"]
    assert type(acts(made)[0]).__name__ == "RunCoordinator", "who is to begin it must run"
    assert made.status["phase"] == "Aborting"
    assert "CommitAborted" in told(made)
    begun = replace(record(2, 2), state=CheckpointState.ABORTING)
    assert kinds(plan(deleted(ledger(2, begun), deletionPolicy="Abort"))) == [], "it is begun once"


def test_the_suffix_that_can_be_aborted_ends_at_what_has_landed() -> None:
    assert abort_suffix(ledger(1)) == 0
    assert abort_suffix(ledger(1, record(4), record(5))) == 4
    half = record(4, 1, {"lake": part(done=((0, 0),))})
    assert abort_suffix(ledger(1, record(3), half, record(5))) == 5
    assert abort_suffix(ledger(1, record(3), replace(record(4), state=CheckpointState.ABORTING))) == 0


def test_a_ledger_that_cannot_be_read_is_kept_as_an_orphan_in_the_end() -> None:
    bad = held(None, trouble=Trouble("LedgerCorrupt", "checksum", "restore it"))
    seen = replace(deleted(None), ledger=bad)
    made = plan(seen)
    assert acts(made) == []
    assert condition(made, "Stalled") == ("True", "LedgerCorrupt")
    late = replace(seen, job=replace(seen.job, deleting_since=NOW - 400))
    assert kinds(plan(late)) == ["StopCoordinator", "OrphanLedger", "RemoveFinalizer"]


def test_a_ledger_that_is_being_deleted_itself_keeps_its_finalizer_as_an_orphan() -> None:
    late = deleted(ledger(2, record(1, 2)), since=NOW - 400)
    deleting = replace(late, ledger=held(ledger(2, record(1, 2)), deleting=True))
    assert [action.keep_finalizer for action in acts(plan(deleting)) if isinstance(action, OrphanLedger)] == [True]
    gone = replace(deleting, namespace_terminating=True)
    assert [action.keep_finalizer for action in acts(plan(gone)) if isinstance(action, OrphanLedger)] == [False]


def test_another_sinkjobs_ledger_is_left_alone() -> None:
    seen = replace(deleted(None), ledger=held(ledger(2, record(1, 2)), owner_uid="another"))
    assert kinds(plan(seen)) == GO, "and so are the revisions that it may need"


@pytest.mark.parametrize(
    ("raw", "policy", "seconds"),
    [
        ({}, "Drain", 300),
        ({"deletionPolicy": "Abort", "deletionTimeout": "10s"}, "Abort", 10),
        ({"deletionPolicy": "Bury", "deletionTimeout": "soon"}, "Drain", 300),
        ({"deletionPolicy": ["Drain"], "deletionTimeout": 7, "sinks": []}, "Drain", 300),
    ],
)
def test_an_invalid_manifest_can_be_deleted_by_its_own_policy(raw: Any, policy: str, seconds: float) -> None:
    assert deletion_policy(raw) == policy
    assert deletion_timeout_seconds(raw) == seconds


def test_the_ledger_is_let_go_before_the_job() -> None:
    order = [type(action) for action in acts(plan(deleted(ledger(2))))]
    assert order.index(ReleaseLedger) < order.index(RemoveFinalizer)
