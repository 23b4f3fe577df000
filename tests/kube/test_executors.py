"""Executors that cannot start: a real API server says why, and the watch over them ends the run with its words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.cluster import executors
from sinkruntime.cluster.executors import Cluster, ExecutorWatch, NoExecutors
from sinkruntime.cluster.pods import JobPods
from sinkruntime.environment import SystemClock
from sinkruntime.kube import NAMESPACE, POD, SERVICE_ACCOUNT, Api, Kind, Object
from sinkruntime.spark import kubernetes
from sinkruntime.spark.kubernetes import DriverPod
from sinkruntime.spec.models import SinkJobSpec

QUOTA = Kind("v1", "resourcequotas", "ResourceQuota")
BOUND_SECONDS = 0.2


class Absent:
    """Spark as it is while no executor comes."""

    def __init__(self) -> None:
        self.given_up = 0

    def registered(self) -> int:
        return 0

    def wanted(self) -> bool:
        return True

    def give_up(self) -> None:
        self.given_up += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(executors, "CANCELS_MAX", 2)


def pod_of(namespace: str) -> DriverPod:
    return DriverPod(namespace, "flights", 3, "flights-driver-3", "10.0.0.1", "sinkjob:1", Path("/m"), "https://h")


def spec_of(**fields: Any) -> SinkJobSpec:
    return SinkJobSpec.model_validate(
        {"source": {"format": "rate"}, "sinks": [{"name": "s", "type": "console"}], **fields}
    )


async def ended(api: Api, namespace: str, probe: Object, bound_seconds: float = BOUND_SECONDS) -> NoExecutors:
    """How a watch ends that never sees an executor."""
    spark, stops = Absent(), []
    async with api.watch(POD, namespace, labels="sinkjob.io/job=flights") as watch:
        await watch.synced.wait()
        cluster = Cluster(api, JobPods(watch, 3), namespace, probe)
        made = ExecutorWatch(spark, cluster, SystemClock(), bound_seconds)
        with pytest.raises(NoExecutors) as caught:
            await asyncio.wait_for(made.run(lambda: stops.append(True)), 20)
    assert made.error is caught.value
    assert spark.given_up == 2
    assert stops == [True]
    return caught.value


async def test_our_pod_passes_the_restricted_level_and_a_bare_one_is_refused_in_the_servers_words(
    api: Api, namespace: str
) -> None:
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch(NAMESPACE, "", namespace, restricted)
    await _account(api, namespace)
    pod, spec = pod_of(namespace), spec_of()
    ours = kubernetes.like_an_executor(pod, spec, kubernetes.executor_pod(spec, pod))
    passed = await ended(api, namespace, ours)
    assert passed.reason == "ExecutorsMissing", passed
    bare = {"metadata": {"generateName": "bare-"}, "spec": {"containers": [{"name": "executor", "image": "x:1"}]}}
    refused = await ended(api, namespace, bare)
    assert refused.reason == "ExecutorsRefused"
    assert 'violates PodSecurity "restricted' in refused.message
    assert "podTemplate" in refused.advice


async def test_a_quota_that_is_used_up_is_told_and_waited_for(api: Api, namespace: str) -> None:
    await _account(api, namespace)
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.memory": "1Mi"}}}
    await api.create(QUOTA, namespace, quota)
    await _until_quota(api, namespace)
    pod, spec = pod_of(namespace), spec_of()
    probe = kubernetes.like_an_executor(pod, spec, kubernetes.executor_pod(spec, pod))
    refused = await ended(api, namespace, probe)
    assert refused.reason == "ExecutorsRefused"
    assert "exceeded quota: small" in refused.message
    assert "ResourceQuota" in refused.advice


async def test_a_refusal_that_no_waiting_mends_is_not_waited_for(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "QUICK_SECONDS", 0.1)
    await _account(api, namespace)
    probe: Object = {"metadata": {"generateName": "x-"}, "spec": {"containers": [{"name": "executor"}]}}
    probe["spec"]["containers"][0]["resources"] = {"limits": {"memory": "-1"}}
    refused = await ended(api, namespace, probe, bound_seconds=1e9)
    assert refused.reason == "ExecutorsRefused"


async def test_pods_that_are_there_and_pending_are_told_by_what_ails_them(api: Api, namespace: str) -> None:
    await _account(api, namespace)
    pod, spec = pod_of(namespace), spec_of()
    body = kubernetes.like_an_executor(pod, spec, kubernetes.executor_pod(spec, pod))
    made = await api.create(POD, namespace, body)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: cpu"}
    name = made["metadata"]["name"]
    await api.patch(POD, namespace, name, {"status": {"conditions": [condition]}}, subresource="status")
    found = await ended(api, namespace, body)
    assert found.reason == "ExecutorsUnschedulable"
    assert f"{name} cannot be scheduled: 0/3 nodes: cpu" in found.message


async def _account(api: Api, namespace: str) -> None:
    """The controller makes the default account; without it no pod is admitted."""
    for _ in range(200):
        if await api.get(SERVICE_ACCOUNT, namespace, "default") is not None:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("there is no default service account")


async def _until_quota(api: Api, namespace: str) -> None:
    for _ in range(200):
        quota = await api.get(QUOTA, namespace, "small")
        if quota and (quota.get("status") or {}).get("hard"):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the quota is not counted")
