"""The status of a SinkJob: what `kubectl get sinkjob` tells of it.

`plan` calls it with the course. Only the counters under `restarts`, `commit.retried` and times are ever read back.
Holds counts, never lists that grow. Pure.
"""

from __future__ import annotations

from typing import Any

from sinkoperator.conditions import conditions
from sinkoperator.course import Course
from sinkoperator.facts import Facts
from sinkoperator.moments import moment
from sinkoperator.restarts import Account, Verdict, write_restarts
from sinkruntime.protocol.ledger import Ledger, PartState

LOG_TAIL_CHARS_MAX = 4096
MESSAGE_CHARS_MAX = 2048
SINKS_MAX = 256  # as the CRD's schema


def status_of(facts: Facts, course: Course) -> dict[str, Any]:
    """The whole status."""
    status: dict[str, Any] = {
        "observedGeneration": facts.observed.job.generation,
        "phase": course.phase.value,
        "conditions": conditions(facts, course),
        "sinks": _sinks(facts),
        "epoch": facts.epoch,
        "executors": _executors(facts),
        "restarts": write_restarts(course.restarts),
    }
    if facts.ledger is not None:
        status["commit"] = _commit(facts.ledger) | ({"retried": facts.retried} if facts.retried else {})
    if facts.spec is not None:
        status["sinks"] = ",".join(sink.type for sink in facts.spec.sinks)
    further = {"driver": _driver(facts), "failure": _failure(facts, course), "lastHandledAction": _handled(facts)}
    return status | {name: value for name, value in further.items() if value}


def _sinks(facts: Facts) -> str:
    """The sinks' types, as `kubectl get` shows them: it can show one text only."""
    sinks = facts.observed.job.raw.get("sinks")
    types = [sink.get("type") for sink in sinks if isinstance(sink, dict)] if isinstance(sinks, list) else []
    return ",".join(str(kind) for kind in types)


def _commit(ledger: Ledger) -> dict[str, Any]:
    last = max((entry.committed_ms for entry in ledger.sinks.values()), default=0)
    doubted = sum(any(part.state is PartState.IN_DOUBT for part in record.parts.values()) for record in ledger.pending)
    body: dict[str, Any] = {
        "lastCheckpoint": ledger.pending[0].number - 1 if ledger.pending else ledger.decided,
        "pending": len(ledger.pending),
        "inDoubt": doubted,
        "rowsCommitted": sum(entry.rows for entry in ledger.sinks.values()),
        "sinks": {
            name: {"committed": entry.committed, "rows": entry.rows}
            for name, entry in sorted(ledger.sinks.items())[:SINKS_MAX]
        },
    }
    if last:
        body["lastCommitTime"] = moment(last / 1000)
    return body


def _driver(facts: Facts) -> dict[str, Any]:
    pod = facts.newest
    if pod is None:
        return {}
    body: dict[str, Any] = {"podName": pod.name, "podUID": pod.uid, "phase": pod.phase}
    if pod.started is not None:
        body["startTime"] = moment(pod.started)
    if pod.exit_code is not None:
        body["exitCode"] = pod.exit_code
    return body


def _executors(facts: Facts) -> dict[str, int]:
    counts = facts.observed.executors
    desired = counts.desired if facts.driver is not None else 0
    return {"desired": desired, "running": counts.running, "pending": counts.pending, "failed": counts.failed}


def _failure(facts: Facts, course: Course) -> dict[str, Any]:
    """How the last driver that ended badly ended; kept while the next one runs."""
    account: Account = max(course.restarts.work, course.restarts.commit, key=lambda each: each.epoch)
    trouble = account.trouble
    ended_well = account.verdict is Verdict.RETRY and not account.failures and not account.infrastructure
    if trouble is None or ended_well or account.verdict in (Verdict.NONE, Verdict.FINISHED):
        return {}
    body: dict[str, Any] = {"reason": trouble.reason, "epoch": account.epoch}
    for name, text in (("message", trouble.message), ("advice", trouble.advice), ("path", trouble.path)):
        if text:
            body[name] = text[:MESSAGE_CHARS_MAX]
    pod = next((each for each in facts.observed.drivers if each.ours and each.epoch == account.epoch), None)
    before = facts.observed.job.status.get("failure")
    kept = before if isinstance(before, dict) and before.get("epoch") == account.epoch else {}
    tail = pod.log_tail[-LOG_TAIL_CHARS_MAX:] if pod is not None and pod.log_tail else kept.get("logTail")
    code = pod.exit_code if pod is not None and pod.exit_code is not None else kept.get("exitCode")
    return body | {name: value for name, value in (("logTail", tail), ("exitCode", code)) if value is not None}


def _handled(facts: Facts) -> dict[str, Any]:
    """The last word of a person that was acted upon: a restart nonce, or an accepted reason of `recovery`."""
    before = facts.observed.job.status.get("lastHandledAction")
    known: dict[str, Any] = dict(before) if isinstance(before, dict) else {}
    ledger, spec, pod = facts.ledger, facts.spec, facts.driver
    if spec is None or ledger is None:
        return known
    accepted = [each.reason for each in ledger.acceptances if each.nonce == spec.recovery.nonce]
    restarted = spec.restart_nonce and pod is not None and pod.intent.rpartition("/")[0] == facts.run
    if accepted:
        found = {"id": str(spec.recovery.nonce), "action": "recovery", "result": f"accepted {', '.join(accepted)}"}
    elif restarted:
        found = {"id": str(spec.restart_nonce), "action": "restart", "result": "restarted"}
    else:
        return known
    same = all(known.get(name) == found[name] for name in ("id", "action"))
    return found | {"time": known["time"] if same and "time" in known else moment(facts.observed.now)}
