"""Rules of the plan for a job that is to run: what is started, in which order, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import (
    AdoptLedger,
    CreateDriver,
    RaiseEpoch,
    RunCoordinator,
    StopDriver,
)
from sinkoperator.names import driver_name
from sinkoperator.observed import Missing, PlanSettings, Trouble
from sinkoperator.plan import plan
from sinkruntime.protocol.ledger import Authority, PartState
from sinkruntime.spec.digest import revision as revision_of
from tests.unit.operator.plan_world import (
    BATCH,
    NAME,
    NOW,
    acts,
    condition,
    driver,
    ended,
    held,
    intent,
    job,
    kinds,
    ledger,
    observed,
    part,
    raw_of,
    record,
    revision,
    spec_of,
    told,
    with_status,
)

OTHER_SINKS = [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/other"}}]


def test_a_new_job_gets_finalizer_revision_ledger_epoch_and_driver_in_this_order() -> None:
    made = plan(replace(observed(), job=job(finalizers=()), revisions=()))
    assert kinds(made) == [
        "AddFinalizer", "CreateLedger", "EnsureRevision", "RaiseEpoch", "EnsureAccess", "CreateDriver",
    ]  # fmt: skip
    assert told(made) == ["DriverCreated"]
    assert acts(made)[-1] == CreateDriver(1, revision_of(spec_of()), why="the job is to run")
    assert made.status["phase"] == "Starting"


def test_an_epoch_that_is_raised_and_has_no_driver_is_used() -> None:
    made = plan(observed(ledger(3, claim="")))
    assert kinds(made) == ["EnsureAccess", "CreateDriver"]
    assert [action.epoch for action in acts(made) if isinstance(action, CreateDriver)] == [3]


def test_an_epoch_that_was_claimed_is_never_used_again() -> None:
    first = plan(observed(ledger(3)))
    assert kinds(first) == [], "the end is accounted for before the restart"
    assert first.urgent
    later = with_status(observed(ledger(3)), now=NOW + 10)
    assert [action.epoch for action in acts(plan(later)) if isinstance(action, RaiseEpoch)] == [4]


def test_an_epoch_whose_unclaimed_driver_has_failed_is_not_used_again() -> None:
    seen = observed(ledger(3, claim=""), ended(3))
    later = replace(with_status(seen, now=NOW + 10), drivers=())
    assert [action.epoch for action in acts(plan(later)) if isinstance(action, RaiseEpoch)] == [4]


def test_a_running_driver_is_left_alone_and_commits_are_coordinated() -> None:
    made = plan(observed(ledger(2), driver(2)))
    assert [type(action) for action in acts(made)] == [RunCoordinator]
    assert made.status["phase"] == "Running"
    assert condition(made, "Ready") == ("True", "Running")
    assert condition(made, "Reconciling") == condition(made, "Stalled") == ("", "")


@pytest.mark.parametrize("pod", [driver(1), driver(1, phase="Pending", ready=False), driver(1, phase="Unknown")])
def test_no_driver_is_created_while_an_older_one_may_live(pod: Any) -> None:
    made = plan(observed(ledger(2, claim=""), pod))
    assert kinds(made) == ["StopDriver"]
    assert condition(made, "Ready") == ("False", "OlderDriver")


def test_a_driver_of_an_older_epoch_that_is_ending_is_waited_for() -> None:
    made = plan(observed(ledger(2, claim=""), driver(1, deleting_since=NOW - 5)))
    assert kinds(made) == []


def test_a_driver_whose_node_is_lost_is_fenced_by_the_next_epoch() -> None:
    lost = driver(2, deleting_since=NOW - 1000)
    seen = observed(ledger(2), lost)
    first = plan(seen)
    assert kinds(first) == []
    assert first.status["failure"]["reason"] == "NodeLost"
    later = plan(with_status(seen, now=NOW + 10))
    assert RaiseEpoch(3, (driver_name(NAME, 2),), why="NodeLost") in later.actions
    assert "CreateDriver" in kinds(later)
    (coordinator,) = [action for action in later.actions if isinstance(action, RunCoordinator)]
    assert coordinator.gone_below == 2, "a lost node's process may live: it does not count as gone"


def test_a_node_is_not_taken_for_lost_before_grace_and_bound_are_over() -> None:
    seen = observed(ledger(2), driver(2, deleting_since=NOW - 89, grace_seconds=30))
    assert kinds(plan(seen)) == []
    assert plan(seen).look_again_seconds <= 20


def test_a_pod_of_another_sinkjob_is_an_error_and_is_not_touched() -> None:
    made = plan(observed(ledger(2, claim=""), driver(1, ours=False)))
    assert kinds(made) == []
    assert condition(made, "Ready") == ("False", "NameTaken")


def test_a_changed_manifest_stops_the_driver_and_starts_the_next_when_nothing_is_pending() -> None:
    raw = raw_of(sinks=OTHER_SINKS)
    seen = observed(ledger(2, record(1, 2)), driver(2), raw=raw)
    made = plan(seen)
    assert kinds(made) == ["EnsureRevision", "StopDriver"]
    assert made.status["phase"] == "Upgrading"
    assert condition(made, "UpgradePending") == ("True", "NewRevision")
    gone = replace(with_status(seen), drivers=())
    waiting = plan(gone)
    assert kinds(waiting) == ["EnsureRevision"], "the former sinks are committed first"
    assert waiting.status["phase"] == "Upgrading"
    committed = replace(gone, ledger=held(ledger(2)))
    assert kinds(plan(committed)) == ["EnsureRevision", "RaiseEpoch", "EnsureAccess", "CreateDriver"]


def test_a_changed_manifest_with_the_same_sinks_does_not_wait_for_commits() -> None:
    raw = raw_of(image="sinkjob-driver:2")
    seen = observed(ledger(2, record(1, 2)), driver(2), raw=raw)
    assert kinds(plan(seen)) == ["EnsureRevision", "StopDriver"]
    gone = replace(with_status(seen), drivers=())
    assert kinds(plan(gone)) == ["EnsureRevision", "RaiseEpoch", "EnsureAccess", "CreateDriver"]


@pytest.mark.parametrize(
    "changes",
    [
        {"restartPolicy": {"type": "Never"}},
        {"ttlSecondsAfterFinished": 5},
        {"deletionPolicy": "Orphan"},
        {"deletionTimeout": "1m"},
        {"recovery": {"nonce": 1, "accept": ["InDoubt"]}},
        {"upgrade": {"mode": "Stateless"}},
    ],
)
def test_how_a_job_is_looked_after_restarts_nothing(changes: dict[str, Any]) -> None:
    made = plan(observed(ledger(2), driver(2), raw=raw_of(**changes)))
    assert kinds(made) == []
    assert made.status["phase"] == "Running"


def test_a_raised_restart_nonce_restarts_at_a_checkpoint_boundary() -> None:
    seen = observed(ledger(2, record(1, 2)), driver(2), raw=raw_of(restartNonce=1))
    made = plan(seen)
    assert [action for action in acts(made) if isinstance(action, StopDriver)] == [
        StopDriver(driver_name(NAME, 2), "pod-2", 60, why="spec.restartNonce was raised")
    ]
    gone = plan(replace(with_status(seen), drivers=()))
    assert kinds(gone) == ["RaiseEpoch", "EnsureAccess", "CreateDriver"], "what is pending is committed meanwhile"
    assert gone.status["restarts"]["total"] == 0, "a restart that was asked for is no failure"


def test_a_stateless_upgrade_needs_a_word_and_the_old_driver_runs_until_then() -> None:
    raw = raw_of(image="sinkjob-driver:2", upgrade={"mode": "Stateless"})
    made = plan(observed(ledger(2), driver(2), raw=raw))
    assert kinds(made) == ["EnsureRevision"]
    assert condition(made, "Stalled") == ("True", "NewCheckpoint")
    word = {**raw, "recovery": {"nonce": 1, "accept": ["NewCheckpoint"]}}
    assert kinds(plan(observed(ledger(2), driver(2), raw=word))) == ["EnsureRevision", "StopDriver"]


def test_a_word_of_recovery_restarts_a_driver_that_commits_what_is_stuck() -> None:
    stuck = record(1, 2, {"lake": part(PartState.HELD, Authority.EPOCH, reason="TargetBehindLedger", message="x")})
    raw = raw_of(recovery={"nonce": 1, "accept": ["TargetBehindLedger"]})
    assert kinds(plan(observed(ledger(2, stuck), driver(2), raw=raw))) == ["StopDriver"]
    by_operator = record(1, 2, {"lake": part(PartState.HELD, reason="TargetBehindLedger", message="x")})
    seen = observed(ledger(2, by_operator), driver(2), raw=raw)
    assert kinds(plan(seen)) == [], "the operator's coordinator reads the word without a restart"
    (coordinator,) = [action for action in plan(seen).actions if isinstance(action, RunCoordinator)]
    assert coordinator.intent == intent(recovery={"nonce": 1, "accept": ["TargetBehindLedger"]})


def test_a_missing_secret_stalls_the_start_with_its_name_and_path() -> None:
    path = "spec.sinks[0].optionsFrom[0].secretRef.name"
    made = plan(replace(observed(ledger(1, claim="")), missing=(Missing("Secret", "lake-keys", path),)))
    assert kinds(made) == []
    assert condition(made, "Stalled") == ("True", "SecretNotFound")
    message = next(c["message"] for c in made.status["conditions"] if c["type"] == "Stalled")
    assert path in message
    assert "lake-keys" in message
    assert made.look_again_seconds <= 15


def test_a_full_namespace_makes_a_job_wait() -> None:
    full = replace(observed(ledger(1, claim="")), settings=PlanSettings(drivers_per_namespace_max=2), other_drivers=2)
    made = plan(full)
    assert kinds(made) == []
    assert condition(made, "Ready") == ("False", "NamespaceLimit")
    assert made.status["phase"] == "Pending"
    assert "CreateDriver" in kinds(plan(replace(full, other_drivers=1)))


def test_a_refused_create_is_told_and_tried_again_under_the_same_epoch() -> None:
    trouble = Trouble("QuotaExceeded", "exceeded quota: pods=10", "free something")
    made = plan(replace(observed(ledger(4, claim="")), refused=trouble))
    assert kinds(made) == ["EnsureAccess", "CreateDriver"]
    assert condition(made, "DriverReady") == ("False", "QuotaExceeded")
    assert made.look_again_seconds <= 15


def test_an_invalid_manifest_leaves_driver_and_commits_alone_and_says_the_path() -> None:
    raw = raw_of(sinks=[{"name": "lake", "type": "file", "tabel": 1}])
    made = plan(observed(ledger(2, record(1, 2)), driver(2), raw=raw))
    assert [type(action) for action in acts(made)] == [RunCoordinator]
    assert condition(made, "Accepted") == ("False", "InvalidSpec")
    assert condition(made, "Stalled") == ("True", "InvalidSpec")
    assert "spec.sinks[0].tabel" in next(c["message"] for c in made.status["conditions"] if c["type"] == "Accepted")
    without = plan(observed(ledger(2, record(1, 2)), raw=raw))
    assert [type(action) for action in acts(without)] == [RunCoordinator], "no driver is started"


@pytest.mark.parametrize("reason", ["LedgerCorrupt", "LedgerFormatTooNew"])
def test_a_ledger_that_cannot_be_read_stalls_the_job_and_nothing_is_touched(reason: str) -> None:
    bad = held(None, trouble=Trouble(reason, "checksum", "restore it"))
    made = plan(replace(observed(), ledger=bad, drivers=(driver(2),)))
    assert acts(made) == []
    assert condition(made, "Stalled") == ("True", reason)


def test_a_ledger_that_was_deleted_is_made_anew_with_a_warning_and_the_start_check_decides() -> None:
    before = with_status(observed(ledger(5), driver(5)))
    made = plan(replace(before, ledger=None, drivers=()))
    assert kinds(made) == ["CreateLedger", "RaiseEpoch", "EnsureAccess", "CreateDriver"]
    assert "LedgerMissing" in told(made)


def test_accounts_of_a_former_ledger_do_not_count_in_a_new_one() -> None:
    seen = observed(ledger(9), ended(9))
    later = with_status(seen, ledger=held(ledger(1)), drivers=(ended(1),))
    made = plan(later)
    assert made.status["restarts"]["lastEnd"]["epoch"] == 1
    assert made.status["restarts"]["consecutiveFailures"] == 1


def test_an_orphaned_ledger_is_taken_over_and_another_jobs_is_not() -> None:
    orphan = plan(replace(observed(), ledger=held(ledger(3), owner_uid="", finalizer=False)))
    assert isinstance(acts(orphan)[0], AdoptLedger)
    other = plan(replace(observed(), ledger=held(ledger(3), owner_uid="another")))
    assert acts(other) == []
    assert condition(other, "Stalled") == ("True", "LedgerForeign")


def test_a_batch_job_that_is_decided_is_never_run_again() -> None:
    raw = raw_of(**BATCH)
    run = intent(**BATCH).rpartition("/")[0]
    pod = ended(2, 0, changes=BATCH)
    seen = observed(ledger(2, record(1, 2), batches=(run,)), pod, raw=raw)
    finishing = plan(seen)
    assert kinds(finishing) == ["EnsureRevision"]
    assert finishing.status["phase"] == "Finishing"
    done = plan(replace(seen, ledger=held(ledger(2, batches=(run,)))))
    assert done.status["phase"] == "Succeeded"
    assert condition(done, "Complete") == ("True", "Completed")
    assert condition(done, "Ready") == ("True", "Completed")
    failed = plan(observed(ledger(2, batches=(run,)), ended(2, 1, changes=BATCH), raw=raw))
    assert failed.status["phase"] == "Succeeded", "the driver died after the decision"
    assert failed.status["restarts"]["total"] == 0, "no restart follows, so none is counted"


def test_a_batch_job_runs_again_with_another_nonce_only() -> None:
    run = intent(**BATCH).rpartition("/")[0]
    seen = observed(ledger(2, batches=(run,)), ended(2, 0, changes=BATCH), raw=raw_of(**BATCH, restartNonce=1))
    made = plan(replace(seen, revisions=(revision(**BATCH),)))
    assert kinds(made) == ["RaiseEpoch", "EnsureAccess", "CreateDriver"]


def test_a_streaming_job_that_takes_what_is_there_finishes() -> None:
    changes = {"trigger": {"type": "AvailableNow"}}
    seen = observed(ledger(2), ended(2, 0, changes=changes), raw=raw_of(**changes))
    assert plan(seen).status["phase"] == "Succeeded"
    later = plan(replace(with_status(seen), drivers=()))
    assert later.status["phase"] == "Succeeded", "also when its pod is gone"
    assert kinds(later) == []


@pytest.mark.parametrize("pod", [{"deleting_since": NOW - 3}, {"termination": Trouble("Stopped", "asked to")}])
def test_a_driver_that_was_told_to_stop_has_not_finished(pod: dict[str, Any]) -> None:
    changes = {"trigger": {"type": "AvailableNow"}}
    seen = observed(ledger(2), ended(2, 0, changes=changes, **pod), raw=raw_of(**changes))
    assert plan(seen).status["phase"] == "Restarting"


def test_a_finished_job_is_deleted_after_its_time() -> None:
    changes = {"trigger": {"type": "AvailableNow"}, "ttlSecondsAfterFinished": 30}
    raw = raw_of(**changes)
    seen = observed(ledger(2), ended(2, 0, changes={"trigger": {"type": "AvailableNow"}}), raw=raw)
    assert "DeleteJob" not in kinds(plan(seen))
    assert plan(seen).look_again_seconds <= 31
    assert kinds(plan(with_status(seen, now=NOW + 32))) == ["DeleteJob"]


def test_what_nothing_refers_to_is_removed() -> None:
    old = tuple(replace(revision(), name=f"old-{number}", number=number) for number in range(1, 15))
    present = replace(revision(), number=15)
    named = record(1, 3, revision="old-2")
    seen = observed(ledger(3, named), ended(1), ended(2), driver(3))
    seen = replace(seen, revisions=(*old, present), driver_configs=frozenset({0, 1, 2, 3}))
    made = plan(seen)
    assert kinds(made) == ["DeletePod", "DeletePod", "PruneDriverObjects", "PruneRevisions"]
    assert acts(made)[-1].revisions == ("old-1", "old-3", "old-4", "old-5")  # type: ignore[union-attr]
    assert acts(made)[-2].epochs == (0,)  # type: ignore[union-attr]
