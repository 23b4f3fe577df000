"""Suspending and resuming: stopped at a checkpoint boundary, nothing pending, and who commits what the driver left."""

from __future__ import annotations

from dataclasses import replace

from sinkoperator.actions import CreateDriver, EnsureCommitter, RunCoordinator, StopCommitter, StopCoordinator
from sinkoperator.names import committer_name
from sinkoperator.observed import CommitterPod, CoordinatorFacts, Observed, Trouble
from sinkoperator.plan import plan
from sinkruntime.protocol.ledger import Authority, CheckpointState, PartState
from sinkruntime.spec.digest import revision as revision_of
from tests.unit.operator.plan_world import (
    NAME,
    NOW,
    acts,
    condition,
    driver,
    ended,
    held,
    intent,
    kinds,
    ledger,
    observed,
    part,
    raw_of,
    record,
    spec_of,
    told,
    with_status,
)

SUSPENDED = raw_of(suspend=True)
START = ["RaiseEpoch", "EnsureAccess", "CreateDriver"]
IN_DRIVER = {"lake": part(authority=Authority.EPOCH)}


def test_suspend_stops_the_driver_waits_for_commits_and_is_then_reached() -> None:
    seen = observed(ledger(2, record(1, 2)), driver(2), raw=SUSPENDED)
    assert kinds(plan(seen)) == ["StopDriver"]
    gone = replace(with_status(seen), drivers=())
    waiting = plan(gone)
    assert waiting.status["phase"] == "Suspending"
    assert [type(action) for action in acts(waiting)] == [RunCoordinator]
    done = plan(replace(gone, ledger=held(ledger(2))))
    assert done.status["phase"] == "Suspended"
    assert condition(done, "Ready") == condition(done, "Suspended") == ("True", "Suspended")
    assert condition(done, "Reconciling") == ("", "")


def test_a_job_that_was_suspended_starts_without_counting_a_failure() -> None:
    seen = replace(with_status(observed(ledger(2), driver(2), raw=SUSPENDED)), drivers=())
    seen = with_status(seen)
    resumed = replace(seen, job=replace(observed().job, status=seen.job.status))
    made = plan(resumed)
    assert kinds(made) == START
    assert made.status["restarts"]["total"] == 0
    assert told(made)[0] == "Resumed"


def test_a_job_that_begins_suspended_makes_nothing() -> None:
    made = plan(observed(raw=SUSPENDED))
    assert acts(made) == []
    assert made.status["phase"] == "Suspended"


def test_an_invalid_manifest_can_still_be_suspended() -> None:
    raw = {**SUSPENDED, "sinks": []}
    assert kinds(plan(observed(ledger(2), driver(2), raw=raw))) == ["StopDriver"]


def test_held_checkpoints_keep_a_job_from_being_suspended_with_their_reason() -> None:
    stuck = record(1, 2, {"lake": part(PartState.HELD, reason="QuotaExceeded", message="no room")})
    made = plan(observed(ledger(2, stuck), raw=SUSPENDED))
    assert made.status["phase"] == "Suspending"
    assert condition(made, "Stalled") == ("True", "QuotaExceeded")
    assert condition(made, "CommitHealthy") == ("False", "QuotaExceeded")


def test_what_the_driver_commits_is_committed_by_a_driver_that_does_only_that() -> None:
    seen = replace(with_status(observed(ledger(2, record(1, 2, IN_DRIVER)), driver(2), raw=SUSPENDED)), drivers=())
    made = plan(seen)
    assert kinds(made) == START
    assert acts(made)[-1] == CreateDriver(
        3, revision_of(spec_of()), True, why="sinks that commit in the driver are owed commits"
    )
    running = replace(seen, ledger=held(ledger(3, record(1, 2, IN_DRIVER))), drivers=(driver(3, commit_only=True),))
    assert kinds(plan(running)) == []
    assert plan(running).status["phase"] == "Suspending"
    done = replace(seen, ledger=held(ledger(3)), drivers=(ended(3, 0, commit_only=True),))
    assert plan(done).status["phase"] == "Suspended"


def test_a_driver_that_only_commits_uses_the_revision_that_the_checkpoint_names() -> None:
    owed = record(1, 2, IN_DRIVER, revision="gone")
    made = plan(replace(with_status(observed(ledger(2, owed), driver(2), raw=SUSPENDED)), drivers=()))
    assert kinds(made) == []
    assert condition(made, "Stalled") == ("True", "RevisionLost")


