"""Events, read off the difference of two statuses: a thing that lasts is told once, when it begins.

`plan` calls it. A status that is lost may have an event told twice; the shell joins equal ones. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sinkoperator.actions import Action, CreateDriver, Emit, StopDriver
from sinkoperator.conditions import condition_of
from sinkoperator.course import Course, Phase

#: Phases whose beginning is an event, with its reason.
_PHASES = {
    Phase.RUNNING: "Running",
    Phase.SUSPENDED: "Suspended",
    Phase.UPGRADING: "UpgradeStarted",
    Phase.SUCCEEDED: "Completed",
    Phase.DRAINING: "Draining",
    Phase.ABORTING: "Draining",
}
#: Conditions that are told when they begin to hold (True) or cease (False): reason of the event, and whether to warn.
_TOLD = (
    ("InDoubt", "True", "CommitInDoubt", True),
    ("InDoubt", "False", "CommitVerified", False),
    ("CommitHealthy", "False", "CommitFailed", True),
    ("TransactionsStuck", "True", "PreparedTransactionStuck", True),
)

#: Ends of drivers that are as they should be.
_WELL = frozenset({"Completed", "Done"})


def events(
    before: Mapping[str, Any], after: Mapping[str, Any], course: Course, actions: tuple[Action, ...]
) -> tuple[Emit, ...]:
    """What is to be told now."""
    return (*_of_phase(before, course), *_of_conditions(before, after), *_of_ends(before, course), *_of_acts(actions))


def _of_phase(before: Mapping[str, Any], course: Course) -> Iterator[Emit]:
    reason = _PHASES.get(course.phase)
    if reason is not None and before.get("phase") != course.phase.value:
        text = course.upgrade.message if course.upgrade else course.waiting.message if course.waiting else ""
        yield Emit(reason, text or f"the job is {course.phase.value}")
    if before.get("phase") == Phase.SUSPENDED.value and course.phase is not Phase.SUSPENDED:
        yield Emit("Resumed", "the job works again")


def _of_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Emit]:
    stalled, was = condition_of(after, "Stalled"), condition_of(before, "Stalled")
    if stalled and stalled.get("reason") != was.get("reason"):
        yield Emit(str(stalled["reason"]), str(stalled.get("message", "")), warning=True)
    for kind, value, reason, warning in _TOLD:
        now, then = condition_of(after, kind), condition_of(before, kind)
        begins = now.get("status") == value and then.get("status") != value
        if begins and (then or value != "False" or warning):
            yield Emit(reason, str(now.get("message", "")), warning=warning)


def _of_ends(before: Mapping[str, Any], course: Course) -> Iterator[Emit]:
    known = before.get("restarts")
    kept = known if isinstance(known, Mapping) else {}
    for name, account in (("lastEnd", course.restarts.work), ("lastCommitEnd", course.restarts.commit)):
        former = kept.get(name)
        epoch = former.get("epoch") if isinstance(former, Mapping) else 0
        if account.trouble is None or epoch == account.epoch:
            continue
        text = f"driver of epoch {account.epoch}: {account.trouble.text}"
        yield Emit(account.trouble.reason, text, warning=account.trouble.reason not in _WELL)
        if account.verdict.value == "GaveUp":
            yield Emit("BackoffLimitExceeded", "the driver is not started again", warning=True)


def _of_acts(actions: tuple[Action, ...]) -> Iterator[Emit]:
    for action in actions:
        if isinstance(action, CreateDriver):
            what = "a driver that only commits" if action.commit_only else "a driver"
            text = f"epoch {action.epoch}: {what} of revision {action.revision} ({action.why})"
            yield Emit("DriverCreated", text)
        elif isinstance(action, StopDriver):
            yield Emit("DriverStopping", f"{action.name}: {action.why}")
