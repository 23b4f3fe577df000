"""What is done about a job's driver, and why: the rules of a job that is not being deleted, in order.

`plan` calls `course`. Each rule looks at what is, not at what has happened: after any crash the next look goes on from
there. Pure; it never touches commits, which `coordination` plans.
"""

from __future__ import annotations

from dataclasses import replace

from sinkoperator.actions import Action, StopDriver
from sinkoperator.causes import Kind
from sinkoperator.coordination import not_begun
from sinkoperator.course import CALM_SECONDS, UNWATCHED_SECONDS, Course, Phase
from sinkoperator.facts import Facts, suspended
from sinkoperator.names import OWNER_ANNOTATION
from sinkoperator.observed import DriverPod, Trouble
from sinkoperator.pods import grace_of, unready
from sinkoperator.restarts import End, Restarts, Verdict, account_for, stopped
from sinkoperator.starting import commit_only, obstacle, start
from sinkruntime.driver.driver import stuck
from sinkruntime.protocol.ledger import Authority
from sinkruntime.spec.models import SinkJobSpec

#: A finished job is `Succeeded` at the latest so long after its driver ended, though something is left to be removed.
TIDY_SECONDS = 60.0


def course(facts: Facts) -> Course:
    """The course of a job that is not being deleted."""
    trouble = ledger_trouble(facts)
    if trouble is not None:
        return Course(Phase.STALLED, facts.restarts, stalled=trouble, untouched=True)
    if suspended(facts.observed.job.raw):
        return _suspend(facts)
    if facts.spec is None:
        return _invalid(facts)
    if facts.blocking:
        return _with_drivers(facts, facts.spec)
    return _without_drivers(facts, facts.spec)


def ledger_trouble(facts: Facts) -> Trouble | None:
    """Why the ledger cannot be worked with; nothing is touched then."""
    found = facts.observed.ledger
    if found is None:
        return None
    if found.trouble is not None:
        return found.trouble
    if found.owner_uid not in ("", facts.observed.job.uid):
        message = f"the ledger belongs to another SinkJob of this name (uid {found.owner_uid})"
        advice = f"wait until that one is gone; if it is, take the annotation {OWNER_ANNOTATION} off the ledger"
        return Trouble("LedgerForeign", message, advice)
    return None


def stop(facts: Facts, pods: tuple[DriverPod, ...], why: str) -> tuple[Restarts, tuple[Action, ...]]:
    """Stop these drivers at a checkpoint boundary; that they end is then nobody's failure."""
    restarts = facts.restarts
    actions: list[Action] = []
    for pod in pods:
        if pod.deleting_since is not None or not pod.ours:
            continue
        actions.append(StopDriver(pod.name, pod.uid, grace_of(facts, pod), why=why))
        if pod.epoch == facts.epoch:
            account = stopped(restarts.of(pod.commit_only), pod.epoch, pod.intent)
            restarts = restarts.with_account(pod.commit_only, account)
    return restarts, tuple(actions)


def _suspend(facts: Facts) -> Course:
    working = tuple(pod for pod in facts.blocking if not pod.commit_only or not facts.owed(Authority.EPOCH))
    if working:
        restarts, actions = stop(facts, working, "the job is suspended")
        waiting = Trouble("StoppingDriver", f"{working[0].name} ends at its next checkpoint boundary")
        return Course(Phase.SUSPENDING, restarts, actions, waiting=waiting, look_again_seconds=UNWATCHED_SECONDS)
    if facts.pending:
        waiting = _pending(facts)
        found = Course(Phase.SUSPENDING, facts.restarts, stalled=_stuck(facts), waiting=waiting)
        return commit_only(facts, facts.restarts, found)
    return commit_only(facts, facts.restarts, Course(Phase.SUSPENDED, facts.restarts))


def _invalid(facts: Facts) -> Course:
    """What runs goes on, what is pending is committed; nothing new is started."""
    first, *others = facts.observed.job.problems or ()
    more = f" (and {len(others)} more)" if others else ""
    trouble = Trouble("InvalidSpec", f"{first.text()}{more}", "correct the manifest: `sinkjob validate` says the same")
    pod = facts.driver
    phase = Phase.STALLED if pod is None else Phase.RUNNING if pod.ready else Phase.STARTING
    return commit_only(facts, facts.restarts, Course(phase, facts.restarts, stalled=trouble))


