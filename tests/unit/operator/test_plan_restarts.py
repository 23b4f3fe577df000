"""What follows from the way a driver ended: restarts with backoff per cause, and what only a person can mend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import Emit
from sinkoperator.causes import Kind, cause_of
from sinkoperator.moments import seconds_of
from sinkoperator.observed import DriverPod, Observed, Trouble
from sinkoperator.plan import plan
from sinkruntime.cluster.report import Ended
from sinkruntime.errors import LedgerOutOfReach
from sinkruntime.protocol.ledger import Authority, PartState
from sinkruntime.protocol.start import StartReason
from tests.unit.operator.plan_world import (
    NOW,
    condition,
    driver,
    ended,
    held,
    kinds,
    ledger,
    observed,
    part,
    raw_of,
    record,
    told,
    with_status,
)

START = ["RaiseEpoch", "EnsureAccess", "CreateDriver"]
FAILED = Trouble("TargetError", "no such bucket")


@pytest.mark.parametrize(
    ("pod", "kind", "reason"),
    [
        (ended(1, 1, FAILED), Kind.USER, "TargetError"),
        (ended(1, 1), Kind.USER, "DriverFailed"),
        (ended(1, 2, Trouble("InvalidSpec", "x")), Kind.INVALID, "InvalidSpec"),
        (ended(1, 2), Kind.INVALID, "InvalidSpec"),
        (ended(1, 3, Trouble("Fenced", "x")), Kind.INFRASTRUCTURE, "Fenced"),
        (ended(1, 3, Trouble("InDoubt", "x")), Kind.HELD, "InDoubt"),
        (ended(1, 3, Trouble("LedgerUnavailable", "x")), Kind.INFRASTRUCTURE, "LedgerUnavailable"),
        (ended(1, 3, Trouble("QuotaExceeded", "x")), Kind.HELD, "QuotaExceeded"),
        *((ended(1, 1, Trouble(reason.value, "x")), Kind.REFUSED, reason.value) for reason in StartReason),
        (ended(1, 1, Trouble("LedgerCorrupt", "x")), Kind.REFUSED, "LedgerCorrupt"),
        (ended(1, 1, Trouble("LedgerUnavailable", "x")), Kind.INFRASTRUCTURE, "LedgerUnavailable"),
        (ended(1, 1, Trouble("TargetUnavailable", "x")), Kind.INFRASTRUCTURE, "TargetUnavailable"),
        (ended(1, 137, oom_killed=True), Kind.USER, "DriverOOMKilled"),
        (ended(1, 137), Kind.INFRASTRUCTURE, "DriverKilled"),
        (ended(1, 143), Kind.INFRASTRUCTURE, "DriverKilled"),
        (ended(1, 137, pod_reason="Evicted"), Kind.INFRASTRUCTURE, "DriverEvicted"),
        (ended(1, 1, exit_code=None, pod_reason="NodeLost"), Kind.INFRASTRUCTURE, "DriverNodeLost"),
        (ended(1, 0), Kind.DONE, "Done"),
        (ended(1, 0, Trouble("Stopped", "x")), Kind.STOPPED, "DriverStopped"),
        (ended(1, 0, deleting_since=NOW), Kind.STOPPED, "DriverStopped"),
        (ended(1, 1, exit_code=None), Kind.INFRASTRUCTURE, "DriverGone"),
    ],
)
def test_the_cause_is_read_off_the_pod(pod: DriverPod, kind: Kind, reason: str) -> None:
    cause = cause_of(pod)
    assert (cause.kind, cause.trouble.reason) == (kind, reason)


def fail(seen: Observed, times: int, code: int = 1, **fields: Any) -> Observed:
    """The same after so many drivers of it have failed in a row, each accounted for."""
    for _ in range(times):
        assert seen.ledger is not None
        found = seen.ledger.ledger
        assert found is not None
        epoch = found.epoch + 1
        pod = ended(epoch, code, FAILED if code == 1 else None, **fields)
        seen = replace(seen, ledger=held(ledger(epoch)), drivers=(pod,))
        seen = with_status(seen)
    return seen


@pytest.mark.parametrize(("times", "seconds"), [(1, 5), (2, 10), (4, 40), (7, 300), (10, 300)])
def test_each_failure_in_a_row_waits_longer_and_the_time_is_told_before_the_restart(times: int, seconds: float) -> None:
    seen = fail(observed(ledger(0)), times)
    made = plan(seen)
    assert kinds(made) == []
    assert made.status["phase"] == "Restarting"
    restarts = made.status["restarts"]
    assert restarts["consecutiveFailures"] == restarts["total"] == times
    assert seconds_of(restarts["nextRestartTime"]) == NOW + seconds
    assert made.look_again_seconds == min(300, seconds)
    assert kinds(plan(replace(seen, now=NOW + seconds))) == START


def test_an_end_is_counted_once_however_often_it_is_looked_at() -> None:
    seen = fail(observed(ledger(0)), 1)
    for _ in range(5):
        assert not plan(seen).urgent
        seen = with_status(seen)
    assert plan(seen).status["restarts"]["total"] == 1


def test_after_the_last_retry_the_job_has_failed_for_good() -> None:
    seen = fail(observed(ledger(0), raw=raw_of(restartPolicy={"maxRetries": 2})), 3)
    made = plan(replace(seen, now=NOW + 100_000))
    assert kinds(made) == []
    assert made.status["phase"] == "Failed"
    assert condition(made, "Failed") == condition(made, "Stalled") == ("True", "TargetError")
    assert made.status["failure"]["exitCode"] == 1


@pytest.mark.parametrize(
    "change", [{"restartNonce": 1}, {"image": "sinkjob-driver:2"}, {"recovery": {"nonce": 1, "accept": ["Aborted"]}}]
)
def test_another_word_of_a_person_starts_a_failed_job_at_once(change: dict[str, Any]) -> None:
    seen = fail(observed(ledger(0), raw=raw_of(restartPolicy={"maxRetries": 0})), 1)
    assert plan(seen).status["phase"] == "Failed"
    again = observed(raw=raw_of(restartPolicy={"maxRetries": 0}, **change)).job
    made = plan(replace(seen, job=replace(again, status=seen.job.status)))
    assert kinds(made)[-3:] == START


def test_a_driver_that_ran_for_long_sets_the_count_back() -> None:
    seen = fail(observed(ledger(0)), 4)
    seen = fail(seen, 1, started=NOW - 601)
    assert plan(seen).status["restarts"]["consecutiveFailures"] == 1
    assert plan(seen).status["restarts"]["total"] == 5


def test_what_the_cluster_did_is_never_counted_against_the_job_and_waits_all_the_same() -> None:
    seen = fail(observed(ledger(0), raw=raw_of(restartPolicy={"maxRetries": 1})), 20, code=137)
    made = plan(seen)
    assert made.status["phase"] == "Restarting"
    assert made.status["restarts"]["consecutiveFailures"] == 0
    assert made.status["restarts"]["lastCause"] == "DriverKilled"
    assert seconds_of(made.status["restarts"]["nextRestartTime"]) == NOW + 300


def test_a_ledger_that_was_out_of_reach_is_no_reason_to_wait_for_a_person() -> None:
    """Though something else is stuck: by then it may have come forward, and the start check says so."""
    stuck = record(1, 2, {"lake": part(PartState.HELD, reason="QuotaExceeded", message="no room")})
    error = Ended.by(LedgerOutOfReach("the ledger could not be read for 600 s"))
    pod = ended(2, int(error.code), Trouble(error.reason, error.message))
    later = with_status(observed(ledger(2, stuck), pod), now=NOW + 1000)
    assert kinds(plan(later)) == START


def test_policy_never_restarts_nothing() -> None:
    seen = fail(observed(ledger(0), raw=raw_of(restartPolicy={"type": "Never"})), 1, code=137)
    assert plan(replace(seen, now=NOW + 1000)).status["phase"] == "Failed"


def test_policy_always_starts_a_job_again_that_has_done_its_work() -> None:
    changes = {"trigger": {"type": "AvailableNow"}}
    raw = raw_of(**changes, restartPolicy={"type": "Always"})
    seen = with_status(observed(ledger(2), ended(2, 0, changes=changes), raw=raw))
    assert plan(seen).status["phase"] == "Restarting"
    assert "failure" not in plan(seen).status
    assert kinds(plan(replace(seen, now=NOW + 5)))[-3:] == START


@pytest.mark.parametrize("reason", sorted({*StartReason, "LedgerFormatTooNew"}))
def test_a_refused_start_waits_for_a_person_and_not_for_time(reason: str) -> None:
    said = Trouble(reason, "they differ", "restore it")
    seen = with_status(observed(ledger(2), ended(2, 1, said)))
    made = plan(replace(seen, now=NOW + 100_000))
    assert kinds(made) == []
    assert made.status["phase"] == "Stalled"
    assert condition(made, "Stalled") == ("True", reason)
    job = observed(raw=raw_of(recovery={"nonce": 1, "accept": ["NewCheckpoint"]})).job
    assert kinds(plan(replace(seen, job=replace(job, status=seen.job.status)))) == START


def test_a_manifest_that_the_driver_refuses_waits_for_another_one() -> None:
    said = Trouble("InvalidSpec", "no such module", path="spec.transform[0].python")
    made = plan(replace(with_status(observed(ledger(2), ended(2, 2, said))), now=NOW + 100_000))
    assert kinds(made) == []
    assert condition(made, "Stalled") == ("True", "InvalidSpec")
    assert made.status["failure"]["path"] == "spec.transform[0].python"


def test_a_driver_that_met_a_held_checkpoint_waits_until_it_comes_forward() -> None:
    stuck = record(1, 1, {"lake": part(PartState.HELD, reason="QuotaExceeded", message="no room")})
    seen = with_status(observed(ledger(2, stuck), ended(2, 3, Trouble("QuotaExceeded", "no room"))))
    later = replace(seen, now=NOW + 100)
    assert kinds(plan(later)) == []
    assert condition(plan(later), "Stalled") == ("True", "QuotaExceeded")
    assert kinds(plan(replace(later, ledger=held(ledger(2))))) == START, "the target has room again"


def test_a_decision_in_doubt_is_looked_at_by_the_next_start() -> None:
    seen = with_status(observed(ledger(2), ended(2, 3, Trouble("InDoubt", "refused"))))
    assert kinds(plan(seen)) == []
    assert kinds(plan(replace(seen, now=NOW + 5))) == START


def test_a_driver_that_vanished_is_started_again() -> None:
    seen = with_status(observed(ledger(2)))
    assert plan(seen).status["restarts"]["lastCause"] == "DriverGone"
    assert kinds(plan(replace(seen, now=NOW + 5))) == START


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"unschedulable": "0/3 nodes have room"}, "Unschedulable"),
        ({"waiting": Trouble("ImagePullBackOff", "not found")}, "ImagePullBackOff"),
        ({"waiting": Trouble("CreateContainerConfigError", "secret")}, "CreateContainerConfigError"),
    ],
)
def test_a_driver_that_cannot_start_yet_is_waited_for_with_a_condition(pod: dict[str, Any], reason: str) -> None:
    made = plan(observed(ledger(2, claim=""), driver(2, phase="Pending", ready=False, **pod)))
    assert kinds(made) == []
    assert condition(made, "DriverReady") == ("False", reason)
    assert condition(made, "Reconciling") == ("True", "Starting")
    assert made.status["restarts"]["total"] == 0
    message = next(entry["message"] for entry in made.status["conditions"] if entry["type"] == "DriverReady")
    assert " — " in message, "what to do"


def test_an_end_and_giving_up_are_told_once() -> None:
    seen = observed(ledger(2), ended(2, 1, FAILED), raw=raw_of(restartPolicy={"maxRetries": 0}))
    assert told(plan(seen)) == ["TargetError", "TargetError", "BackoffLimitExceeded"]
    assert told(plan(with_status(seen))) == []


def test_that_the_work_is_done_is_no_warning() -> None:
    changes = {"trigger": {"type": "AvailableNow"}}
    done = ended(2, 0, Trouble("Completed", "the source is done"), changes=changes)
    made = plan(observed(ledger(2), done, raw=raw_of(**changes)))
    warned = {action.reason: action.warning for action in made.actions if isinstance(action, Emit)}
    assert warned == {"Completed": False}


def test_a_driver_that_only_commits_never_gives_up() -> None:
    owed = record(1, 2, {"lake": part(authority=Authority.EPOCH)})
    raw = raw_of(suspend=True, restartPolicy={"type": "Never"})
    seen = observed(ledger(2, owed), ended(2, 1, FAILED, commit_only=True), raw=raw)
    later = with_status(seen, now=NOW + 10)
    assert kinds(plan(later)) == START
