"""What a driver's sinks leave behind is removed though the operator commits its part of the checkpoint much later: the
driver that only commits has ended by then, and another one is started for the clean-up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinkoperator.plan import plan
from sinkruntime.protocol.ledger import Authority, PartState
from tests.unit.operator.plan_cluster import Cluster, new_cluster
from tests.unit.operator.plan_world import raw_of
from tests.unit.operator.test_plan_random import BOTH

RAW = raw_of(sinks=BOTH)
LOOKS_MAX = 100


def step(cluster: Cluster, operator_commits: bool) -> None:
    """A look, its actions, and what processes do meanwhile."""
    seen = cluster.observe()
    decision = plan(seen)
    cluster.job = replace(cluster.job, status=dict(decision.status))
    for action in decision.actions:
        cluster.apply(seen, action)
    if not cluster.gone:
        coordinator = cluster.coordinator
        cluster.coordinator = coordinator if operator_commits else None
        cluster.lives()
        cluster.coordinator = coordinator
    cluster.now += min(60.0, decision.look_again_seconds)


def left_to_the_operator(leave: bool) -> Cluster:
    """A stopped job: its driver's part is committed and nobody of the driver lives, the operator's target was away."""
    cluster = new_cluster(1, RAW)
    for _ in range(LOOKS_MAX):
        if cluster.ledger is not None and cluster.ledger.pending:
            break
        step(cluster, operator_commits=not cluster.ledger or not cluster.ledger.decided)
    if leave:
        cluster.job = replace(cluster.job, deleting_since=cluster.now)
    else:
        cluster.edit({**RAW, "suspend": True})
    for _ in range(LOOKS_MAX):
        step(cluster, operator_commits=False)
        living = [pod for pod in cluster.pods.values() if not pod.ended]
        if not living and not _owed_by_drivers(cluster):
            break
    assert cluster.ledger is not None
    assert {part.state for record in cluster.ledger.pending for part in record.parts.values()} == {
        PartState.PENDING, PartState.COMMITTED,
    }  # fmt: skip
    return cluster


def _owed_by_drivers(cluster: Cluster) -> bool:
    assert cluster.ledger is not None
    parts = [part for record in cluster.ledger.pending for part in record.parts.values()]
    return any(part.authority is Authority.EPOCH and part.state is not PartState.COMMITTED for part in parts)


@pytest.mark.parametrize("leave", [False, True])
def test_a_driver_is_started_again_for_what_is_left_to_be_cleaned(leave: bool) -> None:
    cluster = left_to_the_operator(leave)
    assert cluster.ledger is not None
    before = cluster.ledger.epoch
    for _ in range(LOOKS_MAX):
        if cluster.gone or not cluster.ledger.records:
            break
        step(cluster, operator_commits=True)
    assert cluster.gone or not cluster.ledger.records, "all is removed"
    assert cluster.gone or cluster.ledger.epoch > before, "by another driver"
    for _ in range(LOOKS_MAX):
        step(cluster, operator_commits=True) if not cluster.gone else None
    assert cluster.gone is leave


def test_no_driver_is_started_while_only_the_operator_owes_something() -> None:
    cluster = left_to_the_operator(leave=False)
    assert cluster.ledger is not None
    before = cluster.ledger.epoch
    for _ in range(LOOKS_MAX):
        step(cluster, operator_commits=False)
    assert cluster.ledger.epoch == before