def _with_drivers(facts: Facts, spec: SinkJobSpec) -> Course:
    """A driver lives, or ends: it is left alone unless something else is asked for."""
    pod = facts.driver
    strays = tuple(other for other in facts.blocking if other is not pod)
    if strays or pod is None:
        restarts, actions = stop(facts, strays, "a newer epoch is raised")
        foreign = next((other for other in strays if not other.ours), None)
        waiting = Trouble("OlderDriver", f"waits until {strays[0].name} is gone")
        if foreign is not None:
            waiting = Trouble("NameTaken", f"the pod {foreign.name} belongs to another SinkJob", "delete that pod")
        return Course(Phase.RESTARTING, restarts, actions, waiting=waiting, look_again_seconds=UNWATCHED_SECONDS)
    why = _reason_to_stop(facts, pod, spec)
    upgrade = _upgrade(facts, pod, spec)
    phase = Phase.UPGRADING if upgrade is not None and why else Phase.RESTARTING
    if pod.deleting_since is not None:
        waiting = Trouble("StoppingDriver", f"{pod.name} ends at its next checkpoint boundary")
        left = max(1.0, pod.deleting_since + pod.grace_seconds - facts.observed.now)
        return Course(phase, facts.restarts, (), None, waiting, upgrade, left + UNWATCHED_SECONDS)
    if why:
        restarts, actions = stop(facts, (pod,), why)
        return Course(phase, restarts, actions, None, Trouble("StoppingDriver", why), upgrade)
    missing = unready(facts, pod)
    if pod.commit_only:
        upgrading = Course(Phase.UPGRADING, facts.restarts, stalled=_stuck(facts), waiting=_pending(facts))
        return _settled(facts, facts.restarts) or upgrading
    phase = Phase.STARTING if missing is not None else Phase.FINISHING if facts.batch_decided else Phase.RUNNING
    stalled = missing if missing is not None and missing.reason == "InvalidImageName" else None
    if upgrade is not None and upgrade.reason == "NewCheckpoint":
        stalled = stalled or upgrade
    return Course(phase, facts.restarts, (), stalled, missing, upgrade)


def _reason_to_stop(facts: Facts, pod: DriverPod, spec: SinkJobSpec) -> str:
    """Why a live driver makes room for the next one; "" where it goes on."""
    if pod.commit_only:
        goes_on = _settled(facts, facts.restarts) is not None or facts.foreign_pending(spec)
        return "" if goes_on else "the job works again"
    if pod.revision != facts.revision:
        accepted = spec.upgrade.mode != "Stateless" or "NewCheckpoint" in spec.recovery.accept
        return "the manifest has changed" if accepted else ""
    if pod.intent.rpartition("/")[0] != facts.run:
        return "spec.restartNonce was raised"
    if pod.intent != facts.intent and _needs_new_word(facts):
        return "spec.recovery speaks of what this driver commits"
    return ""


def _needs_new_word(facts: Facts) -> bool:
    """Whether a part is stuck that only the driver itself can go on with: it reads `recovery` when it starts."""
    parts = [part for _, _, part in stuck(facts.ledger)] if facts.ledger else []
    return any(part.authority is Authority.EPOCH for part in parts)


def _upgrade(facts: Facts, pod: DriverPod, spec: SinkJobSpec) -> Trouble | None:
    if pod.revision == facts.revision or pod.commit_only:
        return None
    if spec.upgrade.mode == "Stateless" and "NewCheckpoint" not in spec.recovery.accept:
        message = f"revision {facts.revision} with upgrade.mode Stateless begins with a new checkpoint location"
        advice = "set spec.recovery.accept: [NewCheckpoint] with a new nonce; until then the old revision runs"
        return Trouble("NewCheckpoint", message, advice)
    return Trouble("NewRevision", f"revision {facts.revision} follows {pod.revision}")


