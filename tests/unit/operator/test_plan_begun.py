"""No epoch is raised before a coordinator has begun with what is asked for: it tries again what was held, and then the
driver's start check may judge what is held still. So for the operator's coordinator and for a committer pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import EnsureCommitter, EnsureRevision, RunCoordinator
from sinkoperator.names import committer_name, run_of
from sinkoperator.observed import CommitterPod, CoordinatorFacts, Observed, Trouble
from sinkoperator.plan import plan
from sinkruntime.kube.names import committer_holder
from sinkruntime.protocol.ledger import PartState
from sinkruntime.spec.digest import revision as revision_of
from tests.unit.operator.plan_world import (
    NAME,
    acts,
    condition,
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
    spec_of,
    with_status,
)

HELD = record(1, 2, {"lake": part(PartState.HELD, reason="QuotaExceeded", message="no room")})
AGAIN = {"restartNonce": 1}
START = ["RaiseEpoch", "EnsureAccess", "CreateDriver"]


def asked(begun: str = "", claim: str = "claimed", **changes: Any) -> Observed:
    """A job without a driver and with a held checkpoint, whose person has just asked for another try."""
    coordinator = CoordinatorFacts(running=True, begun=begun)
    last = ended(2, 3, Trouble("QuotaExceeded", "no room"))
    seen = observed(ledger(2, HELD, claim=claim), *([last] if claim else []), raw=raw_of(**AGAIN, **changes))
    return replace(seen, coordinator=coordinator)


@pytest.mark.parametrize("begun", ["", intent()])
def test_the_epoch_waits_until_a_coordinator_has_begun_with_what_is_asked_for(begun: str) -> None:
    made = plan(asked(begun))
    assert kinds(made) == []
    (action,) = acts(made)
    assert isinstance(action, RunCoordinator)
    assert action.intent == intent(**AGAIN)
    assert made.status["phase"] == "Restarting"


def test_what_is_waited_for_is_told() -> None:
    seen = replace(asked(), ledger=held(ledger(2, record(1, 2))))
    assert condition(plan(seen), "Ready") == ("False", "CommitsBegin")


def test_the_epoch_is_raised_once_it_has_begun() -> None:
    assert kinds(plan(asked(intent(**AGAIN)))) == START


def test_a_driver_of_an_epoch_that_is_raised_already_waits_for_it_too() -> None:
    assert kinds(plan(asked(claim=""))) == []
    assert kinds(plan(asked(intent(**AGAIN), claim=""))) == START[1:]


def test_where_nothing_is_pending_no_driver_waits() -> None:
    seen = replace(asked(), ledger=held(ledger(2)), coordinator=CoordinatorFacts())
    assert kinds(plan(seen)) == START


def test_the_revision_is_kept_before_anybody_coordinates_under_it() -> None:
    made = plan(asked(image="driver:2"))
    assert [type(action) for action in acts(made)] == [EnsureRevision, RunCoordinator]
    leaving = replace(asked(image="driver:2"), job=job(raw_of(image="driver:2"), deleting_since=0.0))
    leaving = replace(leaving, now=1.0)
    assert [type(action) for action in acts(plan(leaving))] == [EnsureRevision, RunCoordinator]


def in_pod(holder: str, **changes: Any) -> Observed:
    """The same where a committer pod coordinates, and the token is this holder's."""
    spec = spec_of(**AGAIN, **changes)
    pod = CommitterPod(committer_name(NAME, 3), "uid-3", 3, revision_of(spec), intent(**AGAIN, **changes), "Running")
    seen = replace(asked(**changes), coordinator=CoordinatorFacts(), run_on={"lake": "Job"}, committers=(pod,))
    return replace(seen, ledger=held(ledger(2, HELD, holder=holder)))


def test_a_committer_pod_has_begun_once_the_token_is_its_own() -> None:
    name = committer_name(NAME, 3)
    others = ("", f"{committer_holder(committer_name(NAME, 2), 'uid-2')}/a", f"{committer_holder(name, 'uid-2')}/a")
    for holder in others:
        assert kinds(plan(in_pod(holder))) == [], holder
    assert kinds(plan(in_pod(f"{committer_holder(name, 'uid-3')}/a"))) == START


def test_the_pod_that_commits_for_former_sinks_is_made_for_the_revision_that_waits_for_them() -> None:
    other = [{"name": "lake", "type": "file", "options": {"path": "s3a://b/other"}, "commit": {"runOn": "Job"}}]
    made = plan(replace(in_pod("", sinks=other), committers=()))
    assert [type(action) for action in acts(made)] == [EnsureRevision, EnsureCommitter]


def retried(seen: Observed) -> str:
    """For which run this plan's coordinator is told that what is held was tried again."""
    (action,) = [action for action in acts(plan(seen)) if isinstance(action, RunCoordinator)]
    return action.retried


def test_the_next_replica_is_told_that_what_is_held_was_tried_again() -> None:
    run = run_of(intent(**AGAIN))
    before = asked()
    assert retried(before) == "", "nobody has tried it again yet"
    tried = with_status(asked(intent(**AGAIN)))
    assert tried.job.status["commit"]["retried"] == run
    taken_over = replace(tried, coordinator=CoordinatorFacts())
    assert retried(taken_over) == run
    assert retried(with_status(taken_over)) == run, "and the one after it"


def test_nothing_is_remembered_once_nothing_is_held() -> None:
    tried = with_status(asked(intent(**AGAIN)))
    assert "retried" not in plan(replace(tried, ledger=held(ledger(2)))).status["commit"]
