"""The driver pod's process with Spark: claim, session, start check, query, and the end at a checkpoint boundary.

`sinkjob driver` calls `drive`. A crash anywhere leaves what the next epoch rolls forward or cleans up. It waits for
the operator's coordinator by what that puts on record: `recovered` under the token reaches this epoch only in a tenure
that has seen the raised epoch, and a tenure that begins tries again what was held before it recovers anything.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sinkruntime.api import Sink
from sinkruntime.cluster import tenure
from sinkruntime.cluster.connection import Connection
from sinkruntime.cluster.executors import Cluster, ExecutorWatch
from sinkruntime.cluster.report import STOPPED, Ended
from sinkruntime.cluster.stopping import Stop
from sinkruntime.driver.driver import Driver, stuck
from sinkruntime.errors import ConfigurationError
from sinkruntime.job.backstage import Cancelled
from sinkruntime.job.ownership import mark_taken, taken_over
from sinkruntime.job.sinks import authorities
from sinkruntime.job.steps import GuardedDriver, check_guarantees, prepare_targets, query_job, target_views
from sinkruntime.kube import Object
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.protocol.start import ADVICE, Disagreement, StartReason
from sinkruntime.spark import kubernetes
from sinkruntime.spark.executors import Executors
from sinkruntime.spark.query import BatchDone, Hosts, Query, open_query
from sinkruntime.spark.session import SessionSettings, close_session, open_session
from sinkruntime.spark.tolerant import FAILED_WRITERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: What is held is left so long to a coordinator that has not begun for this epoch; then it stops the start as it is.
TENURE_SECONDS = 120.0


def drive(connection: Connection, stop: Stop) -> Ended:
    """Run the job until its source is done or it is asked to stop; raises `SinkjobError` for whatever stops it."""
    run = _DriverRun(connection, stop)
    try:
        return run.run()
    except Cancelled:
        connection.end_coordinators()
        return Ended(STOPPED, "asked to stop before the first batch")


class _DriverRun:
    """The parts of one run, in the order in which they come to be."""

    def __init__(self, connection: Connection, stop: Stop) -> None:
        self.connection = connection
        self.job = connection.job
        self.stop = stop
        self.executors: ExecutorWatch | None = None

    def run(self) -> Ended:
        """See `drive`."""
        backstage, stop = self.connection.backstage, self.stop.event
        location = self._location()
        ledger = backstage.call(tenure.present(self.connection), stop).ledger
        driver = tenure.make_driver(self.connection)
        backstage.call(driver.claim(), stop)
        log.info("the epoch is claimed, Spark starts", extra={"sinkjob": {"ledger": ledger.ledger_id}})
        try:
            with tempfile.TemporaryDirectory() as folder, self._session(Path(folder)) as session:
                done = self._run(session, location, driver, ledger)
            self._check_executors()
        except Exception as error:
            self._check_executors(error)
            raise
        return tenure.finish(self.connection, self.stop, "the source is done" if done else "it ended early")

    def _check_executors(self, error: Exception | None = None) -> None:
        """What Spark raises for want of executors is not the reason."""
        found = self.executors.error if self.executors else None
        if found is not None and found is not error:
            raise found from error

    def _check_stop(self) -> None:
        if self.stop.event.is_set():
            raise Cancelled

    def _location(self) -> str:
        location = self.job.spec.checkpoint.location
        if location is None:
            message, advice = "a job on a cluster needs a checkpoint location", "such as s3a://bucket/folder"
            raise ConfigurationError("CheckpointMissing", message, path="spec.checkpoint.location", advice=advice)
        return location

    @contextmanager
    def _session(self, folder: Path) -> Iterator[SparkSession]:
        """Spark, and on a cluster the watch over its executors."""
        job, told = self.job, self.connection.surroundings
        settings = SessionSettings(
            job.name,
            job.spec,
            job.bound.manifest.base,
            told.master,
            dict(job.bound.checkpoint_secrets),
            python_path=job.code,
            log_settings="log4j2-json.properties",
        )
        pod = self._pod()
        template = kubernetes.executor_pod(job.spec, pod)
        if not told.master:
            path = kubernetes.write_template(template, folder)
            settings = replace(
                settings,
                master=kubernetes.master(pod),
                defaults=kubernetes.defaults(job.spec),
                fixed=kubernetes.fixed(job.spec, pod, path),
            )
        session = open_session(settings)
        try:
            self._check_stop()
            if not told.master:
                self._watch_executors(session, kubernetes.like_an_executor(pod, job.spec, template))
            yield session
        finally:
            close_session(session)

    def _pod(self) -> kubernetes.DriverPod:
        """This pod, with what its executors take over from it."""
        told = self.connection.surroundings
        own = self.connection.backstage.call(self.connection.pods.own(told.namespace, told.pod_name), self.stop.event)
        spec = own["spec"] if own else {}
        return replace(
            told.driver_pod(),
            service_account=spec.get("serviceAccountName", ""),
            pull_secrets=tuple(secret["name"] for secret in spec.get("imagePullSecrets") or []),
        )

    def _watch_executors(self, session: SparkSession, probe: Object) -> None:
        connection = self.connection
        counted = Executors(session, elastic=self.job.spec.dynamic_allocation.enabled)
        cluster = Cluster(connection.api, connection.pods, connection.surroundings.namespace, probe)
        bound_seconds = connection.surroundings.executor_seconds
        self.executors = ExecutorWatch(counted, cluster, connection.environment.clock, bound_seconds)
        connection.backstage.spawn(self.executors.run(self.stop.give_up), endless=True)

    def _run(self, session: SparkSession, location: str, driver: Driver, ledger: Ledger) -> bool:
        """True: all that there was is decided."""
        job, clock = self.job, self.connection.environment.clock
        sinks = job.sinks_of(job.revision, ledger.ledger_id)
        check_guarantees(job.bound, sinks)
        query = open_query(session, query_job(job.bound, sinks, location, job.revision, clock))
        self._own(query, driver, ledger)
        prepare_targets(query, sinks)
        self._check_stop()
        self._start(query, driver, sinks, ledger.ledger_id)
        backstage = self.connection.backstage
        return query.run(Hosts(GuardedDriver(driver, backstage), backstage.loop, self.stop.event, _on_batch))

    def _own(self, query: Query, driver: Driver, ledger: Ledger) -> None:
        """A new ledger on a location that another one has marked: one was lost. The word first, then the marker."""
        if ledger.decided:
            return  # the start check tells
        accepted = taken_over(query, ledger.ledger_id, self.job.name, self.job.spec.recovery)
        if accepted is None:
            query.files.mark(ledger.ledger_id, self.job.name)
            return
        reason = StartReason(accepted.reason)
        found = Disagreement(reason, accepted.detail, ADVICE[reason])
        self.connection.backstage.call(driver.accept(found), self.stop.event)
        mark_taken(query, ledger.ledger_id, self.job.name, accepted)

    def _start(self, query: Query, driver: Driver, sinks: Mapping[str, Sink], ledger_id: str) -> None:
        """The coordinator of this epoch, then the start check."""
        connection, backstage, stop = self.connection, self.connection.backstage, self.stop.event
        if Authority.EPOCH in authorities(self.job.bound).values():
            tenure.coordinate(connection, ledger_id, self.stop)
        log.info("older checkpoints are waited for")
        backstage.call(self._others_begun(), stop)
        backstage.call(driver.start(query.view(), partial(target_views, sinks)), stop)
        if query.files.owner()[0] != ledger_id:
            query.files.take_over(ledger_id, self.job.name)
        log.info("source, ledger and targets agree; the query starts")

    async def _others_begun(self) -> None:
        """Until the operator's coordinator has begun for this epoch, where it has anything to try again."""
        connection = self.connection
        epoch, clock = connection.surroundings.epoch, connection.environment.clock
        deadline = clock.monotonic() + TENURE_SECONDS
        while True:
            stored = await tenure.present(connection)
            held = any(part.authority is Authority.TOKEN for _, _, part in stuck(stored.ledger))
            left = deadline - clock.monotonic()
            if not held or stored.ledger.recovered.get(Authority.TOKEN, 0) >= epoch or left <= 0:
                return
            await connection.store.wait_changed(stored.version, min(left, tenure.LOOK_SECONDS))


def _on_batch(done: BatchDone) -> None:
    facts = {"batch": done.batch_id, "rows": done.rows, "seconds": round(done.seconds, 3), "skipped": done.skipped}
    log.info("batch %d is done", done.batch_id, extra={"sinkjob": facts})
    for sink, counters in done.counters.items():
        if failed := counters.get(FAILED_WRITERS):
            log.warning("sink %s lost rows in %.0f tasks of batch %d (onFailure: Warn)", sink, failed, done.batch_id)
