"""Runs a job's query in Spark: opens source and transform, hands each batch to the driver, ends cleanly when asked.

The local runner and the cluster's driver call, in this order: `open_query`, then of the `Query` `schemas` (for
`Sink.prepare_target`), `files` (for the start check), `run`. Every batch is one checkpoint: `foreachBatch` returns when
the driver's decision is durable, and not before; when there is no decision it raises, and the query ends. Nothing
here commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sinkruntime.api import Clock
from sinkruntime.crashpoints import reached
from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.errors import ConfigurationError, SinkjobError
from sinkruntime.protocol.ledger import Position
from sinkruntime.protocol.position import BATCH_QUERY, NOWHERE, offsets
from sinkruntime.protocol.start import SourceView
from sinkruntime.spark.bridge import Bridge, DriverPort, Stopped
from sinkruntime.spark.checkpoint_files import CheckpointFiles
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.failure import SPARK_ERRORS, first_line, translate
from sinkruntime.spark.passes import PassReport, StagingPass
from sinkruntime.spark.source import read_source
from sinkruntime.spark.storage import open_storage
from sinkruntime.spark.transform import apply_steps
from sinkruntime.spec.imports import add_import_path
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.source import Trigger

log = logging.getLogger(__name__)

#: How often the main thread looks whether the query has ended or is to stop.
POLL_SECONDS = 0.2
#: How long a query that is to stop may plan or list files before it is interrupted in that. Nothing is staged then.
IDLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class QueryJob:
    """What to run. `options` are the source's resolved `optionsFrom`, `base` is where relative paths start,
    `checkpoint` Spark's checkpoint location, `batch` the identity of a batch job ("" for a streaming one)."""

    spec: SinkJobSpec
    sinks: Sequence[JobSink]
    checkpoint: str
    clock: Clock
    base: Path = field(default_factory=Path.cwd)
    options: Mapping[str, str] = field(default_factory=dict)
    batch: str = ""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch that is decided. `rows` reached the sinks before any `where` (0 where Spark's writer stages)."""

    batch_id: int
    rows: int
    staged_rows: Mapping[str, int]
    seconds: float
    skipped: bool  # it was decided before
    counters: Mapping[str, Mapping[str, float]]

    @property
    def rows_per_second(self) -> float:
        """From the batch's start to its decision."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


OnBatch = Callable[[BatchDone], None]


@dataclass(frozen=True, slots=True)
class Hosts:
    """What a run is given: the driver and the loop it lives in, the flag to stop, and who hears of each batch."""

    driver: DriverPort
    loop: asyncio.AbstractEventLoop
    stop: Event
    on_batch: OnBatch | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A job's query, resolved by Spark and not yet started. `schemas` has, by sink, what its writers are given."""

    job: QueryJob
    df: DataFrame
    staging: StagingPass
    files: CheckpointFiles

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The Arrow schema of each sink's batches, by sink."""
        return self.staging.schemas

    def view(self) -> SourceView:
        """What the start check compares with the ledger; a batch job has no checkpoint of Spark's, only the marker."""
        if self.job.spec.mode == "Batch":
            return SourceView(self.files.owner()[0], BATCH_QUERY)
        return self.files.view()

    def run(self, hosts: Hosts) -> bool:
        """Run until the source is done or `stop` is set; True: all that there was is decided.

        Raises what the driver raises, and errors of ours for all else; then nothing more was decided.
        """
        if self.job.spec.mode == "Batch":
            return _Run(self, hosts).batch()
        return _Run(self, hosts).stream()


def open_query(session: SparkSession, job: QueryJob) -> Query:
    """Resolve source, transform and the sinks' columns; raises `ConfigurationError` with the manifest's path."""
    spec = job.spec
    add_import_path(job.base, spec.deps.py_files)
    streaming = spec.mode == "Streaming"
    df = read_source(session, spec.source, job.options, job.base, streaming=streaming)
    df = apply_steps(df, spec.transform)
    if df.isStreaming != streaming:
        message = f"the rows are {'' if df.isStreaming else 'not '}a stream, and mode is {spec.mode}"
        raise ConfigurationError("WrongMode", message, path="spec.transform")
    staging = StagingPass(df, job.sinks, job.clock, job.spec.commit.max_pending)
    return Query(job, df, staging, CheckpointFiles(open_storage(session, job.checkpoint)))


class _Run:
    """One run of a query. Spark calls `_on_batch` in a thread of its own, never twice at once."""

    def __init__(self, query: Query, hosts: Hosts) -> None:
        self._query = query
        self._hosts = hosts
        self._bridge = Bridge(hosts.driver, hosts.loop, hosts.stop)
        self._error: BaseException | None = None
        self._returned = False  # Spark has, or will have, its own commit of the last batch
        self._in_batch = False

    def stream(self) -> bool:
        """See `Query.run`."""
        writer = _writer(self._query)
        try:
            running = writer.foreachBatch(self._on_batch).start()
        except SPARK_ERRORS as error:
            raise _not_started(error) from error
        try:
            done = self._follow(running)
        except Exception as error:  # whatever Spark raises, the reason is ours if a batch failed
            if self._error is None:
                raise translate(error, "running the query") from error
            done = False
        if self._returned:
            reached("S14", "after")
        return self._ended_well() and done

    def _ended_well(self) -> bool:
        """Whether no batch ended the query; raises the error of the one that did, unless it was asked to stop."""
        error = self._error
        if isinstance(error, SinkjobError):
            raise error
        if error is not None and not isinstance(error, Stopped):
            raise translate(error, "running a batch") from error
        return error is None

    def batch(self) -> bool:
        """See `Query.run`: one checkpoint of all there is."""
        identity = self._query.job.batch
        position = Position(BATCH_QUERY, 0, NOWHERE, offsets([identity]))
        try:
            self._decide(self._query.df, position, None, identity)
        except Stopped:
            return False
        return True

    def _follow(self, running: StreamingQuery) -> bool:
        """Until the query ends; True: by itself. A query that is to stop is stopped between two batches."""
        while not running.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # Spark takes fractions
            if self._hosts.stop.is_set():
                return self._stop(running)
        return True

    def _stop(self, running: StreamingQuery) -> bool:
        """The next batch ends the query itself, before anything is staged; a query that has no next one is stopped.

        Never while a batch runs: Spark would interrupt it in the middle of a call.
        """
        until = self._query.job.clock.monotonic() + IDLE_SECONDS
        while not running.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            if self._in_batch:
                until = self._query.job.clock.monotonic() + IDLE_SECONDS
            elif not running.status["isTriggerActive"] or self._query.job.clock.monotonic() >= until:
                running.stop()
        return False

    def _on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Spark's callback. An exception ends the query; its own text is short, for Spark parses it."""
        if self._returned:
            reached("S14", "after")
            self._returned = False
        self._in_batch = True
        try:
            self._checkpoint(df, batch_id)
        except BaseException as error:  # noqa: BLE001  (kept, and raised by `stream`)
            self._error = error
            raise RuntimeError(f"sinkjob ended the query: {type(error).__name__}") from None
        finally:
            self._in_batch = False
        reached("S14", "before")
        self._returned = True

    def _checkpoint(self, df: DataFrame, batch_id: int) -> None:
        if self._error is not None:
            raise self._error
        if self._hosts.stop.is_set():
            raise Stopped
        reached("S1", "before")
        files = self._query.files
        position, watermark_ms = files.position(batch_id), files.watermark_ms(batch_id)
        reached("S1", "after")
        self._decide(df, position, watermark_ms)

    def _decide(self, df: DataFrame, position: Position, watermark_ms: int | None, batch: str = "") -> None:
        begun = self._query.job.clock.monotonic()
        report, staged = PassReport(), Staging((), {})

        def stage(assignment: Assignment) -> Staging:
            nonlocal report, staged
            facts = {"checkpoint": assignment.checkpoint, "batch": position.batch_id}
            log.info(
                "checkpoint %d is being staged (epoch %d)",
                assignment.checkpoint,
                assignment.epoch,
                extra={"sinkjob": facts},
            )
            staged, report = self._query.staging.run(df, assignment, watermark_ms)
            return staged

        decided = self._bridge.decide(position, stage, batch)
        if not decided and not batch and self._query.files.stateful():
            _run_again(df)
        if self._hosts.on_batch is not None:
            rows: dict[str, int] = {}
            for result in staged.results:
                rows[result.sink] = rows.get(result.sink, 0) + result.rows
            seconds = self._query.job.clock.monotonic() - begun
            self._hosts.on_batch(BatchDone(position.batch_id, report.seen, rows, seconds, not decided, report.counters))


def _run_again(df: DataFrame) -> None:
    """Run a skipped batch into nothing, for Spark's own sake: it writes the same state again, as in any replay of its.

    Without that Spark 4.1 fails the batch, for its state stores did not commit, and would write `commits/N` without
    the watermark that the batch's rows give.
    """
    try:
        df._jdf.queryExecution().toRdd().count()
    except SPARK_ERRORS as error:
        raise translate(error, "bringing Spark's state up to a decided batch") from error


def _writer(query: Query) -> DataStreamWriter:
    spec = query.job.spec
    writer = query.df.writeStream.outputMode(spec.output_mode.lower())
    writer = writer.option("checkpointLocation", query.job.checkpoint)
    return _triggered(writer, spec.trigger)


def _triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    if trigger.type == "AvailableNow":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{trigger.interval.milliseconds} milliseconds")


def _not_started(error: BaseException) -> SinkjobError:
    """Spark checks output mode and stateful steps only when the query starts."""
    text = first_line(error)
    path = "spec.outputMode" if "output mode" in text.lower() else "spec"
    return ConfigurationError("InvalidQuery", text, path=path)
