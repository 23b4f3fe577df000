"""What runs in an executor: one task feeds its Arrow batches to a writer of each sink, and sends committables back.

`passes.py` makes a `WriterTask` per pass and hands it to `mapInArrow`; Spark pickles it to the Python workers. A task
never publishes anything, and its results count only if Spark keeps that attempt.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
from pyspark import TaskContext

from sinkruntime.api import Clock, Lineage, Sink, SinkWriter, WriterContext
from sinkruntime.crashpoints import reached
from sinkruntime.dead_letters import DeadLetters, Refusals, Reject, refused_rows, reject_nothing
from sinkruntime.driver.staging import Written
from sinkruntime.spark.failure import TaskFailure
from sinkruntime.spark.tolerant import TolerantWriter

#: The local property in which the driver tells the tasks how many they are; it travels with the job.
SUBTASKS_PROPERTY = "sinkjob.subtasks"

#: One row per task and sink. `version` and `committable` are null where nothing was staged, `remaining_life_seconds`
#: where it lives for ever; `seen` counts the rows that reached the task before the sink's `where`.
RESULT_DDL = (
    "sink string, subtask int, subtasks int, attempt bigint, seen bigint, rows bigint, "
    "remaining_life_seconds double, version int, committable binary, "
    "states array<struct<version: int, data: binary>>, counters map<string, double>"
)
_STATE = pa.struct([pa.field("version", pa.int32()), pa.field("data", pa.binary())])
_RESULT_FIELDS: list[pa.Field[Any]] = [
    pa.field("sink", pa.string()),
    pa.field("subtask", pa.int32()),
    pa.field("subtasks", pa.int32()),
    pa.field("attempt", pa.int64()),
    pa.field("seen", pa.int64()),
    pa.field("rows", pa.int64()),
    pa.field("remaining_life_seconds", pa.float64()),
    pa.field("version", pa.int32()),
    pa.field("committable", pa.binary()),
    pa.field("states", pa.list_(_STATE)),
    pa.field("counters", pa.map_(pa.string(), pa.float64())),
]
RESULT_SCHEMA = pa.schema(_RESULT_FIELDS)


@dataclass(frozen=True, slots=True)
class Feed:
    """How one sink gets its rows from the batches of a pass.

    `columns` are the indexes of its columns (None: the batch as it is), `where` that of the boolean column which
    says what is its (None: all rows). `schema` is what its writer is given, `index` its place in `spec.sinks`.
    `dead_letters` says where the rows go that its target refuses (None: there must be none). One that takes such rows
    gets no others.
    """

    sink: Sink
    schema: pa.Schema
    columns: tuple[int, ...] | None = None
    where: int | None = None
    index: int = 0
    dead_letters: DeadLetters | None = None
    takes_refused: bool = False

    @property
    def name(self) -> str:
        """The sink's name."""
        return self.sink.identity.sink

    def cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """This sink's part of a batch; no row is copied unless `where` drops some."""
        mine = batch
        if self.columns is not None:
            arrays = [batch.column(index) for index in self.columns]
            mine = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
        if not mine.schema.equals(self.schema):  # Spark's optimizer may know better which column has no nulls
            mine = mine.cast(self.schema)
        return mine if self.where is None else mine.filter(batch.column(self.where))


class Counters(dict[str, float]):
    """The counters of one writer; they go to the driver with the result."""

    def __call__(self, name: str, amount: float = 1) -> None:
        self[name] = self.get(name, 0) + amount


