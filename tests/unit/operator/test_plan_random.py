"""Random worlds: pods die, nodes are lost, writes are lost or doubled, two replicas act at once, people edit.

What must never happen is asserted by the cluster itself; here, that what is wanted is reached once the faults stop.
The seed is in the test's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import Decision
from sinkoperator.names import intent
from sinkoperator.observed import Observed, Trouble
from sinkoperator.plan import plan
from tests.unit.operator.plan_cluster import Cluster, Lost, new_cluster
from tests.unit.operator.plan_world import BATCH, RAW, raw_of

SEEDS = 25
STEPS = 120
HEALING_STEPS = 250

IN_DRIVER = [{"name": "lake", "type": "file", "options": {"path": "s3a://b/o"}, "commit": {"runOn": "Driver"}}]
OTHER = [{"name": "lake", "type": "file", "options": {"path": "s3a://b/other"}}]
BOTH = [*OTHER, {"name": "own", "type": "file", "options": {"path": "s3a://b/own"}, "commit": {"runOn": "Driver"}}]

MANIFESTS: tuple[dict[str, Any], ...] = (
    RAW,
    raw_of(image="driver:2"),
    raw_of(sinks=OTHER),
    raw_of(sinks=IN_DRIVER),
    raw_of(sinks=BOTH),
    raw_of(sinks=BOTH, restartNonce=1),
    raw_of(restartNonce=1),
    raw_of(recovery={"nonce": 1, "accept": ["NewCheckpoint"]}),
    raw_of(suspend=True),
    raw_of(sinks=IN_DRIVER, suspend=True),
    raw_of(sinks=[]),
    raw_of(**BATCH),
    raw_of(**BATCH, sinks=IN_DRIVER),
    raw_of(**BATCH, restartNonce=2),
)
ENDS: tuple[tuple[int, Trouble | None, dict[str, Any]], ...] = (
    (1, Trouble("TargetError", "x"), {}),
    (137, None, {}),
    (137, None, {"oom_killed": True}),
    (137, None, {"pod_reason": "Evicted"}),
    (3, Trouble("InDoubt", "x"), {}),
    (1, None, {}),
    (0, Trouble("Stopped", "x"), {}),
)


def look(cluster: Cluster, seen: Observed, decision: Decision, faults: bool) -> None:
    """Apply a decision, as the shell does it; with faults it may stop anywhere, and an action may be done twice."""
    chance = cluster.random.random
    if cluster.gone:
        return
    if decision.urgent or chance() < 0.7 or not faults:
        if faults and chance() < 0.05:
            return  # the status could not be written: nothing is done
        cluster.job = replace(cluster.job, status=dict(decision.status))
    try:
        for action in decision.actions:
            if faults and chance() < 0.05:
                return
            cluster.apply(seen, action)
            if faults and chance() < 0.05:
                cluster.apply(seen, action)
            if faults and chance() < 0.05:
                return
    except Lost:
        return


def disaster(cluster: Cluster) -> None:
    """Something happens to a pod, or a person does something."""
    choose = cluster.random
    living = [pod for pod in cluster.pods.values() if not pod.ended and pod.name not in cluster.lost_nodes]
    pod = choose.choice(living) if living else None
    what = choose.randrange(8)
    if what < 3 and pod is not None and pod.phase == "Running":
        code, said, fields = choose.choice(ENDS)
        cluster.end(pod, code, said, **fields)
    elif what == 3 and pod is not None:
        del cluster.pods[pod.name]  # by hand, or by its node's end
    elif what == 4 and pod is not None:
        since = pod.deleting_since if pod.deleting_since is not None else cluster.now
        cluster.pods[pod.name] = replace(pod, deleting_since=since)
        cluster.lost_nodes.add(pod.name)
    elif what == 5:
        cluster.edit(choose.choice(MANIFESTS))
    elif what == 6:
        cluster.coordinator, cluster.begun = None, ""  # the replica dies; the next one takes over
    elif what == 7 and cluster.lost_nodes:
        name = choose.choice(sorted(cluster.lost_nodes))
        cluster.lost_nodes.discard(name)
        cluster.pods.pop(name, None)


def run(cluster: Cluster, steps: int, faults: bool) -> None:
    """So many steps of time."""
    chance = cluster.random.random
    for _ in range(0 if cluster.gone else steps):
        seen = cluster.observe()
        decision = plan(seen)
        if faults and chance() < 0.15:  # another replica comes between
            other = cluster.observe()
            look(cluster, other, plan(other), faults)
            cluster.lives()
        look(cluster, seen, decision, faults)
        if cluster.gone:
            return
        cluster.lives()
        if faults and chance() < 0.3:
            disaster(cluster)
        cluster.now += cluster.random.choice((0.1, 1, 5)) if faults else min(60.0, decision.look_again_seconds)


def heal(cluster: Cluster) -> None:
    """Faults stop: lost nodes come back or are removed."""
    for name in cluster.lost_nodes:
        cluster.pods.pop(name, None)
    cluster.lost_nodes.clear()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_wanted_state_is_reached_and_no_two_drivers_work(seed: int) -> None:
    cluster = new_cluster(seed, MANIFESTS[seed % len(MANIFESTS)])
    run(cluster, STEPS, faults=True)
    heal(cluster)
    wanted = MANIFESTS[cluster.random.randrange(len(MANIFESTS))]
    if wanted["sinks"] == []:
        wanted = RAW
    cluster.edit({**wanted, "restartNonce": 100 + seed})  # a person's last word
    run(cluster, HEALING_STEPS, faults=False)
    status = cluster.job.status
    spec = cluster.job.spec
    assert spec is not None
    if wanted.get("suspend"):
        assert status["phase"] == "Suspended"
        assert not [pod for pod in cluster.pods.values() if not pod.ended]
        assert cluster.ledger is None or not cluster.ledger.pending
    elif spec.mode == "Batch":
        assert status["phase"] == "Succeeded"
        assert cluster.ledger is not None
        assert not cluster.ledger.records
    else:
        (pod,) = [pod for pod in cluster.pods.values() if not pod.ended]
        assert (status["phase"], pod.intent, pod.commit_only) == ("Running", intent(spec), False)
    assert not plan(cluster.observe()).urgent


@pytest.mark.parametrize("policy", ["Drain", "Abort", "Orphan"])
@pytest.mark.parametrize("seed", range(SEEDS // 5))
def test_whatever_happens_a_deleted_job_goes_and_loses_nothing(seed: int, policy: str) -> None:
    cluster = new_cluster(seed, {**MANIFESTS[seed % len(MANIFESTS)], "deletionPolicy": policy})
    run(cluster, STEPS // 3, faults=True)
    cluster.edit({**cluster.job.raw, "deletionPolicy": policy})
    if not cluster.job.finalizers:
        cluster.job = replace(cluster.job, finalizers=("sinkjob.io/job",))
    cluster.job = replace(cluster.job, deleting_since=cluster.now)
    run(cluster, STEPS // 3, faults=True)
    heal(cluster)
    run(cluster, HEALING_STEPS, faults=False)
    assert cluster.gone
    if cluster.ledger is not None:
        assert {record.revision for record in cluster.ledger.records} <= set(cluster.revisions)
