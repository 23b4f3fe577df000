"""The end of a job: `deletionPolicy` with its deadline, and in which order its objects are let go.

`plan` calls `depart` for a SinkJob that is being deleted. The ledger is let go before the SinkJob's finalizer is taken
off, so that what is decided is never lost by a crash between the two. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sinkoperator.actions import (
    Action,
    BeginAbort,
    Emit,
    OrphanLedger,
    PruneRevisions,
    ReleaseLedger,
    RemoveFinalizer,
)
from sinkoperator.course import UNWATCHED_SECONDS, Course, Phase
from sinkoperator.facts import Facts
from sinkoperator.lifecycle import ledger_trouble, stop
from sinkoperator.names import FORCE_DELETE_ANNOTATION, JOB_FINALIZER
from sinkoperator.observed import Trouble
from sinkoperator.starting import commit_only
from sinkruntime.protocol.ledger import FINAL_PARTS, CheckpointState, Ledger
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.quantities import Duration

_DEFAULTS = SinkJobSpec.model_fields
_POLICIES = ("Drain", "Abort", "Orphan")


def depart(facts: Facts) -> Course:
    """The course of a job that is being deleted."""
    job = facts.observed.job
    if JOB_FINALIZER not in job.finalizers:
        return Course(Phase.TERMINATING, facts.restarts, untouched=True)
    hurry = _hurry(facts)
    if hurry is not None:
        return _orphan(facts, hurry)
    trouble = ledger_trouble(facts)
    if trouble is not None and trouble.reason == "LedgerForeign":
        return Course(Phase.TERMINATING, facts.restarts, (RemoveFinalizer(why="the ledger is not this job's"),))
    left = max(0.1, _deadline(facts) - facts.observed.now)
    if trouble is not None:
        waiting = Trouble(trouble.reason, trouble.message, "mend it, or the ledger is kept as an orphan in the end")
        return Course(Phase.DRAINING, facts.restarts, stalled=waiting, look_again_seconds=left, untouched=True)
    policy = deletion_policy(job.raw)
    phase = Phase.ABORTING if policy == "Abort" else Phase.DRAINING
    working = tuple(pod for pod in facts.blocking if not pod.commit_only)
    if working:
        restarts, actions = stop(facts, working, "the job is deleted")
        waiting = Trouble("StoppingDriver", f"{working[0].name} ends at its next checkpoint boundary")
        return Course(phase, restarts, actions, waiting=waiting, look_again_seconds=min(left, UNWATCHED_SECONDS))
    if policy == "Orphan":
        return _orphan(facts, Emit("Orphaned", "deletionPolicy is Orphan: the ledger is kept, and what it owes"))
    return _finish(facts, phase, left)


def _finish(facts: Facts, phase: Phase, left: float) -> Course:
    """Commit or abort what is pending, clean up, let the ledger go, then the job."""
    ledger, found = facts.ledger, facts.observed.ledger
    if ledger is not None and found is not None and ledger.records:
        course = Course(phase, facts.restarts, waiting=_owing(facts), look_again_seconds=min(left, UNWATCHED_SECONDS))
        course = commit_only(facts, facts.restarts, course)
        first = abort_suffix(ledger) if phase is Phase.ABORTING else 0
        if first:
            abort = BeginAbort(first, "deletionPolicy", "the SinkJob was deleted with deletionPolicy: Abort")
            message = f"checkpoints {first} to {ledger.decided} are given up: deletionPolicy is Abort"
            course = replace(course, actions=(*course.actions, abort, Emit("CommitAborted", message, warning=True)))
        return course
    remaining = facts.blocking
    if remaining:
        restarts, actions = stop(facts, remaining, "nothing is owed any more")
        waiting = Trouble("StoppingDriver", f"waits until {remaining[0].name} is gone")
        return Course(phase, restarts, actions, waiting=waiting, look_again_seconds=min(left, UNWATCHED_SECONDS))
    why = "nothing is owed any more"
    release: tuple[Action, ...] = ()
    if found is not None and found.owner_uid == facts.observed.job.uid:
        release = (ReleaseLedger(found.uid, why=why),)
    return Course(Phase.TERMINATING, facts.restarts, (*release, *_forget(facts, set()), RemoveFinalizer(why=why)))


def _orphan(facts: Facts, event: Emit) -> Course:
    """Keep the ledger and the revisions that it names, though the job goes."""
    found = facts.observed.ledger
    actions: tuple[Action, ...] = ()
    if found is not None and found.owner_uid == facts.observed.job.uid:
        stays = found.deleting and not facts.observed.namespace_terminating
        actions = (event, OrphanLedger(found.uid, stays, why=event.message))
    named = {record.revision for record in facts.ledger.records} if facts.ledger else set()
    if found is None or facts.ledger is not None:
        actions = (*actions, *_forget(facts, named))
    return Course(Phase.TERMINATING, facts.restarts, (*actions, RemoveFinalizer(why=event.message)))


def _forget(facts: Facts, named: set[str]) -> tuple[Action, ...]:
    """Remove the revisions that are not named: nothing owns them, so that no garbage collector takes one too early."""
    names = tuple(sorted(revision.name for revision in facts.observed.revisions if revision.name not in named))
    return (PruneRevisions(names, why="the job goes"),) if names else ()


def _hurry(facts: Facts) -> Emit | None:
    """Why nothing is waited for any more: the event that says so."""
    observed, job = facts.observed, facts.observed.job
    if observed.namespace_terminating:
        return Emit("Orphaned", "the namespace is being deleted: nothing is waited for", warning=True)
    if job.annotations.get(FORCE_DELETE_ANNOTATION) == job.uid:
        return Emit("Orphaned", f"{FORCE_DELETE_ANNOTATION} asks for it: nothing is waited for", warning=True)
    if observed.now >= _deadline(facts):
        owed = f"{len(facts.pending)} checkpoints are pending" if facts.pending else "it was not done"
        message = f"deletionTimeout is over, and {owed}: the ledger is kept as an orphan"
        return Emit("DrainTimedOut", message, warning=True)
    return None


def _deadline(facts: Facts) -> float:
    job = facts.observed.job
    return (job.deleting_since or 0.0) + deletion_timeout_seconds(job.raw)


def _owing(facts: Facts) -> Trouble:
    if facts.pending:
        return Trouble("CommitsPending", f"{len(facts.pending)} checkpoints are pending")
    return Trouble("Cleaning", "what the last commits left behind is removed")


def abort_suffix(ledger: Ledger) -> int:
    """The first of the longest pending suffix of which no sink has committed anything; 0: there is none."""
    first = 0
    for record in reversed(ledger.records):
        landed = any(part.state in FINAL_PARTS or part.done for part in record.parts.values())
        if landed or record.state is not CheckpointState.DECIDED:
            break
        first = record.number
    return first


def deletion_policy(raw: Mapping[str, Any]) -> str:
    """As the manifest says it, valid or not in other fields."""
    said = raw.get("deletionPolicy")
    return str(said if said in _POLICIES else _DEFAULTS["deletion_policy"].default)


def deletion_timeout_seconds(raw: Mapping[str, Any]) -> float:
    """The same, in seconds."""
    try:
        return Duration.parse(str(raw.get("deletionTimeout", ""))).seconds
    except (ValueError, OverflowError):
        default: Duration = _DEFAULTS["deletion_timeout"].default
        return default.seconds