def _without_drivers(facts: Facts, spec: SinkJobSpec) -> Course:
    """Account for the last driver's end, then start the next, wait for it, or be done."""
    restarts = facts.restarts
    end = facts.last_end(commit_only=False)
    if end is not None and not end.commit_only and end.intent == facts.intent and not facts.batch_decided:
        account = account_for(restarts.work, _judged(end, facts, spec), spec.restart_policy, facts.observed.now)
        restarts = restarts.with_account(False, account)  # its pause is to come: nothing starts in this look
    settled = _settled(facts, restarts)
    if settled is not None:
        return commit_only(facts, restarts, settled)
    account = restarts.work
    left = (account.next_time or 0.0) - facts.observed.now
    if account.intent == facts.intent and account.verdict in (Verdict.RETRY, Verdict.HOLD) and left > 0:
        return Course(
            Phase.RESTARTING, restarts, waiting=account.trouble, look_again_seconds=min(CALM_SECONDS, max(0.1, left))
        )
    phase = Phase.RESTARTING if facts.epoch else Phase.STARTING
    foreign = facts.foreign_pending(spec)
    if foreign:
        message = f"{len(foreign)} checkpoints of the former sinks are committed first"
        upgrade = Trouble("NewRevision", message)
        return commit_only(facts, restarts, Course(Phase.UPGRADING, restarts, (), _stuck(facts), upgrade, upgrade))
    trouble = obstacle(facts)
    if trouble is not None:
        phase = Phase.STALLED if trouble.reason.endswith("NotFound") else Phase.PENDING
        stalled = trouble if phase is Phase.STALLED else None
        return Course(phase, restarts, (), stalled, trouble, look_again_seconds=UNWATCHED_SECONDS)
    begins = not_begun(facts)
    if begins is not None:
        return Course(phase, restarts, (), _stuck(facts), begins, look_again_seconds=UNWATCHED_SECONDS)
    why = account.trouble.reason if account.trouble and account.intent == facts.intent else "the job is to run"
    actions = start(facts, restarts, facts.revision, why)
    refused = facts.observed.refused
    pause = UNWATCHED_SECONDS if refused else CALM_SECONDS
    return Course(phase, restarts, actions, waiting=refused, look_again_seconds=pause)


def _judged(end: End, facts: Facts, spec: SinkJobSpec) -> End:
    """Only a streaming job that takes what is there has done its work when its driver ends well."""
    if end.cause.kind is not Kind.DONE or (spec.mode == "Streaming" and spec.trigger.type == "AvailableNow"):
        return end
    trouble = Trouble("DriverStopped", "the driver ended well before its work was done")
    return replace(end, cause=replace(end.cause, kind=Kind.STOPPED, trouble=trouble))


def _settled(facts: Facts, restarts: Restarts) -> Course | None:
    """The course where no driver is to work, whatever happens: done, given up, or only a person goes on."""
    account = restarts.work
    run, asked = facts.run, facts.intent
    if facts.batch_decided or (account.verdict is Verdict.FINISHED and account.intent.rpartition("/")[0] == run):
        return _finished(facts, restarts)
    if account.intent != asked:
        return None
    if account.verdict is Verdict.GAVE_UP:
        return Course(Phase.FAILED, restarts, stalled=account.trouble)
    held = account.verdict is Verdict.HOLD and bool(facts.stuck)
    if account.verdict is Verdict.BLOCKED or held:
        return Course(Phase.STALLED, restarts, stalled=account.trouble or _stuck(facts))
    return None


def _finished(facts: Facts, restarts: Restarts) -> Course:
    if facts.pending:
        return Course(Phase.FINISHING, restarts, stalled=_stuck(facts), waiting=_pending(facts))
    assert facts.ledger is not None, "a job that has finished has a ledger"
    pod = facts.newest
    left = (pod.finished + TIDY_SECONDS - facts.observed.now) if pod and pod.finished else 0.0
    unclean = bool(facts.ledger.records) or facts.owed(Authority.TOKEN)
    if facts.driver is not None or (unclean and left > 0):
        waiting = Trouble("Cleaning", "what its commits left behind is removed")
        return Course(Phase.FINISHING, restarts, waiting=waiting, look_again_seconds=max(1.0, left))
    return Course(Phase.SUCCEEDED, restarts)


def _pending(facts: Facts) -> Trouble:
    return Trouble("CommitsPending", f"{len(facts.pending)} decided checkpoints are being committed")


def _stuck(facts: Facts) -> Trouble | None:
    """Why commits do not go on before a person speaks, or the target is mended."""
    if not facts.stuck:
        return None
    number, sink, text = facts.stuck[0]
    advice = "mend the cause and raise spec.restartNonce, or accept what it names with a new spec.recovery.nonce"
    return Trouble(facts.stuck_reason(), f"checkpoint {number} of sink {sink}: {text}", advice)
