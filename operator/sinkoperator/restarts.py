"""Accounts of how drivers ended, and what follows: when the next one may start.

`lifecycle` asks it, `status` keeps the accounts. An end is accounted for in the status before the restart that it
leads to, so a crash between the two costs nothing, and a lost status at most further restarts. Pure; times are wall
seconds that are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sinkoperator.causes import Cause, Kind
from sinkoperator.moments import moment, seconds_of
from sinkoperator.observed import Trouble
from sinkruntime.spec.delivery import RestartPolicy

_EXPONENT_MAX = 64


class Verdict(StrEnum):
    """What follows from the last end of a driver, as long as nobody asks for something else."""

    NONE = "None"  # no driver has ended, or it was stopped on purpose: the next may start at once
    RETRY = "Retry"  # the next may start at `next_time`
    HOLD = "Hold"  # the same, but not while a decided checkpoint is stuck
    BLOCKED = "Blocked"  # only a person goes on: another manifest, word of recovery or restart nonce
    GAVE_UP = "GaveUp"  # `maxRetries` are used up, or the policy is `Never`
    FINISHED = "Finished"  # the work is done


@dataclass(frozen=True, slots=True)
class Account:
    """How the last driver of a kind (working, or only committing) ended.

    `epoch` is the newest whose end is accounted for, `intent` what its driver was started for. `failures` and
    `infrastructure` count ends in a row, by whose doing they were.
    """

    epoch: int = 0
    intent: str = ""
    verdict: Verdict = Verdict.NONE
    failures: int = 0
    infrastructure: int = 0
    next_time: float | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Restarts:
    """`status.restarts`: `work` of drivers that read and write, `commit` of those that only commit."""

    total: int = 0
    work: Account = field(default_factory=Account)
    commit: Account = field(default_factory=Account)

    def of(self, commit_only: bool) -> Account:
        """The account of one kind of driver."""
        return self.commit if commit_only else self.work

    def with_account(self, commit_only: bool, account: Account) -> Restarts:
        """The same, with another account of one kind; it counts a restart where one follows."""
        follows = account.verdict in (Verdict.RETRY, Verdict.HOLD)
        total = self.total + follows
        return replace(self, total=total, commit=account) if commit_only else replace(self, total=total, work=account)


@dataclass(frozen=True, slots=True)
class End:
    """A driver of the ledger's epoch that is no more. `ran_seconds` is 0 where nobody knows."""

    epoch: int
    intent: str
    commit_only: bool
    cause: Cause
    ran_seconds: float = 0.0


def account_for(former: Account, end: End, policy: RestartPolicy, now: float) -> Account:
    """The account after this end. `STOPPED` and `DONE` come here only where they were not asked for by the plan."""
    if end.intent != former.intent or end.ran_seconds >= policy.reset_after.seconds:
        former = Account()  # another try, or one that ran well for a while
    kind = end.cause.kind
    base = Account(
        end.epoch, end.intent, Verdict.RETRY, former.failures, former.infrastructure, None, end.cause.trouble
    )
    if kind in (Kind.REFUSED, Kind.INVALID):
        return replace(base, verdict=Verdict.BLOCKED)
    if kind is Kind.DONE:
        again = policy.type == "Always" or end.commit_only
        done = replace(base, failures=0, infrastructure=0, verdict=Verdict.FINISHED)
        return replace(done, verdict=Verdict.RETRY, next_time=now + pause_seconds(policy, 1)) if again else done
    if policy.type == "Never" and not end.commit_only:
        return replace(base, verdict=Verdict.GAVE_UP, failures=base.failures + (kind is Kind.USER))
    if kind is Kind.USER:
        failures = base.failures + 1
        if failures > policy.max_retries and not end.commit_only:
            return replace(base, verdict=Verdict.GAVE_UP, failures=failures)
        return replace(base, failures=failures, next_time=now + pause_seconds(policy, failures))
    times = base.infrastructure + 1
    verdict = Verdict.HOLD if kind is Kind.HELD else Verdict.RETRY
    return replace(base, verdict=verdict, infrastructure=times, next_time=now + pause_seconds(policy, times))


def stopped(former: Account, epoch: int, intent: str) -> Account:
    """The account of a driver that the plan itself stops: its end is nobody's failure."""
    kept = former if former.intent == intent else Account()
    return replace(kept, epoch=epoch, intent=intent, verdict=Verdict.NONE, next_time=None, trouble=None)


def pause_seconds(policy: RestartPolicy, times: int) -> float:
    """Before the next start, after so many ends in a row."""
    backoff = policy.backoff
    longest = max(backoff.initial.seconds, backoff.max.seconds)
    return min(longest, backoff.initial.seconds * backoff.factor ** min(times - 1, _EXPONENT_MAX))


def pause_after(policy: RestartPolicy, former_seconds: float) -> float:
    """The same where nothing is known but how long the last one has waited."""
    first, backoff = pause_seconds(policy, 1), policy.backoff
    return max(first, min(former_seconds * backoff.factor, backoff.max.seconds))


def read_restarts(status: Mapping[str, Any]) -> Restarts:
    """From the last status; what is missing or strange counts as nothing."""
    kept = status.get("restarts")
    if not isinstance(kept, Mapping):
        return Restarts()
    total = kept.get("total")
    return Restarts(
        total if isinstance(total, int) else 0, _account(kept.get("lastEnd")), _account(kept.get("lastCommitEnd"))
    )


def _account(kept: Any) -> Account:
    if not isinstance(kept, Mapping):
        return Account()
    try:
        trouble = Trouble(*(str(kept.get(name, "")) for name in ("reason", "message", "advice", "path")))
        at = kept.get("nextTime")
        return Account(
            int(kept["epoch"]),
            str(kept.get("intent", "")),
            Verdict(kept.get("verdict", "None")),
            int(kept.get("failures", 0)),
            int(kept.get("infrastructure", 0)),
            seconds_of(at) if at else None,
            trouble if trouble.reason else None,
        )
    except (KeyError, TypeError, ValueError):
        return Account()


def write_restarts(restarts: Restarts) -> dict[str, Any]:
    """As `status.restarts`."""
    work = restarts.work
    body: dict[str, Any] = {"total": restarts.total, "consecutiveFailures": work.failures}
    if work.trouble is not None:
        body["lastCause"] = work.trouble.reason
    if work.next_time is not None and work.verdict in (Verdict.RETRY, Verdict.HOLD):
        body["nextRestartTime"] = moment(work.next_time)
    for name, account in (("lastEnd", work), ("lastCommitEnd", restarts.commit)):
        if account.epoch:
            body[name] = _written(account)
    return body


def _written(account: Account) -> dict[str, Any]:
    trouble = account.trouble or Trouble("")
    body: dict[str, Any] = {
        "epoch": account.epoch,
        "intent": account.intent,
        "verdict": account.verdict.value,
        "failures": account.failures,
        "infrastructure": account.infrastructure,
        "reason": trouble.reason,
        "message": trouble.message[:MESSAGE_CHARS_MAX],
        "advice": trouble.advice[:MESSAGE_CHARS_MAX],
        "path": trouble.path,
    }
    if account.next_time is not None:
        body["nextTime"] = moment(account.next_time)
    return {name: value for name, value in body.items() if value not in ("", 0)}


#: Of a message in the status; the API takes 32768 in a condition, people read less.
MESSAGE_CHARS_MAX = 2048