def test_a_driver_that_only_commits_makes_room_when_the_job_works_again() -> None:
    seen = observed(ledger(3, record(1, 2, IN_DRIVER)), driver(3, commit_only=True))
    assert kinds(plan(seen)) == ["StopDriver"]
    assert kinds(plan(replace(with_status(seen), drivers=()))) == START


def test_a_driver_that_only_commits_waits_for_a_held_part_as_any_other() -> None:
    stuck = record(1, 2, {"lake": part(PartState.HELD, Authority.EPOCH, reason="QuotaExceeded", message="no room")})
    pod = ended(3, 3, Trouble("QuotaExceeded", "no room"), commit_only=True, changes={"suspend": True})
    seen = with_status(observed(ledger(3, stuck), pod, raw=SUSPENDED), now=NOW + 1000)
    assert kinds(plan(seen)) == []
    job = observed(raw=raw_of(suspend=True, restartNonce=1)).job
    assert kinds(plan(replace(seen, job=replace(job, status=seen.job.status)))) == START


def test_a_finished_batch_job_has_its_driver_sinks_committed() -> None:
    changes = {"mode": "Batch", "source": {"format": "parquet", "path": "s3a://bucket/in"}}
    run = intent(**changes).rpartition("/")[0]
    owed = record(1, 2, IN_DRIVER)
    made = plan(observed(ledger(2, owed, batches=(run,)), ended(2, 1, changes=changes), raw=raw_of(**changes)))
    assert [action.commit_only for action in acts(made) if isinstance(action, CreateDriver)] == [True]


def committer(number: int, **fields: object) -> CommitterPod:
    """A live committer pod for the default manifest."""
    pod = CommitterPod(
        committer_name(NAME, number), f"uid-{number}", number, revision_of(spec_of()), intent(), "Running"
    )
    return replace(pod, **fields)  # type: ignore[arg-type]


def in_pod(*pods: CommitterPod) -> Observed:
    """A job whose sink commits in the job's own image, with a driver that runs."""
    return replace(observed(ledger(2), driver(2)), run_on={"lake": "Job"}, committers=pods)


def test_a_job_with_a_sink_of_its_own_image_is_coordinated_whole_by_a_pod() -> None:
    running = replace(in_pod(), coordinator=CoordinatorFacts(running=True))
    assert [type(action) for action in acts(plan(running))] == [StopCoordinator, EnsureCommitter]
    assert acts(plan(in_pod(committer(1)))) == []


def test_a_committer_pod_for_another_intent_is_replaced() -> None:
    made = plan(in_pod(committer(4, intent="former")))
    assert [type(action) for action in acts(made)] == [StopCommitter, EnsureCommitter]
    assert [action.number for action in acts(made) if isinstance(action, EnsureCommitter)] == [5]


def test_a_committer_pod_that_ended_is_replaced_after_a_pause() -> None:
    last = committer(4, phase="Failed", finished=NOW)
    assert acts(plan(in_pod(last))) == []
    later = replace(in_pod(last), now=NOW + 20)
    assert [action.number for action in acts(plan(later)) if isinstance(action, EnsureCommitter)] == [5]


def test_nobody_coordinates_where_nothing_is_owed() -> None:
    idle = replace(observed(ledger(2), raw=SUSPENDED), coordinator=CoordinatorFacts(running=True))
    assert [type(action) for action in acts(plan(idle))] == [StopCoordinator]
    pod = replace(idle, run_on={"lake": "Job"}, committers=(committer(1),), coordinator=CoordinatorFacts())
    assert [type(action) for action in acts(plan(pod))] == [StopCommitter]


def test_what_is_left_to_be_cleaned_is_coordinated() -> None:
    left = record(1, 2, {"lake": part(PartState.COMMITTED)}, state=CheckpointState.COMMITTED)
    made = plan(observed(ledger(2, left), raw=SUSPENDED))
    assert [type(action) for action in acts(made)] == [RunCoordinator]
    assert made.status["phase"] == "Suspended", "nothing is pending"


def test_sinks_of_the_driver_are_told_to_the_coordinator() -> None:
    made = plan(replace(observed(ledger(2), driver(2)), run_on={"lake": "Operator", "own": "Driver"}))
    (action,) = acts(made)
    assert isinstance(action, RunCoordinator)
    assert action.driver_sinks == frozenset({"own"})
