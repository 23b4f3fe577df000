"""What the status tells: the commit block from the ledger, conditions as kstatus reads them, events of what begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import Emit
from sinkoperator.moments import moment, seconds_of
from sinkoperator.observed import CoordinatorFacts, Executors, Observed, PreparedFacts, Trouble
from sinkoperator.plan import plan
from sinkoperator.restarts import Account, Restarts, Verdict, read_restarts, write_restarts
from sinkruntime.protocol.ledger import Acceptance, Authority, PartState, SinkEntry
from sinkruntime.spec.crd_status import STATUS_SCHEMA
from tests.unit.operator.plan_world import (
    NOW,
    condition,
    driver,
    ended,
    held,
    job,
    ledger,
    observed,
    part,
    raw_of,
    record,
    told,
    with_status,
)

STUCK = record(1, 2, {"lake": part(PartState.HELD, reason="QuotaExceeded", message="no room")})
DOUBTED = record(1, 2, {"lake": part(PartState.IN_DOUBT, attempts=1, reason="OutOfTime", message="60 s")})
SINKS = {"lake": SinkEntry(1, 6, 6, "", 42, 1_795_000_000_500), "dead": SinkEntry(1, 5, 5, "", 8, 1_794_000_000_000)}


def kstatus(status: Any, generation: int) -> str:
    """As kstatus computes it for a custom resource (sigs.k8s.io/cli-utils, `pkg/kstatus/status`)."""
    if status["observedGeneration"] != generation:
        return "InProgress"
    holds = {entry["type"]: entry["status"] for entry in status["conditions"]}
    if holds.get("Reconciling") == "True":
        return "InProgress"
    if holds.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if holds.get("Ready") == "False" else "Current"


def unknown_fields(value: Any, schema: Any, path: str = "status") -> list[str]:
    """Fields that the API server would drop, because the CRD's schema does not have them."""
    if isinstance(value, dict):
        fields, more = schema.get("properties", {}), schema.get("additionalProperties")
        missing = [f"{path}.{name}" for name in value if name not in fields and not more]
        known = {name: fields.get(name, more) for name in value if fields.get(name, more)}
        return missing + [
            found for name, inner in known.items() for found in unknown_fields(value[name], inner, f"{path}.{name}")
        ]
    if isinstance(value, list):
        return [found for each in value for found in unknown_fields(each, schema["items"], f"{path}[]")]
    return []


