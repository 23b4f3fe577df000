"""The plan of one look at a job: from what was gathered to actions, status and the time of the next look. Pure.

`reconcile` calls `plan` and applies the actions in order. Intent is recorded before effect: the epoch is raised in the
ledger before its driver is created, an end is accounted for in the status before the restart, the ledger is let go
before the SinkJob. So a crash anywhere leaves something from which the next look goes on.
"""

from __future__ import annotations

from sinkoperator.actions import (
    Action,
    AddFinalizer,
    AdoptLedger,
    CreateDriver,
    CreateLedger,
    Decision,
    DeleteJob,
    DeletePod,
    Emit,
    EnsureCommitter,
    EnsureRevision,
    PruneCommitterObjects,
    PruneDriverObjects,
    PruneRevisions,
    RemoveFinalizer,
    RunCoordinator,
    StopCommitter,
    StopCoordinator,
)
from sinkoperator.conditions import condition_of
from sinkoperator.coordination import committer_rest_seconds, coordinate
from sinkoperator.course import CALM_SECONDS, UNWATCHED_SECONDS, Course
from sinkoperator.deletion import depart
from sinkoperator.facts import Facts, facts_of
from sinkoperator.lifecycle import course as course_of
from sinkoperator.moments import seconds_of
from sinkoperator.names import JOB_FINALIZER
from sinkoperator.observed import Observed
from sinkoperator.restarts import read_restarts
from sinkoperator.status import status_of
from sinkoperator.transitions import events


def plan(observed: Observed) -> Decision:
    """What is to be done about the job now."""
    facts = facts_of(observed)
    leaving = observed.job.deleting_since is not None
    course = depart(facts) if leaving else course_of(facts)
    status = status_of(facts, course)
    actions = course.actions
    if not course.untouched:
        actions = _kept(facts, _with_coordination(facts, actions))
    if not course.untouched and not leaving:
        actions = (*_grounds(facts, course), *actions, *_prune(facts))
    pause = min(CALM_SECONDS, course.look_again_seconds, *_waits(facts))
    if not leaving:
        expiry = _expiry(facts, status)
        if expiry is not None and expiry <= observed.now:
            actions = (*actions, DeleteJob(why="ttlSecondsAfterFinished is over"))
        elif expiry is not None:
            pause = min(pause, max(1.0, expiry - observed.now))
    told = events(observed.job.status, status, course, actions)
    urgent = course.restarts != read_restarts(observed.job.status)
    return Decision((*actions, *told), status, urgent, pause)


def _grounds(facts: Facts, course: Course) -> tuple[Action, ...]:
    """What everything else rests on: the SinkJob's finalizer, the ledger."""
    job, found = facts.observed.job, facts.observed.ledger
    actions: list[Action] = []
    if JOB_FINALIZER not in job.finalizers:
        actions.append(AddFinalizer(why="its deletion waits for deletionPolicy"))
    if found is None and any(isinstance(action, CreateDriver) for action in course.actions):
        if job.status.get("epoch"):
            message = "the ledger is gone; a new one is made, and the driver's start check finds out what that means"
            actions.append(Emit("LedgerMissing", message, warning=True))
        actions.append(CreateLedger(why="the job has none"))
    if found is not None and (found.owner_uid != job.uid or not found.finalizer) and not found.deleting:
        actions.append(AdoptLedger(found.uid, why="an earlier SinkJob of this name left it"))
    return tuple(actions)


def _with_coordination(facts: Facts, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Commits come first: they go on although a driver cannot be created. Nobody commits once the job is let go."""
    if not any(isinstance(action, RemoveFinalizer) for action in actions):
        return (*coordinate(facts), *actions)
    ends: list[Action] = [StopCoordinator(why="the job is let go")]
    ends += [StopCommitter(pod.name, pod.uid, why="the job is let go") for pod in facts.observed.committers]
    return (*ends, *actions)


def _kept(facts: Facts, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The present revision is kept before anything is done under it: workers and pods read it by its name."""
    under = (CreateDriver, EnsureCommitter, RunCoordinator)
    used = {action.revision for action in actions if isinstance(action, under)}
    if facts.revision not in used or facts.known_revision(facts.revision) is not None:
        return actions
    return (EnsureRevision(facts.revision, why="it is used from now on"), *actions)


def _prune(facts: Facts) -> tuple[Action, ...]:
    """What nothing refers to any more. The last driver's pod stays: people read its log."""
    observed, ledger = facts.observed, facts.ledger
    if ledger is None:
        return ()
    last = max((pod.epoch for pod in observed.drivers if pod.ours), default=0)
    actions: list[Action] = [
        DeletePod(pod.name, pod.uid, why="a later driver has its place")
        for pod in observed.drivers
        if pod.ended and pod.ours and pod.epoch < last and pod.deleting_since is None
    ]
    present = {pod.epoch for pod in observed.drivers}
    epochs = tuple(sorted(epoch for epoch in observed.driver_configs - present if epoch < facts.epoch))
    if epochs:
        actions.append(PruneDriverObjects(epochs, why="their pods are gone"))
    actions += _prune_committers(observed)
    used = {facts.revision, *(record.revision for record in ledger.records)}
    used |= {pod.revision for pod in observed.drivers} | {pod.revision for pod in observed.committers}
    newest = sorted(observed.revisions, key=lambda revision: revision.number, reverse=True)
    most = max(1, observed.settings.revisions_kept_max)
    old = tuple(sorted(revision.name for revision in newest[most:] if revision.name not in used))
    if old:
        actions.append(PruneRevisions(old, why="nothing refers to them"))
    return tuple(actions)


def _prune_committers(observed: Observed) -> list[Action]:
    """The newest ConfigMap stays: its pod may be about to be created, by another replica too."""
    pods = {pod.number for pod in observed.committers}
    newest = max(pods | observed.committer_configs, default=0)
    numbers = tuple(sorted(observed.committer_configs - pods - {newest}))
    return [PruneCommitterObjects(numbers, why="their pods are gone")] if numbers else []


def _waits(facts: Facts) -> list[float]:
    """Until something is due of which no watch tells."""
    observed = facts.observed
    bound = observed.settings.node_lost_seconds
    due = [
        max(1.0, pod.deleting_since + pod.grace_seconds + bound - observed.now)
        for pod in facts.blocking
        if pod.deleting_since is not None
    ]
    rest = committer_rest_seconds(facts)
    return [*due, *([max(0.1, rest)] if rest else []), *([UNWATCHED_SECONDS] if observed.refused else [])]


def _expiry(facts: Facts, status: dict[str, object]) -> float | None:
    """When a finished job is deleted, wall seconds; None: never, or it has not finished."""
    if facts.spec is None or facts.spec.ttl_seconds_after_finished is None:
        return None
    for kind in ("Complete", "Failed"):
        since = condition_of(status, kind).get("lastTransitionTime")
        if since:
            return seconds_of(str(since)) + facts.spec.ttl_seconds_after_finished
    return None
