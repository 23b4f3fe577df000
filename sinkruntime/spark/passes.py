"""The staging pass: one batch of rows into all sinks, and the task results that say what was staged.

`query.py` makes one `StagingPass` per query and runs it for each batch, in the thread that Spark called. Sinks that
want their rows distributed or sorted form groups: one action per group over the same persisted batch, one `Staging`.
It publishes nothing and decides nothing.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)
from pyspark.storagelevel import StorageLevel

from sinkruntime.api import Clock, Distribution, Lineage, StageContext
from sinkruntime.crashpoints import reached
from sinkruntime.dead_letters import check_bound, refused_rows
from sinkruntime.driver.staging import Assignment, Staging, TaskResult, Written
from sinkruntime.errors import ConfigurationError, SinkjobError, TargetError, sink_path
from sinkruntime.spark.columns import JobSink, Layout, column, lay_out
from sinkruntime.spark.failure import translate
from sinkruntime.spark.task import RESULT_DDL, SUBTASKS_PROPERTY, WriterTask

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """Sinks that share an action: those that want the same distribution, or none."""

    distribution: Distribution | None
    layout: Layout
    narrow_first: bool  # a sink of its own: its `where` and `select` come before the shuffle
    stages: bool = False  # one sink that has no writers: it gets the whole batch


@dataclass(slots=True)
class PassReport:
    """What a pass saw: rows before any sink's `where`, and the writers' counters by sink, added up."""

    seen: int = 0
    counters: dict[str, dict[str, float]] = field(default_factory=dict)


class StagingPass:
    """Stages batches of one query; made once, from the query's own DataFrame, whose columns every batch has."""

    def __init__(self, df: DataFrame, sinks: Sequence[JobSink], clock: Clock, pending_max: int = 1) -> None:
        self._clock = clock
        self._pending_max = pending_max
        self._sinks = tuple(sinks)
        self._tolerant = frozenset(sink.name for sink in sinks if sink.tolerant)
        self._groups = _group(df, self._sinks)
        self.schemas = {feed.name: feed.schema for group in self._groups for feed in group.layout.feeds}

    def run(self, df: DataFrame, assignment: Assignment, watermark_ms: int | None = None) -> tuple[Staging, PassReport]:
        """Stage the rows of `df` for a checkpoint; raises one of our errors, and then nothing was decided.

        Call it in the thread in which Spark called back: the jobs carry that thread's properties.
        """
        try:
            if len(self._sinks) == 1 and self._sinks[0].sink.can_stage():
                return self._stage(df, self._groups[0], assignment), PassReport()
            return self._write(df, assignment, watermark_ms)
        except SinkjobError:
            raise
        except Exception as error:
            raise translate(error, f"staging checkpoint {assignment.checkpoint}") from error

    def _write(self, df: DataFrame, assignment: Assignment, watermark_ms: int | None) -> tuple[Staging, PassReport]:
        results: list[TaskResult] = []
        subtasks: dict[str, int] = {}
        report = PassReport()
        shared = len(self._groups) > 1
        if shared:
            df = df.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for group in self._groups:
                if group.stages:
                    staging = self._stage(df, group, assignment)
                    results += staging.results
                    subtasks.update(staging.subtasks)
                    continue
                rows, count = self._act(df, group, assignment, watermark_ms)
                subtasks.update((feed.name, count) for feed in group.layout.feeds)
                results += [_result(row, assignment) for row in rows]
                first = group.layout.feeds[0].name
                report.seen = max(report.seen, sum(row.seen for row in rows if row.sink == first))
                _add_counters(report, rows)
                _check_refused(group, report)
        finally:
            if shared:
                df.unpersist()
        reached("S6", "after")
        return Staging(results, subtasks), report

    def _act(
        self, df: DataFrame, group: Group, assignment: Assignment, watermark_ms: int | None
    ) -> tuple[list[Row], int]:
        """One action. The number of subtasks is that of the very RDD that is then run, never that of the results."""
        task = WriterTask(
            feeds=group.layout.feeds,
            checkpoint=assignment.checkpoint,
            epoch=assignment.epoch,
            clock=self._clock,
            watermark_ms=watermark_ms,
            states={feed.name: tuple(assignment.states.get(feed.name, ())) for feed in group.layout.feeds},
            tolerant=self._tolerant,
            pending_max=self._pending_max,
        )
        out = _arrange(df, group).mapInArrow(task, RESULT_DDL)
        session = df.sparkSession
        java: JavaObject = out._jdf
        # This plans, and runs shuffles that adaptive execution needs to plan further, but no writer.
        rdd = java.queryExecution().toRdd()
        subtasks: int = rdd.getNumPartitions()
        if subtasks == 0:
            return [], 0
        results = DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, java.schema(), False), session)
        context = session.sparkContext
        context.setLocalProperty(SUBTASKS_PROPERTY, str(subtasks))
        try:
            return results.collect(), subtasks
        finally:
            context.setLocalProperty(SUBTASKS_PROPERTY, None)  # type: ignore[arg-type]  # None removes it

    def _stage(self, df: DataFrame, group: Group, assignment: Assignment) -> Staging:
        """Spark's own writer stages; the sink says how to commit what it wrote."""
        sink = group.layout.feeds[0].sink
        number, epoch = assignment.checkpoint, assignment.epoch
        stem = f"{number:012d}-{epoch}-{0:05d}-0-{secrets.token_hex(4)}"
        context = StageContext(sink.identity, number, epoch, stem, self._clock)
        reached("S3", "before")
        try:
            committables = sink.stage(group.layout.apply(df), context)
        except Exception as error:
            if sink.identity.sink not in self._tolerant:
                if isinstance(error, ConfigurationError | TargetError):
                    error.path = sink_path(group.layout.feeds[0].index, error.path)
                raise
            name = sink.identity.sink
            log.warning("checkpoint %d goes on without sink %s (onFailure: Warn)", number, name, exc_info=True)
            return Staging((), {sink.identity.sink: 0})
        reached("S3", "after")
        if committables is None:
            message = f"sink {sink.identity.sink}: can_stage() is true, and stage() returned None"
            raise SinkjobError("SinkBroken", message, "its author must mend it")
        serializer = sink.committable_serializer
        results = [
            TaskResult(
                sink.identity.sink,
                Lineage(number, epoch, index, len(committables), 0),
                Written(serializer.version, serializer.serialize(committable)),
                sink.staged_rows(committable),
            )
            for index, committable in enumerate(committables)
        ]
        reached("S6", "after")
        return Staging(results, {sink.identity.sink: len(committables)})