SITUATIONS: dict[str, tuple[Observed, str]] = {
    "new": (observed(), "InProgress"),
    "starting": (observed(ledger(1, claim=""), driver(1, ready=False, phase="Pending")), "InProgress"),
    "running": (observed(ledger(2, record(1, 2)), driver(2)), "Current"),
    "suspending": (observed(ledger(2, record(1, 2)), driver(2), raw=raw_of(suspend=True)), "InProgress"),
    "suspended": (observed(ledger(2), raw=raw_of(suspend=True)), "Current"),
    "upgrading": (observed(ledger(2), driver(2), raw=raw_of(image="b")), "InProgress"),
    "restarting": (observed(ledger(2), ended(2, 1, Trouble("TargetError", "x", "y", "spec.z"))), "InProgress"),
    "given up": (observed(ledger(2), ended(2, 1), raw=raw_of(restartPolicy={"type": "Never"})), "Failed"),
    "refused": (observed(ledger(2), ended(2, 1, Trouble("NewCheckpoint", "x", "y"))), "Failed"),
    "invalid": (observed(ledger(2), driver(2), raw=raw_of(sinks=[])), "Failed"),
    "held": (observed(ledger(2, STUCK), driver(2)), "Failed"),
    "in doubt": (observed(ledger(2, DOUBTED), driver(2)), "Current"),
    "corrupt": (replace(observed(), ledger=held(None, trouble=Trouble("LedgerCorrupt", "x"))), "Failed"),
    "finished": (
        observed(
            ledger(2, sinks=SINKS), ended(2, 0, changes={"trigger": {"type": "AvailableNow"}}),
            raw=raw_of(trigger={"type": "AvailableNow"}, restartNonce=0),
        ),
        "Current",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SITUATIONS)
def test_kstatus_reads_it_rightly_and_the_schema_has_every_field(name: str) -> None:
    seen, expected = SITUATIONS[name]
    status = plan(seen).status
    assert kstatus(status, seen.job.generation) == expected
    assert unknown_fields(status, STATUS_SCHEMA) == []
    kinds = [entry["type"] for entry in status["conditions"]]
    assert len(kinds) == len(set(kinds))
    for entry in status["conditions"]:
        assert entry["reason"], entry


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_look_at_an_unchanged_job_changes_nothing_and_tells_nothing(name: str) -> None:
    seen = with_status(SITUATIONS[name][0])
    later = plan(replace(seen, now=NOW + 0.4))
    if not any(type(action).__name__ in ("CreateDriver", "StopDriver") for action in later.actions):
        assert told(later) == []
    assert dict(later.status) == dict(seen.job.status)
    assert not later.urgent


def test_the_commit_block_comes_from_the_ledger() -> None:
    found = ledger(2, record(7, 2, DOUBTED.parts), record(8, 2), sinks=SINKS)
    status = plan(replace(observed(found, driver(2)), executors=Executors(2, 1, 1, 0))).status
    assert status["commit"] == {
        "lastCheckpoint": 6,
        "lastCommitTime": moment(1_795_000_000.5),
        "pending": 2,
        "inDoubt": 1,
        "rowsCommitted": 50,
        "sinks": {"dead": {"committed": 5, "rows": 8}, "lake": {"committed": 6, "rows": 42}},
    }
    assert status["executors"] == {"desired": 2, "running": 1, "pending": 1, "failed": 0}
    assert status["epoch"] == 2
    assert status["sinks"] == "file"
    assert status["driver"]["podName"] == "flights-driver-2"


def test_nothing_is_said_of_a_commit_time_before_the_first_commit() -> None:
    assert "lastCommitTime" not in plan(observed(ledger(2), driver(2))).status["commit"]


def test_the_time_of_a_transition_is_kept_until_the_status_of_the_condition_changes() -> None:
    seen = with_status(observed(ledger(2), driver(2)), now=NOW + 500)
    again = {entry["type"]: entry["lastTransitionTime"] for entry in plan(seen).status["conditions"]}
    assert again["Ready"] == moment(NOW)
    broken = plan(replace(seen, ledger=held(ledger(2, STUCK))))
    times = {entry["type"]: entry["lastTransitionTime"] for entry in broken.status["conditions"]}
    assert times["Ready"] == times["Stalled"] == times["CommitHealthy"] == moment(NOW + 500)
    assert times["Accepted"] == moment(NOW)


def test_the_observed_generation_is_the_sinkjobs() -> None:
    seen = replace(observed(ledger(2), driver(2)), job=job(generation=7))
    status = plan(seen).status
    assert status["observedGeneration"] == 7
    assert {entry["observedGeneration"] for entry in status["conditions"]} == {7}


def test_what_is_held_is_told_with_checkpoint_sink_and_what_to_do() -> None:
    made = plan(observed(ledger(2, STUCK), driver(2)))
    message = next(entry["message"] for entry in made.status["conditions"] if entry["type"] == "CommitHealthy")
    for word in ("checkpoint 1", "sink lake", "no room", "restartNonce"):
        assert word in message
    assert made.status["phase"] == "Running"


def test_doubt_is_told_when_it_begins_and_when_it_ends() -> None:
    seen = with_status(observed(ledger(2, record(1, 2)), driver(2)))
    doubted = replace(seen, ledger=held(ledger(2, DOUBTED)))
    assert "CommitInDoubt" in told(plan(doubted))
    assert condition(plan(doubted), "InDoubt") == ("True", "CommitInDoubt")
    known = replace(doubted, job=replace(doubted.job, status=dict(plan(doubted).status)))
    assert told(plan(known)) == []
    assert "CommitVerified" in told(plan(replace(known, ledger=held(ledger(2)))))


def test_a_prepared_transaction_is_stuck_after_an_hour_and_told_once() -> None:
    def holding(seen: Observed, seconds: float) -> Observed:
        return replace(seen, coordinator=CoordinatorFacts(True, "x", prepared=PreparedFacts("orders", 3, seconds)))

    seen = with_status(holding(observed(ledger(2), driver(2)), 3599.0))
    assert "TransactionsStuck" not in {entry["type"] for entry in seen.job.status["conditions"]}
    stuck = plan(holding(seen, 7300.0))
    assert condition(stuck, "TransactionsStuck") == ("True", "PreparedTransactionStuck")
    assert told(stuck) == ["PreparedTransactionStuck"]
    message = next(entry["message"] for entry in stuck.status["conditions"] if entry["type"] == "TransactionsStuck")
    for word in ("sink orders", "3 prepared", "2 h", "--roll-back"):
        assert word in message
    known = holding(replace(seen, job=replace(seen.job, status=dict(stuck.status))), 7400.0)
    assert told(plan(known)) == []
    assert dict(plan(known).status) == dict(stuck.status), "its age does not write the status anew"


def test_what_a_new_tenure_has_not_asked_about_is_no_doubt() -> None:
    fresh = record(1, 2, {"lake": part(PartState.IN_DOUBT)})
    assert condition(plan(observed(ledger(2, fresh), driver(2))), "InDoubt") == ("False", "NoDoubt")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"coordinator": CoordinatorFacts(trouble=Trouble("SecretNotFound", "x"))}, "SecretNotFound"),
        ({"ledger": held(ledger(2), deleting=True)}, "LedgerDeleting"),
    ],
)
def test_commits_that_cannot_go_on_are_told(change: Any, reason: str) -> None:
    made = plan(replace(observed(ledger(2), driver(2)), **change))
    assert condition(made, "CommitHealthy") == ("False", reason)


