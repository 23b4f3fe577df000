"""The watch over executors: when it looks for a cause, what it tells, and when it leaves a job alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from sinkruntime.cluster import executors
from sinkruntime.cluster.executors import Cluster, ExecutorWatch, NoExecutors
from sinkruntime.cluster.pods import Ailment
from sinkruntime.environment import SystemClock
from sinkruntime.kube import Object

ILL = Ailment("ExecutorsUnschedulable", "0/1 nodes: cpu", "add nodes")


class Spark:
    """Says how many executors there are, one number after the other, then the last one for ever."""

    def __init__(self, counts: Sequence[int], *, wanted: bool = True) -> None:
        self.counts = list(counts)
        self.is_wanted = wanted
        self.asked = 0

    def registered(self) -> int:
        self.asked += 1
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]

    def wanted(self) -> bool:
        return self.is_wanted

    def give_up(self) -> None:
        return


class Pods:
    """What `JobPods` says of executors."""

    def __init__(self) -> None:
        self.found_well = 0

    def ailment(self) -> Ailment:
        return ILL

    def well(self) -> None:
        self.found_well += 1

    def executors(self) -> list[Object]:
        return []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(executors, "QUICK_SECONDS", 0.02)
    monkeypatch.setattr(executors, "CANCELS_MAX", 1)


def watch_of(spark: Spark, bound_seconds: float, pods: Pods | None = None) -> ExecutorWatch:
    cluster = Cluster(None, pods or Pods(), "n", {})  # type: ignore[arg-type]  # nothing of the API is asked here
    return ExecutorWatch(spark, cluster, SystemClock(), bound_seconds)


def run_for(watch: ExecutorWatch, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(watch.run(lambda: None), seconds))
    assert watch.error is None


def test_a_job_with_an_executor_is_left_alone() -> None:
    pods = Pods()
    run_for(watch_of(Spark([0, 0, 1]), 0.5, pods), 0.8)
    assert pods.found_well, "what an earlier one died of is forgotten"


def test_an_elastic_job_without_work_needs_none() -> None:
    run_for(watch_of(Spark([0], wanted=False), 0.1), 0.4)


def test_executors_that_all_stay_gone_later_end_the_run_by_what_ails_them() -> None:
    spark = Spark([1] * 5 + [0])
    watch = watch_of(spark, 0.2)
    with pytest.raises(NoExecutors) as caught:
        asyncio.run(asyncio.wait_for(watch.run(lambda: None), 20))
    assert (caught.value.reason, caught.value.advice) == ("ExecutorsUnschedulable", "add nodes")
    assert "0/1 nodes: cpu" in caught.value.message
    assert spark.asked > 5


def test_a_cause_is_told_once_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    run_for(watch_of(Spark([0]), 1e9), 0.5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ExecutorsUnschedulable: 0/1 nodes: cpu" in caplog.text
