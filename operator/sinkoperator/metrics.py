"""What this replica tells Prometheus: how long things take, what is pending, what failed.

The application makes one `OperatorMetrics`; the queue, the API client and the coordinators' observer call its methods,
all in the event loop; `page` is served by `web`. It holds numbers and names of jobs, never anything of a manifest.
With per-job labels switched off the same series carry the sums over all jobs, and no epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sinkruntime.coordinator.settings import Metrics
from sinkruntime.environment import Environment
from sinkruntime.protocol.ledger import Ledger, PartState

Key = tuple[str, str]

#: Seconds. The first set for what happens in the operator, the second for what waits for pods and drivers.
QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SLOW = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

JOB = ("namespace", "job")
SINK = (*JOB, "sink")

#: The coordinator's own counters (`sinkruntime.coordinator`) that are passed on, by the names they have here.
COORDINATOR_COUNTERS = {
    "commit_attempts": "sinkjob_commit_attempts",
    "commit_successes": "sinkjob_commits",
    "commit_failures": "sinkjob_commit_failures",
    "commits_skipped": "sinkjob_commits_skipped",
}
_COUNTER_TEXTS = {
    "commit_attempts": "Attempts to commit a checkpoint's part, or to find out whether it is committed.",
    "commit_successes": "Parts of checkpoints committed.",
    "commit_failures": "Attempts that failed; they are made again.",
    "commits_skipped": "Parts given up because their sink says onFailure: Warn.",
}


#: What committers gauge when they clean up, by the names that it has here.
SINK_GAUGES = {
    "prepared_transactions": "sinkjob_prepared_transactions",
    "prepared_oldest_seconds": "sinkjob_prepared_oldest_age_seconds",
}
_SINK_GAUGE_TEXTS = {
    "prepared_transactions": "Prepared transactions in the sink's database, anybody's, at its last clean-up.",
    "prepared_oldest_seconds": "Age of the oldest of them then; MySQL and MariaDB: since it was seen first.",
}


@dataclass(slots=True)
class _Job:
    """What was last told of one job, so that sums over jobs stay right when it changes or goes."""

    gauges: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)  # number: decided, milliseconds since 1970
    counted: dict[tuple[str, str], float] = field(default_factory=dict)
    counters: Metrics | None = None  # whose values `counted` are
    last_commit: float = 0.0  # seconds since 1970; 0: none yet
    seen: bool = False  # its ledger has been


class OperatorMetrics:
    """See the module. `registry` holds this object's series, and the process's own where the application adds them."""

    def __init__(self, environment: Environment, *, per_job: bool = True) -> None:
        self.registry = registry = CollectorRegistry()
        self._clock = environment.clock
        self._per_job = per_job
        self._jobs: dict[Key, _Job] = {}
        self._phases: dict[Key, str] = {}
        self._page = asyncio.Lock()
        self.coordinators: Callable[[], Iterable[tuple[Key, Metrics]]] = dict[Key, Metrics]().items

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self._reconcile = histogram("sinkjob_reconcile_seconds", "One look at one job.", QUICK, ("outcome",))
        self._submit = histogram("sinkjob_submit_seconds", "From a SinkJob's creation to its first driver pod.", SLOW)
        self._start = histogram("sinkjob_start_seconds", "From a driver pod's creation to its first decision.", SLOW)
        self._commit = histogram("sinkjob_commit_seconds", "From a checkpoint's decision to its commit.", QUICK)
        self._gauges = {
            "pending": gauge("sinkjob_pending_commits", "Checkpoints decided and not yet committed.", JOB),
            "in_doubt": gauge("sinkjob_in_doubt", "Parts of checkpoints that may have been committed.", JOB),
            "held": gauge("sinkjob_held", "Parts of checkpoints that wait for a person.", JOB),
            "epoch": gauge("sinkjob_epoch", "The newest driver run.", JOB),
        }
        self._age = gauge("sinkjob_last_commit_age_seconds", "Since the last commit (the oldest of all jobs').", JOB)
        self._rows = counter("sinkjob_rows_committed", "Rows committed, as this replica has seen it.", SINK)
        self._counters = {
            name: counter(exported, _COUNTER_TEXTS[name], SINK) for name, exported in COORDINATOR_COUNTERS.items()
        }
        self._sink_gauges = {
            name: gauge(exported, _SINK_GAUGE_TEXTS[name], SINK) for name, exported in SINK_GAUGES.items()
        }
        self._phase = gauge("sinkjob_phase", "Jobs of this replica by phase.", ("phase",))
        self._fenced = counter("sinkjob_fenced", "Drivers found to be overtaken by a newer one.")
        self._depth = gauge("sinkjob_operator_queue_depth", "Jobs that wait to be looked at.")
        self._waited = histogram("sinkjob_operator_queue_wait_seconds", "From being due to being looked at.", QUICK)
        self._retries = counter("sinkjob_operator_queue_retries", "Looks that failed, and will be made again.")
        self._watch = gauge("sinkjob_operator_watch_age_seconds", "Since a watch was last heard.", ("kind",))
        requests = ("verb", "kind", "code")
        self._requests = counter("sinkjob_operator_api_requests", "Requests to the API server.", requests)
        self._request = histogram(
            "sinkjob_operator_api_request_seconds", "Answers of the API server.", QUICK, ("verb",)
        )
        self._shards = gauge("sinkjob_operator_leases_held", "Shards that this replica works on.")
        self._workers = gauge("sinkjob_operator_worker_processes", "Processes that commit to targets.")

    # The queue's hooks.

    def queue_depth(self, keys: int) -> None:
        """See `QueueHooks`."""
        self._depth.set(keys)

    def queue_waited(self, seconds: float) -> None:
        """See `QueueHooks`."""
        self._waited.observe(seconds)

    def queue_ran(self, seconds: float, outcome: str) -> None:
        """See `QueueHooks`."""
        self._reconcile.labels(outcome).observe(seconds)

    def queue_retried(self) -> None:
        """See `QueueHooks`."""
        self._retries.inc()

    # The parts of the operator.

    def requested(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """A request to the API server has ended; `Api.on_request`. A watch's seconds are those of its beginning."""
        self._requests.labels(verb, kind, code).inc()
        self._request.labels(verb).observe(seconds)

    def watch(self, kind: str, age_seconds: Callable[[], float]) -> None:
        """From now on tell how long this watch has not been heard."""
        self._watch.labels(kind).set_function(age_seconds)

    def shards(self, held: Callable[[], int]) -> None:
        """From now on tell how many shards are held."""
        self._shards.set_function(held)

    def workers(self, count: Callable[[], int]) -> None:
        """From now on tell how many worker processes there are."""
        self._workers.set_function(count)

    def driver_created(self, seconds: float) -> None:
        """A job's first driver pod was created, so long after the SinkJob."""
        self._submit.observe(max(0.0, seconds))

    def first_decision(self, seconds: float) -> None:
        """An epoch has decided its first checkpoint, so long after its pod was created."""
        self._start.observe(max(0.0, seconds))

    def fenced(self) -> None:
        """A driver was overtaken by a newer one."""
        self._fenced.inc()

    def phase(self, key: Key, phase: str) -> None:
        """The phase in a job's status."""
        before = self._phases.get(key, "")
        if before != phase:
            self._phases[key] = phase
            self._phase.labels(phase).inc()
            if before:
                self._phase.labels(before).dec()

    # Jobs.

    def ledger(self, key: Key, ledger: Ledger) -> None:
        """A job's ledger, as a coordinator has just seen it. What it holds at the first time counts as old."""
        job = self._jobs.setdefault(key, _Job())
        parts = [part for record in ledger.pending for part in record.parts.values()]
        self._put(key, job, "pending", len(ledger.pending))
        self._put(key, job, "in_doubt", sum(part.state is PartState.IN_DOUBT for part in parts))
        self._put(key, job, "held", sum(part.state is PartState.HELD for part in parts))
        if self._per_job:
            self._put(key, job, "epoch", ledger.epoch)
        for name, sink in ledger.sinks.items():
            before = job.rows.get(name, 0) if job.seen else sink.rows
            self._rows.labels(*self._labels(key), self._sink(name)).inc(max(0, sink.rows - before))
            job.rows[name] = sink.rows
        self._latencies(job, ledger)
        last = max((sink.committed_ms for sink in ledger.sinks.values()), default=0) / 1000
        if last and not job.last_commit:
            self._age.labels(*self._labels(key)).set_function(partial(self._age_of, key))
        job.last_commit = max(last, job.last_commit)
        job.seen = True

    def _latencies(self, job: _Job, ledger: Ledger) -> None:
        pending = {record.number: record.decided_ms for record in ledger.pending}
        for number, decided_ms in job.pending.items():
            aborted = any(abort.first <= number <= abort.last for abort in ledger.aborts)
            if number not in pending and not aborted and decided_ms:
                self._commit.observe(max(0.0, self._clock.wall() - decided_ms / 1000))
        job.pending = pending

    def forget(self, key: Key) -> None:
        """The job is gone, or another replica's: its series end, and it leaves the sums."""
        before = self._phases.pop(key, "")
        if before:
            self._phase.labels(before).dec()
        job = self._jobs.pop(key, None)
        if job is None:
            return
        if not self._per_job:
            for name, value in job.gauges.items():
                self._gauges[name].labels("", "").dec(value)
            return
        others = (*self._counters.values(), *self._sink_gauges.values())
        for series in (*self._gauges.values(), self._age, self._rows, *others):
            series.remove_by_labels({"namespace": key[0], "job": key[1]})

    def count(self) -> None:
        """Take over what the coordinators have counted since the last time."""
        for key, metrics in self.coordinators():
            job = self._jobs.setdefault(key, _Job())
            if job.counters is not metrics:
                job.counters, job.counted = metrics, {}
            self._gauge(key, metrics)
            for (name, sink), value in list(metrics.values.items()):
                if name in self._counters:
                    rise = value - job.counted.get((name, sink), 0.0)
                    self._counters[name].labels(*self._labels(key), self._sink(sink)).inc(max(0.0, rise))
                    job.counted[name, sink] = value

    def _gauge(self, key: Key, metrics: Metrics) -> None:
        """Of databases that jobs share no sum would be right: without labels by job there are none."""
        for (name, sink), value in list(metrics.values.items()):
            if name in self._sink_gauges and self._per_job:
                self._sink_gauges[name].labels(*key, sink).set(value)

    async def page(self) -> tuple[str, bytes]:
        """The page that Prometheus reads: its content type and text. Written in a thread, one at a time, because
        with thousands of jobs it takes long; more scrapers wait for it."""
        async with self._page:
            self.count()
            return CONTENT_TYPE_LATEST, await asyncio.to_thread(generate_latest, self.registry)

    def _put(self, key: Key, job: _Job, name: str, value: float) -> None:
        self._gauges[name].labels(*self._labels(key)).inc(value - job.gauges.get(name, 0.0))
        job.gauges[name] = value

    def _labels(self, key: Key) -> tuple[str, str]:
        return key if self._per_job else ("", "")

    def _sink(self, name: str) -> str:
        return name if self._per_job else ""

    def _age_of(self, key: Key) -> float:
        """Called in the thread that writes the page."""
        jobs = dict(self._jobs)
        mine = [jobs[key]] if self._per_job and key in jobs else list(jobs.values())
        return max((self._clock.wall() - job.last_commit for job in mine if job.last_commit), default=0.0)