@dataclass(slots=True)
class _Open:
    """One writer at work."""

    feed: Feed
    lineage: Lineage
    writer: SinkWriter
    counters: Counters
    rows: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Write these rows of its own."""
        if batch.num_rows:
            with _of(self.feed):
                self.rows += batch.num_rows
                self.writer.write(batch)

    @property
    def rows_kept(self) -> int:
        """What its target holds in the end."""
        return self.rows - refused_rows(self.counters)


@dataclass(frozen=True, slots=True)
class WriterTask:
    """One pass as its tasks see it: called by Spark once per task, also for an empty one.

    `states` holds the former checkpoint's writer states by sink: state `i` goes to subtask `i % subtasks`.
    """

    feeds: tuple[Feed, ...]
    checkpoint: int
    epoch: int
    clock: Clock
    watermark_ms: int | None = None
    states: dict[str, tuple[Written, ...]] = field(default_factory=dict)
    tolerant: frozenset[str] = frozenset()  # sinks with `onFailure: Warn`
    pending_max: int = 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of `mapInArrow`: yields one batch of `RESULT_SCHEMA`."""
        context = TaskContext.get()
        subtasks = context.getLocalProperty(SUBTASKS_PROPERTY) if context is not None else None
        if context is None or subtasks is None:
            raise RuntimeError("a writer's task was run outside of its pass")
        # Not attemptNumber(): it starts again at 0 when Spark repeats a whole stage.
        attempt = context.taskAttemptId()
        lineage = Lineage(self.checkpoint, self.epoch, context.partitionId(), int(subtasks), attempt)
        _spare_collections()
        result = self.stage(batches, lineage)
        _forget_archives()
        reached("S6", "before")
        yield result

    def stage(self, batches: Iterable[pa.RecordBatch], lineage: Lineage) -> pa.RecordBatch:
        """Write all batches into all sinks and prepare them; on any error all of them are aborted and closed."""
        opened: list[_Open] = []
        try:
            self._open(opened, lineage)
            seen = self._write(opened, batches)
            # A writer may refuse rows until it has prepared: those that take such rows come after all others.
            rows = []
            for late in (False, True):
                if part := [item for item in opened if item.feed.takes_refused is late]:
                    self._flush(part)
                    rows += self._prepare(part, seen)
            while opened:
                with _of(opened[-1].feed):
                    opened[-1].writer.close()
                opened.pop()
        except BaseException as error:
            _abandon(opened, error)
            raise
        return pa.RecordBatch.from_pylist(rows, schema=RESULT_SCHEMA)

    def _open(self, opened: list[_Open], lineage: Lineage) -> None:
        reached("S2", "before")
        for feed in self.feeds:
            with _of(feed):
                counters = Counters()
                unique = secrets.token_hex(4)
                reject = self._reject(feed, counters, opened)
                told = (feed.sink.identity, lineage, unique, feed.schema, counters, self.clock)
                context = WriterContext(*told, reject, self.pending_max)
                writer = self._writer(feed, context, counters)
                opened.append(_Open(feed, lineage, writer, counters))
                writer.open()
        reached("S2", "after")

    def _reject(self, feed: Feed, counters: Counters, opened: list[_Open]) -> Reject:
        to = feed.dead_letters
        if to is None:
            return reject_nothing

        def write(letters: pa.RecordBatch) -> None:
            next(item for item in opened if item.feed.name == to.sink).take(letters)

        return Refusals(feed.name, self.checkpoint, to, counters, write)

    def _writer(self, feed: Feed, context: WriterContext, counters: Counters) -> SinkWriter:
        states = self._states(feed, context.lineage)

        def make() -> SinkWriter:
            return feed.sink.restore_writer(context, states) if states else feed.sink.create_writer(context)

        return TolerantWriter(feed.name, make, counters) if feed.name in self.tolerant else make()

    def _states(self, feed: Feed, lineage: Lineage) -> list[object]:
        mine = self.states.get(feed.name, ())[lineage.subtask :: lineage.subtasks]
        return [feed.sink.state_serializer.deserialize(state.version, state.data) for state in mine]

    def _write(self, opened: list[_Open], batches: Iterable[pa.RecordBatch]) -> int:
        seen = 0
        reached("S3", "before")
        fed = [item for item in opened if not item.feed.takes_refused]
        for batch in batches:
            seen += batch.num_rows
            for item in fed:
                with _of(item.feed):
                    part = item.feed.cut(batch)
                item.take(part)
        reached("S3", "after")
        return seen

    def _flush(self, opened: list[_Open]) -> None:
        reached("S4", "before")
        for item in opened:
            with _of(item.feed):
                if self.watermark_ms is not None:
                    item.writer.write_watermark(self.watermark_ms)
                item.writer.flush(end_of_input=True)
        reached("S4", "after")

    def _prepare(self, opened: list[_Open], seen: int) -> list[dict[str, object]]:
        reached("S5", "before")
        rows = []
        for item in opened:
            with _of(item.feed):
                rows.append(self._result(item, seen))
        reached("S5", "after")
        return rows

    def _result(self, item: _Open, seen: int) -> dict[str, object]:
        sink, writer = item.feed.sink, item.writer
        committable = writer.prepare_commit(self.checkpoint)
        states = writer.snapshot_state(self.checkpoint)
        keeper, serializer = sink.state_serializer, sink.committable_serializer
        return {
            "sink": item.feed.name,
            "subtask": item.lineage.subtask,
            "subtasks": item.lineage.subtasks,
            "attempt": item.lineage.attempt,
            "seen": seen,
            "rows": item.rows_kept,
            "remaining_life_seconds": writer.remaining_life_seconds(),
            "version": None if committable is None else serializer.version,
            "committable": None if committable is None else serializer.serialize(committable),
            "states": [{"version": keeper.version, "data": keeper.serialize(state)} for state in states],
            "counters": list(item.counters.items()),
        }


def _spare_collections() -> None:
    """Spark collects garbage after each task, and would look through all loaded modules each time: some 50 ms."""
    if gc.get_freeze_count() == 0:
        gc.freeze()


def _forget_archives() -> None:
    """Spare this worker's next task what the path's zips and jars hold: they do not change under a running worker.

    Spark invalidates the import caches before each task, and Python then reads the directories of all archives on its
    path again (Spark adds its core jar, 5,000 entries): some 25 ms a task. Left out of the cache, an archive is opened
    again when an import needs it, with the directory that is known.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


@contextmanager
def _of(feed: Feed) -> Iterator[None]:
    """Names the sink in whatever its writer raises; the driver reads it back (see `failure.py`)."""
    try:
        yield
    except TaskFailure:  # of the dead-letter sink that it handed rows to
        raise
    except Exception as error:
        raise TaskFailure.wrap(feed.name, feed.index, error) from error


def _abandon(opened: list[_Open], error: BaseException) -> None:
    """Abort and close, last opened first. What fails here is noted on the error that led here."""
    for item in reversed(opened):
        for act in (item.writer.abort_prepare, item.writer.close):
            try:
                act()
            except Exception as second:  # noqa: BLE001  (the first error is the one to report)
                error.add_note(f"then, in {act.__name__} of sink {item.feed.name}: {second!r}")
