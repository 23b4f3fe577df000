"""The conditions of a SinkJob, such that kstatus, Argo CD and Flux read them rightly.

`Ready` says whether what is asked for is reached: also for a job that is suspended or has finished. `Reconciling` and
`Stalled` are there only while they are true. Called by `status`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sinkoperator.course import Course, Phase
from sinkoperator.facts import Facts
from sinkoperator.moments import moment
from sinkoperator.observed import Trouble
from sinkoperator.pods import unready
from sinkruntime.protocol.ledger import PartState

MESSAGE_CHARS_MAX = 1024

#: A prepared transaction so old is nobody's checkpoint under way any more.
STUCK_TRANSACTION_SECONDS = 3600.0

#: Phases in which what is asked for is reached, with the reason and message of `Ready`.
_REACHED = {
    Phase.RUNNING: Trouble("Running", "the driver works"),
    Phase.SUSPENDED: Trouble("Suspended", "nothing runs, nothing is pending"),
    Phase.SUCCEEDED: Trouble("Completed", "all is committed"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `status` None: it does not hold, and is left out."""

    type: str
    status: bool | None
    trouble: Trouble


def conditions(facts: Facts, course: Course) -> list[dict[str, Any]]:
    """All conditions; the time of the last transition is kept where the status is as it was."""
    stalled = course.stalled or _held(facts)
    found = [
        _ready(course, stalled),
        _reconciling(course, stalled),
        Condition("Stalled", True if stalled else None, stalled or Trouble("")),
        _accepted(facts),
        _driver_ready(facts, course),
        _commit_healthy(facts),
        _in_doubt(facts),
        _transactions_stuck(facts),
        _plain("Suspended", course.phase is Phase.SUSPENDED, "Suspended", "NotSuspended"),
        Condition("UpgradePending", course.upgrade is not None, course.upgrade or Trouble("UpToDate")),
        Condition("Complete", True if course.phase is Phase.SUCCEEDED else None, _REACHED[Phase.SUCCEEDED]),
        Condition("Failed", True if course.phase is Phase.FAILED else None, stalled or Trouble("Failed")),
    ]
    before = {entry.get("type"): entry for entry in _entries(facts.observed.job.status)}
    return [_written(each, before.get(each.type), facts) for each in found if each.status is not None]


def _entries(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    entries = status.get("conditions")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list | tuple) else []


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of a status as it is written; empty where there is none."""
    return next((entry for entry in _entries(status) if entry.get("type") == kind), {})


def _written(condition: Condition, before: Mapping[str, Any] | None, facts: Facts) -> dict[str, Any]:
    text = "True" if condition.status else "False"
    same = before is not None and before.get("status") == text and bool(before.get("lastTransitionTime"))
    return {
        "type": condition.type,
        "status": text,
        "reason": condition.trouble.reason or condition.type,
        "message": condition.trouble.text[:MESSAGE_CHARS_MAX],
        "lastTransitionTime": before["lastTransitionTime"] if same and before else moment(facts.observed.now),
        "observedGeneration": facts.observed.job.generation,
    }


def _plain(kind: str, holds: bool, reason: str, otherwise: str) -> Condition:
    return Condition(kind, holds, Trouble(reason if holds else otherwise))


def _held(facts: Facts) -> Trouble | None:
    """What stops commits until a person speaks or the target is mended, though the driver may work on."""
    if not facts.stuck:
        return None
    number, sink, text = facts.stuck[0]
    advice = "mend the cause and raise spec.restartNonce, or accept what it names with a new spec.recovery.nonce"
    return Trouble(facts.stuck_reason() or "CommitHeld", f"checkpoint {number} of sink {sink}: {text}", advice)


def _ready(course: Course, stalled: Trouble | None) -> Condition:
    if stalled is not None:
        return Condition("Ready", False, stalled)
    if course.phase in _REACHED:
        return Condition("Ready", True, _REACHED[course.phase])
    return Condition("Ready", False, course.waiting or Trouble(course.phase.value))


def _reconciling(course: Course, stalled: Trouble | None) -> Condition:
    under_way = stalled is None and (course.phase not in _REACHED or course.upgrade is not None)
    waiting = course.upgrade if course.phase is Phase.RUNNING else course.waiting
    text = waiting.text if waiting else ""
    return Condition("Reconciling", True if under_way else None, Trouble(course.phase.value, text))


def _accepted(facts: Facts) -> Condition:
    problems = facts.observed.job.problems
    if facts.spec is not None:
        return Condition("Accepted", True, Trouble("Accepted"))
    text = "; ".join(problem.text() for problem in problems)
    return Condition("Accepted", False, Trouble("InvalidSpec", text or "the manifest cannot be read"))


def _driver_ready(facts: Facts, course: Course) -> Condition:
    pod = facts.driver
    if pod is None:
        account = course.restarts.work
        cause = account.trouble if course.phase not in _REACHED and account.trouble else None
        return Condition("DriverReady", False, cause or facts.observed.refused or Trouble("NoDriver"))
    if pod.deleting_since is not None:
        return Condition("DriverReady", False, Trouble("StoppingDriver", f"{pod.name} is ending"))
    missing = unready(facts, pod)
    return Condition("DriverReady", missing is None, missing or Trouble("Running", f"{pod.name} works"))


def _commit_healthy(facts: Facts) -> Condition:
    found = facts.observed.ledger
    trouble = (found.trouble if found else None) or _held(facts) or facts.observed.coordinator.trouble
    if trouble is None and found is not None and found.deleting and facts.observed.job.deleting_since is None:
        message = "the ledger was deleted by hand; its finalizer keeps it, and it goes on being used"
        advice = "suspend the job, save the ConfigMap, take its finalizer off, then create it again (docs/operator.md)"
        trouble = Trouble("LedgerDeleting", message, advice)
    trouble = trouble or _failing(facts)
    return Condition("CommitHealthy", trouble is None, trouble or Trouble("Healthy"))


def _failing(facts: Facts) -> Trouble | None:
    """An attempt has failed, and is tried again by itself."""
    for record in facts.pending:
        for sink, part in record.parts.items():
            if part.reason:
                message = f"checkpoint {record.number} of sink {sink}, attempt {part.attempts}: {part.message}"
                return Trouble(part.reason, message)
    return None


def _in_doubt(facts: Facts) -> Condition:
    """A commit that was attempted may have landed. What a new tenure has not asked about yet is no doubt."""
    doubted = [
        (record.number, sink)
        for record in facts.pending
        for sink, part in record.parts.items()
        if part.state is PartState.IN_DOUBT and (part.attempts or part.reason)
    ]
    if not doubted:
        return Condition("InDoubt", False, Trouble("NoDoubt"))
    number, sink = doubted[0]
    message = f"a commit of checkpoint {number} to sink {sink} may have landed: the target is asked"
    return Condition("InDoubt", True, Trouble("CommitInDoubt", message))


def _transactions_stuck(facts: Facts) -> Condition:
    """Somebody's prepared transaction, mostly of a job that is gone: it keeps its locks until it is ended."""
    found = facts.observed.coordinator.prepared
    stuck = found is not None and found.oldest_seconds >= STUCK_TRANSACTION_SECONDS
    if found is None or not stuck:
        return Condition("TransactionsStuck", None, Trouble(""))
    hours = int(found.oldest_seconds // 3600)
    message = (
        f"the database of sink {found.sink} holds {found.count} prepared transactions, the oldest for {hours} h or more"
    )
    advice = "list them with their owners by `sinkjob doctor`, and end those whose job is gone by its --roll-back"
    return Condition("TransactionsStuck", True, Trouble("PreparedTransactionStuck", message, advice))