def _group(df: DataFrame, sinks: Sequence[JobSink]) -> tuple[Group, ...]:
    members: dict[Distribution | None, list[JobSink]] = {}
    for sink in sinks:
        if not sink.sink.must_stage() and not sink.takes_refused:
            members.setdefault(sink.sink.distribution(), []).append(sink)
    late = {sink.name: sink for sink in sinks if sink.takes_refused}
    passes = []
    for wish, group in members.items():
        names = dict.fromkeys(sink.dead_letters.sink for sink in group if sink.dead_letters)
        taking = [_taken(late, name, group) for name in names]
        passes.append(Group(wish, lay_out(df, [*group, *taking]), len(group) == 1))
    staging = [Group(None, lay_out(df, [sink]), True, True) for sink in sinks if sink.sink.must_stage()]
    return (*passes, *staging)


def _taken(late: dict[str, JobSink], name: str, group: Sequence[JobSink]) -> JobSink:
    """The dead-letter sink of that name, which only one pass can write to."""
    index = next(sink.index for sink in group if sink.dead_letters and sink.dead_letters.sink == name)
    path = f"spec.sinks[{index}].deadLetter.sink"
    if name not in late:
        message = f"`{name}` takes the refused rows of a sink whose rows are distributed in another way"
        raise ConfigurationError("InvalidDeadLetter", message, path=path, advice="give each a dead-letter sink")
    if late[name].sink.must_stage():
        message = f"`{name}` takes whole batches only, and no refused rows"
        raise ConfigurationError("InvalidDeadLetter", message, path=path, advice="name a sink of another type")
    return late.pop(name)


def _arrange(df: DataFrame, group: Group) -> DataFrame:
    """The batch as a group's tasks get it."""
    if group.narrow_first:
        return _distribute(group.layout.apply(df), group.distribution)
    return group.layout.apply(_distribute(df, group.distribution))


def _distribute(df: DataFrame, wish: Distribution | None) -> DataFrame:
    if wish is None:
        return df
    keys = [*(column(name) for name in wish.keys), *(F.expr(sql) for sql in wish.expressions)]
    if keys or wish.partitions:
        tasks = wish.partitions or max(1, df._jdf.queryExecution().toRdd().getNumPartitions())
        df = (df.repartitionByRange if wish.by_range else df.repartition)(tasks, *keys)
    if wish.sort_by:
        df = df.sortWithinPartitions(*[column(name) for name in wish.sort_by])
    return df


def _check_refused(group: Group, report: PassReport) -> None:
    """Each task has kept `maxRows`; all of them together must, too."""
    for feed in group.layout.feeds:
        if feed.dead_letters is not None:
            try:
                check_bound(feed.dead_letters, refused_rows(report.counters.get(feed.name, {})))
            except TargetError as error:
                error.path = sink_path(feed.index, error.path)
                raise


def _result(row: Row, assignment: Assignment) -> TaskResult:
    committable = None if row.committable is None else Written(row.version, bytes(row.committable))
    return TaskResult(
        sink=row.sink,
        lineage=Lineage(assignment.checkpoint, assignment.epoch, row.subtask, row.subtasks, row.attempt),
        committable=committable,
        rows=row.rows,
        remaining_life_seconds=row.remaining_life_seconds,
        states=tuple(Written(state.version, bytes(state.data)) for state in row.states),
    )


def _add_counters(report: PassReport, rows: Sequence[Row]) -> None:
    for row in rows:
        mine = report.counters.setdefault(row.sink, {})
        for name, amount in row.counters.items():
            mine[name] = mine.get(name, 0) + amount
