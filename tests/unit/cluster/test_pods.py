"""What the pods of a job say: what ails executors, and whether older epochs are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sinkruntime.cluster.pods import FRESH_SECONDS, JobPods, ailment_of
from sinkruntime.kube import Object


def pod(status: dict[str, Any], component: str = "executor", epoch: int = 3, name: str = "x-exec-1") -> Object:
    labels = {"app.kubernetes.io/component": component, "sinkjob.io/epoch": str(epoch)}
    return {"metadata": {"name": name, "namespace": "n", "labels": labels}, "status": status}


def container(state: dict[str, Any]) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"name": "executor", "state": state}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: cpu"}],
}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (UNSCHEDULABLE, "ExecutorsUnschedulable", "0/1 nodes: cpu"),
        (container({"waiting": {"reason": "ImagePullBackOff", "message": "no x"}}), "ExecutorsWithoutImage", "no x"),
        (container({"waiting": {"reason": "CreateContainerConfigError", "message": "secret y"}}),
         "ExecutorsNotCreated", "secret y"),
        (container({"terminated": {"reason": "OOMKilled", "exitCode": 137}}), "ExecutorsOutOfMemory", "more memory"),
        (container({"terminated": {"reason": "Error", "exitCode": 1}}), "ExecutorsCrashed", "exit code 1"),
    ],
)  # fmt: skip
def test_what_ails_an_executor_has_a_reason_and_the_clusters_words(
    status: dict[str, Any], reason: str, words: str
) -> None:
    found = ailment_of(pod(status))
    assert found is not None
    assert found.reason == reason
    assert words in found.message
    assert found.advice


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        container({"waiting": {"reason": "ContainerCreating"}}),
        container({"terminated": {"reason": "Error", "exitCode": 143}}),
    ],
)
def test_a_pod_that_starts_or_was_asked_to_end_is_not_ill(status: dict[str, Any]) -> None:
    assert ailment_of(pod(status)) is None


class Heard:
    """A watch as `JobPods` uses it."""

    def __init__(self, pods: Iterable[Object]) -> None:
        self.pods = list(pods)
        self.synced = asyncio.Event()
        self.synced.set()
        self.problem: Exception | None = None
        self.age = 0.0
        self.callbacks: list[Callable[[str, Object], None]] = []

    def all(self) -> list[Object]:
        return self.pods

    def age_seconds(self) -> float:
        return self.age

    def subscribe(self, callback: Callable[[str, Object], None]) -> None:
        self.callbacks.append(callback)


def pods_of(heard: Heard) -> JobPods:
    return JobPods(heard, 3)  # type: ignore[arg-type]  # the part of a watch that is used


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        ([], True),
        ([pod({"phase": "Running"}, "driver", 3)], True),
        ([pod({"phase": "Running"}, "driver", 2)], False),
        ([pod({"phase": "Pending"}, "executor", 2)], False),
        ([pod({"phase": "Failed"}, "driver", 2), pod({"phase": "Succeeded"}, "executor", 1)], True),
        ([pod({"phase": "Running"}, "committer", 0)], True),
    ],
)
def test_older_epochs_are_gone_when_no_pod_of_theirs_lives(found: list[Object], gone: bool) -> None:
    assert pods_of(Heard(found)).older_gone(3) is gone


def test_a_watch_that_does_not_know_says_that_nothing_is_gone() -> None:
    heard = Heard([])
    heard.age = FRESH_SECONDS + 1
    assert not pods_of(heard).older_gone(3)
    heard.age = 0.0
    heard.problem = OSError()
    assert not pods_of(heard).older_gone(3)
    heard.problem = None
    heard.synced.clear()
    assert not pods_of(heard).older_gone(3)


def test_what_the_last_one_died_of_is_remembered_for_spark_removes_its_pod() -> None:
    heard = Heard([])
    pods = pods_of(heard)
    dead = pod({"phase": "Failed", **container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})})
    heard.callbacks[0]("MODIFIED", {**dead, "metadata": {**dead["metadata"], "labels": {}}})
    assert pods.ailment() is None, "that one is not ours"
    heard.callbacks[0]("MODIFIED", dead)
    found = pods.ailment()
    assert found is not None
    assert found.reason == "ExecutorsOutOfMemory"
    heard.pods.append(pod(UNSCHEDULABLE))
    present = pods.ailment()
    assert present is not None
    assert present.reason == "ExecutorsUnschedulable", "what is there now comes first"
    assert len(pods.executors()) == 1


def test_what_one_died_of_long_ago_is_no_reason_why_there_is_none_now() -> None:
    heard = Heard([])
    pods = pods_of(heard)
    heard.callbacks[0]("MODIFIED", pod(container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})))
    pods.well()
    assert pods.ailment() is not None, "Spark may not have noticed yet"
    pods.well()
    assert pods.ailment() is None
