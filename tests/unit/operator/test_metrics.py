"""What Prometheus is told: by job, or as sums, and what remains when a job goes."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sinkruntime.coordinator.coordinator
from sinkoperator.metrics import COORDINATOR_COUNTERS, OperatorMetrics
from sinkoperator.metrics import SINK_GAUGES as EXPORTED_GAUGES
from sinkoperator.web import Answer, serve
from sinkruntime.coordinator.settings import SINK_GAUGES, Metrics
from sinkruntime.environment import Environment
from sinkruntime.protocol.ledger import Abort, Ledger, PartState, SinkEntry
from tests.protocol.build import record

A, B = ("data", "a"), ("data", "b")
EMPTY = Ledger("ledger-1", "data/a")
NOW = 1_800_000_000.0


class Clock:
    now = NOW

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def metrics(per_job: bool = True) -> OperatorMetrics:
    real = Environment.real()
    return OperatorMetrics(Environment(Clock(), real.random), per_job=per_job)


def values(metrics: OperatorMetrics) -> dict[str, float]:
    """Each sample of the page by its name and labels."""
    _, text = asyncio.run(metrics.page())
    return {
        f"{sample.name}{sorted(sample.labels.items()) if sample.labels else ''}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of(found: dict[str, float], name: str, **labels: str) -> float | None:
    return found.get(f"{name}{sorted(labels.items()) if labels else ''}")


def ledger(pending: int = 0, rows: int = 0, committed_ms: int = 0, epoch: int = 1) -> Ledger:
    records = tuple(replace(record(number), decided_ms=int(NOW * 1000) - 500) for number in range(1, pending + 1))
    sinks = MappingProxyType({"lake": SinkEntry(1, rows=rows, committed_ms=committed_ms)})
    return replace(EMPTY, epoch=epoch, records=records, sinks=sinks)


def test_a_jobs_ledger_is_told_by_job() -> None:
    made = metrics()
    made.ledger(A, ledger(pending=2, rows=10, committed_ms=int(NOW * 1000) - 7000, epoch=3))
    made.ledger(B, ledger())
    found = values(made)
    assert of(found, "sinkjob_pending_commits", namespace="data", job="a") == 2
    assert of(found, "sinkjob_pending_commits", namespace="data", job="b") == 0
    assert of(found, "sinkjob_epoch", namespace="data", job="a") == 3
    assert of(found, "sinkjob_last_commit_age_seconds", namespace="data", job="a") == pytest.approx(7.0)
    assert of(found, "sinkjob_last_commit_age_seconds", namespace="data", job="b") is None


def test_parts_in_doubt_and_held_are_counted() -> None:
    made = metrics()
    doubtful = record(1)
    parts = dict(zip(doubtful.parts, (PartState.IN_DOUBT, PartState.HELD), strict=True))
    doubtful = replace(doubtful, parts={name: replace(doubtful.parts[name], state=parts[name]) for name in parts})
    made.ledger(A, replace(EMPTY, records=(doubtful,)))
    found = values(made)
    assert of(found, "sinkjob_in_doubt", namespace="data", job="a") == 1
    assert of(found, "sinkjob_held", namespace="data", job="a") == 1


def test_rows_count_from_when_the_job_was_first_seen() -> None:
    made = metrics()
    for rows in (1_000_000, 1_000_010, 1_000_010, 1_000_015):
        made.ledger(A, ledger(rows=rows))
    assert of(values(made), "sinkjob_rows_committed_total", namespace="data", job="a", sink="lake") == 15


def test_the_time_from_decision_to_commit_is_told_once_and_not_for_what_was_aborted() -> None:
    made = metrics()
    made.ledger(A, ledger(pending=3))
    made.ledger(A, ledger(pending=3))
    made.ledger(A, replace(ledger(pending=1), aborts=(Abort(3, 3, "somebody", "mistaken"),)))
    found = values(made)
    assert of(found, "sinkjob_commit_seconds_count") == 1
    assert of(found, "sinkjob_commit_seconds_sum") == pytest.approx(0.5)


def test_switched_off_labels_leave_the_sums_and_the_oldest_commit() -> None:
    made = metrics(per_job=False)
    made.ledger(A, ledger(pending=2, rows=1, committed_ms=int(NOW * 1000) - 7000))
    made.ledger(B, ledger(pending=1, rows=1, committed_ms=int(NOW * 1000) - 3000))
    made.ledger(A, ledger(pending=1, rows=6))
    found = values(made)
    assert of(found, "sinkjob_pending_commits", namespace="", job="") == 2
    assert of(found, "sinkjob_rows_committed_total", namespace="", job="", sink="") == 5
    assert of(found, "sinkjob_last_commit_age_seconds", namespace="", job="") == pytest.approx(7.0)
    assert not any("'a'" in name or "'lake'" in name for name in found)
    assert not any(name.startswith("sinkjob_epoch[") for name in found)
    made.forget(A)
    found = values(made)
    assert of(found, "sinkjob_pending_commits", namespace="", job="") == 1
    assert of(found, "sinkjob_rows_committed_total", namespace="", job="", sink="") == 5, "a counter never falls"
    assert of(found, "sinkjob_last_commit_age_seconds", namespace="", job="") == pytest.approx(3.0)


def test_a_job_that_goes_takes_its_series_with_it() -> None:
    made = metrics()
    counted = Metrics()
    made.coordinators = {A: counted}.items
    counted.add("commit_attempts", "lake")
    made.ledger(A, ledger(pending=1, rows=1, committed_ms=1))
    made.phase(A, "Running")
    assert any("'a'" in name for name in values(made))
    made.coordinators = dict[tuple[str, str], Metrics]().items
    made.forget(A)
    made.forget(A)
    found = values(made)
    assert not any("'a'" in name for name in found)
    assert of(found, "sinkjob_phase", phase="Running") == 0


@pytest.mark.parametrize("per_job", [True, False])
def test_coordinators_counters_are_passed_on_also_of_the_next_coordinator(per_job: bool) -> None:
    made = metrics(per_job)
    first, second = Metrics(), Metrics()
    first.add("commit_attempts", "lake", 3)
    made.coordinators = {A: first}.items
    values(made)
    first.add("commit_attempts", "lake", 1)
    values(made)
    second.add("commit_attempts", "lake", 2)
    made.coordinators = {A: second}.items
    labels = (
        {"namespace": "data", "job": "a", "sink": "lake"}
        if per_job
        else dict.fromkeys(("namespace", "job", "sink"), "")
    )
    assert of(values(made), "sinkjob_commit_attempts_total", **labels) == 6


def test_every_counter_of_the_coordinator_is_passed_on() -> None:
    source = Path(sinkruntime.coordinator.coordinator.__file__).read_text()
    assert set(re.findall(r'metrics\.add\("(\w+)"', source)) == set(COORDINATOR_COUNTERS)


def test_phases_are_counted_by_job() -> None:
    made = metrics()
    for key, phase in ((A, "Pending"), (B, "Pending"), (A, "Running"), (A, "Running")):
        made.phase(key, phase)
    found = values(made)
    assert of(found, "sinkjob_phase", phase="Pending") == 1
    assert of(found, "sinkjob_phase", phase="Running") == 1


def test_the_parts_of_the_operator_are_told() -> None:
    made = metrics()
    made.queue_depth(4)
    made.queue_waited(0.2)
    made.queue_ran(0.3, "done")
    made.queue_retried()
    made.requested("patch", "Lease", "200", 0.01)
    made.requested("patch", "Lease", "Conflict", 0.01)
    made.watch("Pod", lambda: 12.0)
    made.shards(lambda: 8)
    made.workers(lambda: 3)
    made.driver_created(1.5)
    made.first_decision(20.0)
    made.fenced()
    found = values(made)
    expected = {
        "sinkjob_operator_queue_depth": 4,
        "sinkjob_operator_queue_retries_total": 1,
        "sinkjob_operator_queue_wait_seconds_count": 1,
        "sinkjob_operator_leases_held": 8,
        "sinkjob_operator_worker_processes": 3,
        "sinkjob_submit_seconds_sum": 1.5,
        "sinkjob_start_seconds_sum": 20.0,
        "sinkjob_fenced_total": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert of(found, "sinkjob_reconcile_seconds_count", outcome="done") == 1
    assert of(found, "sinkjob_operator_api_requests_total", verb="patch", kind="Lease", code="Conflict") == 1
    assert of(found, "sinkjob_operator_watch_age_seconds", kind="Pod") == 12.0


def test_the_page_is_served_on_a_port_and_other_paths_are_not() -> None:
    made = metrics()
    made.fenced()

    async def page() -> Answer:
        content_type, text = await made.page()
        return 200, content_type, text

    async def scrape() -> tuple[str, bytes]:
        async with serve({"/metrics": page}, 0, "127.0.0.1") as port:

            def get(path: str) -> tuple[str, bytes]:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return answer.headers["Content-Type"], answer.read()

            found = await asyncio.gather(*(asyncio.to_thread(get, "/metrics") for _ in range(5)))
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                await asyncio.to_thread(get, "/")
            refused.value.close()
            return found[-1]

    content_type, text = asyncio.run(scrape())
    assert content_type.startswith("text/plain; version=")
    assert b"sinkjob_fenced_total 1.0" in text


def test_what_a_sink_gauges_is_told_by_job_and_goes_with_it() -> None:
    assert set(EXPORTED_GAUGES) == SINK_GAUGES
    told = Metrics()
    told.put("prepared_transactions", 3, "lake")
    told.put("prepared_oldest_seconds", 7.5, "lake")
    for per_job in (True, False):
        mine = metrics(per_job)
        mine.coordinators = lambda: [(A, told)]
        found = values(mine)
        counts = [value for name, value in found.items() if name.startswith("sinkjob_prepared_")]
        assert counts == ([3, 7.5] if per_job else []), found
    told.put("prepared_transactions", 0, "lake")
    mine = metrics()
    mine.coordinators = lambda: [(A, told)]
    assert of(values(mine), "sinkjob_prepared_transactions", namespace="data", job="a", sink="lake") == 0
    mine.coordinators = list
    mine.forget(A)
    assert not any(name.startswith("sinkjob_prepared_tr") and "data" in name for name in values(mine))