def test_the_failure_keeps_code_path_and_the_end_of_the_log_when_the_pod_is_gone() -> None:
    said = Trouble("TargetError", "no bucket", "create it", "spec.sinks[0].options.path")
    seen = observed(ledger(2), ended(2, 1, said, log_tail="x" * 9000 + "last line"))
    failure = plan(seen).status["failure"]
    assert failure == {
        "reason": "TargetError",
        "epoch": 2,
        "message": "no bucket",
        "advice": "create it",
        "path": "spec.sinks[0].options.path",
        "logTail": "x" * 4087 + "last line",
        "exitCode": 1,
    }
    later = replace(with_status(seen), drivers=())
    assert plan(later).status["failure"] == failure


def test_the_last_handled_action_is_the_word_that_was_acted_upon() -> None:
    seen = observed(ledger(2), driver(2, changes={"restartNonce": 3}), raw=raw_of(restartNonce=3))
    first = plan(seen).status["lastHandledAction"]
    assert first == {"id": "3", "action": "restart", "result": "restarted", "time": moment(NOW)}
    assert plan(with_status(seen, now=NOW + 99)).status["lastHandledAction"] == first
    word = ledger(2, acceptances=(Acceptance(4, "NewCheckpoint", "x"), Acceptance(3, "Aborted", "y")))
    raw = raw_of(recovery={"nonce": 4, "accept": ["NewCheckpoint"]})
    accepted = plan(observed(word, driver(2), raw=raw)).status["lastHandledAction"]
    assert (accepted["id"], accepted["result"]) == ("4", "accepted NewCheckpoint")


def test_phases_are_told_when_they_begin() -> None:
    running = observed(ledger(2), driver(2))
    assert told(plan(running)) == ["Running"]
    suspended = replace(with_status(running), job=job(raw_of(suspend=True), status=dict(plan(running).status)))
    stopped = with_status(replace(suspended, drivers=()))
    assert told(plan(replace(suspended, drivers=()))) == ["Suspended"]
    assert told(plan(stopped)) == []


def test_a_warning_says_why_a_job_stalls() -> None:
    made = plan(observed(ledger(2), ended(2, 1, Trouble("NewCheckpoint", "they differ", "restore it"))))
    warnings = [action for action in made.actions if isinstance(action, Emit) and action.warning]
    assert {action.reason for action in warnings} == {"NewCheckpoint"}
    assert any("restore it" in action.message for action in warnings)


@pytest.mark.parametrize(
    "restarts",
    [
        Restarts(),
        Restarts(4, Account(7, "a/0/b", Verdict.RETRY, 2, 1, NOW + 5, Trouble("X", "m", "a", "p"))),
        Restarts(1, Account(3, "a/0/b", Verdict.NONE), Account(4, "a/0/b", Verdict.BLOCKED, trouble=Trouble("Y"))),
    ],
)
def test_the_accounts_of_restarts_are_read_as_they_were_written(restarts: Restarts) -> None:
    assert read_restarts({"restarts": write_restarts(restarts)}) == restarts


@pytest.mark.parametrize(
    "strange",
    [
        None, 7, [], {"lastEnd": 7}, {"lastEnd": {"epoch": "x"}}, {"lastEnd": {"epoch": 1, "verdict": "Maybe"}},
        {"total": "many", "lastEnd": {"epoch": 1, "nextTime": "soon"}},
    ],
)  # fmt: skip
def test_a_status_that_somebody_edited_counts_as_nothing(strange: Any) -> None:
    assert read_restarts({"restarts": strange}) == Restarts()


def test_times_are_rounded_up_so_that_no_wait_is_too_short() -> None:
    assert seconds_of(moment(NOW + 0.2)) == NOW + 1
    assert seconds_of(moment(NOW)) == NOW


def test_authority_of_a_part_does_not_hide_that_it_is_held() -> None:
    stuck = record(1, 2, {"lake": part(PartState.HELD, Authority.EPOCH, reason="QuotaExceeded", message="no room")})
    assert condition(plan(observed(ledger(2, stuck), driver(2))), "Stalled") == ("True", "QuotaExceeded")
