"""The step of starting a driver: what comes before it, and its actions in order.

`lifecycle` and `deletion` call it when no driver is in the way. Intent comes before effect: `plan` keeps the revision,
the epoch is raised in the ledger, then the pod of that epoch is created. Pure.
"""

from __future__ import annotations

from sinkoperator.actions import Action, CreateDriver, EnsureAccess, RaiseEpoch
from sinkoperator.course import UNWATCHED_SECONDS, Course
from sinkoperator.facts import Facts
from sinkoperator.observed import Trouble
from sinkoperator.restarts import Account, Restarts, Verdict, account_for
from sinkruntime.protocol.ledger import Authority
from sinkruntime.protocol.machine import outstanding


def start(
    facts: Facts, restarts: Restarts, revision: str, why: str, *, commit_only: bool = False
) -> tuple[Action, ...]:
    """The actions that start a driver; no driver of an older epoch may be in the way.

    An epoch that is raised and unclaimed, without a pod, is used: whoever raised it died before it created the pod.
    """
    ledger, epoch = facts.ledger, facts.epoch
    actions: list[Action] = []
    names = {pod.epoch for pod in facts.observed.drivers}
    unused = ledger is not None and epoch > 0 and not ledger.claim and epoch not in names
    if not unused or max(restarts.work.epoch, restarts.commit.epoch) >= epoch:
        epoch += 1
        actions.append(RaiseEpoch(epoch, fenced=tuple(sorted(facts.lost)), why=why))
    actions += [EnsureAccess(why=why), CreateDriver(epoch, revision, commit_only, why=why)]
    return tuple(actions)


def obstacle(facts: Facts) -> Trouble | None:
    """What keeps any driver from being started: missing objects, a full namespace."""
    observed = facts.observed
    if observed.missing:
        first, *others = observed.missing
        more = f" (and {len(others)} more)" if others else ""
        advice = f"create the {first.kind} in namespace {observed.job.namespace}, or correct the name"
        return Trouble(f"{first.kind}NotFound", f"there is no {first.kind} {first.name}{more}", advice, first.path)
    most = observed.settings.drivers_per_namespace_max
    if most and observed.other_drivers >= most:
        message = f"{observed.other_drivers} jobs run in namespace {observed.job.namespace}, and {most} may"
        return Trouble("NamespaceLimit", message, "suspend another job, or have the operator's limit raised")
    return None


def commit_only(facts: Facts, restarts: Restarts, course: Course) -> Course:
    """The course with a driver that only commits, where sinks with `runOn: Driver` are owed something and none runs."""
    if facts.blocking or not facts.owed(Authority.EPOCH):
        return course
    end = facts.last_end(commit_only=True)
    account = restarts.commit
    if end is not None and end.commit_only:
        account = account_for(account, end, facts.policy, facts.observed.now)
        restarts = restarts.with_account(True, account)
    wait = _wait_seconds(account, facts)
    if wait is not None or (end is not None and end.commit_only):
        return Course(
            course.phase,
            restarts,
            (),
            course.stalled or _told(account, facts),
            course.waiting or account.trouble,
            course.upgrade,
            min(course.look_again_seconds, 1.0 if wait is None else wait),
        )
    revision = _revision_to_commit(facts)
    stop = obstacle(facts) if revision else _lost_revision(facts)
    if stop is not None:
        return Course(course.phase, restarts, (), stop, None, course.upgrade, UNWATCHED_SECONDS)
    why = "sinks that commit in the driver are owed commits"
    actions = start(facts, restarts, revision, why, commit_only=True)
    return Course(
        course.phase, restarts, actions, course.stalled, course.waiting, course.upgrade, course.look_again_seconds
    )


def _wait_seconds(account: Account, facts: Facts) -> float | None:
    """How long the next driver that only commits waits; None: not at all."""
    if account.intent != facts.intent:
        return None
    if account.verdict is Verdict.BLOCKED or (account.verdict is Verdict.HOLD and facts.stuck):
        return UNWATCHED_SECONDS
    left = (account.next_time or 0.0) - facts.observed.now
    return left if account.verdict in (Verdict.RETRY, Verdict.HOLD) and left > 0 else None


def _told(account: Account, facts: Facts) -> Trouble | None:
    blocked = account.verdict is Verdict.BLOCKED or (account.verdict is Verdict.HOLD and facts.stuck)
    return account.trouble if blocked and account.intent == facts.intent else None


def _revision_to_commit(facts: Facts) -> str:
    """That of the oldest checkpoint which is owed something under the epoch: its own sinks commit it."""
    assert facts.ledger is not None, "something is owed"
    owed = next(effect for effect in outstanding(facts.ledger) if effect.authority is Authority.EPOCH)
    record = facts.ledger.record(owed.number)
    if record is None:
        return ""
    known = record.revision == facts.revision or facts.known_revision(record.revision)
    return record.revision if known else ""


def _lost_revision(facts: Facts) -> Trouble:
    name = facts.observed.job.name
    message = f"the revision of {name} that a pending checkpoint was decided under is gone"
    advice = "restore its ControllerRevision, or set spec.recovery.accept: [AbandonPending]"
    return Trouble("RevisionLost", message, advice)
