"""Who coordinates a job's commits: this operator, a committer pod (`runOn: Job`), or nobody, because nothing is owed.

`plan` calls `coordinate` after the driver's course is known. Two at once do no harm: the token in the ledger fences
the older one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkoperator.actions import Action, DeletePod, EnsureCommitter, RunCoordinator, StopCommitter, StopCoordinator
from sinkoperator.facts import Facts
from sinkoperator.observed import CommitterPod, Trouble
from sinkoperator.restarts import pause_after, pause_seconds
from sinkruntime.kube.names import committer_holder
from sinkruntime.protocol.ledger import Authority

#: Of the committer pods that have ended: how long the last one had waited tells how long the next one waits.
ENDED_KEPT = 2


def coordinate(facts: Facts) -> tuple[Action, ...]:
    """The actions that see to it that exactly one coordinates, or none."""
    wanted = _revision(facts) if _owed(facts) else ""
    pod = bool(wanted) and in_pod(facts)
    actions: list[Action] = []
    if wanted and not pod:
        sinks = frozenset(name for name, where in facts.observed.run_on.items() if where == "Driver")
        run = RunCoordinator(wanted, facts.intent, sinks, facts.gone_below, facts.retried, why="commits may be owed")
        actions.append(run)
    elif facts.observed.coordinator.running:
        actions.append(StopCoordinator(why="a committer pod coordinates" if pod else "nothing is owed"))
    return (*actions, *_committers(facts, wanted if pod else ""))


def not_begun(facts: Facts) -> Trouble | None:
    """Why no epoch may be raised yet: something is pending, and no coordinator has begun with what is asked for now.

    A driver's start check judges what is held as soon as `recover` has run for its epoch. Whoever began before the
    epoch was raised had tried again by then what the person wants tried again; an earlier coordinator had not.
    """
    if not facts.pending or _begun(facts):
        return None
    return Trouble("CommitsBegin", f"{len(facts.pending)} checkpoints are pending: their coordinator begins first")


def _begun(facts: Facts) -> bool:
    if not in_pod(facts):
        return facts.observed.coordinator.begun == facts.intent
    holder = facts.ledger.holder if facts.ledger else ""
    asked = [pod for pod in facts.observed.committers if pod.intent == facts.intent]
    return any(holder.startswith(committer_holder(pod.name, pod.uid) + "/") for pod in asked)


def _owed(facts: Facts) -> bool:
    """Whether commits, clean-ups or recovery are owed, or a driver may decide more at any time."""
    if facts.ledger is None:
        return False
    return bool(facts.live) or bool(facts.ledger.records) or facts.owed(Authority.TOKEN)


def _revision(facts: Facts) -> str:
    """The present revision; where the manifest is invalid the newest one that is kept."""
    newest = max(facts.observed.revisions, key=lambda revision: revision.number, default=None)
    return facts.revision or (newest.name if newest else "")


def in_pod(facts: Facts) -> bool:
    """Whether a sink of the job, or of a checkpoint that is not cleaned yet, commits in the job's own image."""
    if "Job" in facts.observed.run_on.values():
        return True
    named = {record.revision for record in facts.ledger.records} if facts.ledger else set()
    return any(_runs_in_job(revision.raw) for revision in facts.observed.revisions if revision.name in named)


def _runs_in_job(raw: Mapping[str, Any]) -> bool:
    """By the words of a manifest that was valid once: a class of the users' own is only in their image."""
    for sink in raw.get("sinks", ()):
        where = (sink.get("commit") or {}).get("runOn")
        if where == "Job" or (not where and ":" in sink.get("type", "")):
            return True
    return False


def _committers(facts: Facts, revision: str) -> tuple[Action, ...]:
    """One live committer pod for the present intent where `revision` is not "", else none."""
    pods = sorted(facts.observed.committers, key=lambda pod: pod.number)
    live = [pod for pod in pods if not pod.ended]
    ended = [pod for pod in pods if pod.ended]
    fit = [pod for pod in live if revision and (pod.revision, pod.intent) == (revision, facts.intent)]
    kept = next((pod for pod in reversed(fit) if pod.deleting_since is None), None)
    actions: list[Action] = [
        StopCommitter(pod.name, pod.uid, why="another one coordinates" if revision else "nothing is owed")
        for pod in live
        if pod is not kept and pod.deleting_since is None
    ]
    actions += [DeletePod(pod.name, pod.uid, why="it has ended") for pod in ended[:-ENDED_KEPT]]
    if revision and kept is None and not committer_rest_seconds(facts):
        # One that has a ConfigMap and no pod was begun and not finished, or its pod is long gone: it is used again.
        number = max([1, *(pod.number + 1 for pod in pods), *facts.observed.committer_configs])
        actions.append(EnsureCommitter(number, revision, why="commits may be owed"))
    return tuple(actions)


def committer_rest_seconds(facts: Facts) -> float:
    """How long the next committer pod waits still: longer after each that ended soon. Another intent never waits."""
    ended = sorted((pod for pod in facts.observed.committers if pod.ended), key=lambda pod: pod.number)
    if not ended or ended[-1].intent != facts.intent:
        return 0.0
    last, former = ended[-1], ended[-2] if len(ended) > 1 else None
    again = former is not None and former.intent == last.intent
    if former is None or not again or _end(last) - last.created >= facts.policy.reset_after.seconds:
        pause = pause_seconds(facts.policy, 1)
    else:
        pause = pause_after(facts.policy, max(0.0, last.created - _end(former)))
    return max(0.0, _end(last) + pause - facts.observed.now)


def _end(pod: CommitterPod) -> float:
    """Of a pod that has ended; nobody knows when an evicted one did."""
    return pod.created if pod.finished is None else pod.finished
