"""The writer of upserts: rewrites the file groups whose records change, copy on write.

Runs in an executor task, which is one bucket: Spark hashes rows by the record key into as many tasks as a partition has
file groups, so a key has one place for ever, and a task never looks into another's files. Rows come sorted by
partition; one partition's rows are held in memory, its base file passes through in batches.

It builds on the table as it is, so every earlier checkpoint must be committed (`maxPending: 1`), and the committer
turns down what was built on another state.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from sinkruntime.api import WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi.files import DataFile, named, with_meta
from sinkruntime.sinks.hudi.instants import Instants
from sinkruntime.sinks.hudi.keys import by_partition, record_keys
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.place import Table
from sinkruntime.sinks.hudi.timeline import Timeline
from sinkruntime.sinks.hudi.writer import HudiWriter
from sinkruntime.tables.changes import Changes

pc: Any = pyarrow.compute  # its stubs know no mixed arguments

#: Rows of one partition and bucket in one checkpoint.
CHANGES_BYTES_MAX = 512 * 1024**2
BATCH_ROWS = 65_536

_KEY = "_hoodie_record_key"
_FILE = re.compile(r"(?P<group>(?P<bucket>\d{8})-[0-9a-f-]+)_[A-Za-z0-9-]+_(?P<instant>\d{17})\.parquet")


@dataclass(frozen=True, slots=True)
class BaseFile:
    """The latest file of a file group."""

    group: str
    instant: str
    name: str


@dataclass(slots=True)
class Merge:
    """The new rows of one partition and bucket, one for each key, and which of them have met their old one."""

    rows: pa.Table
    ordering: str
    met: set[int]
    lost: set[int]

    def keep(self, old: pa.RecordBatch) -> pa.RecordBatch:
        """The old rows that stay: those with no new one, or with one of a lower order."""
        at = pc.index_in(old.column(_KEY), value_set=self.rows.column(_KEY).combine_chunks())
        new, mine = self.rows.column(self.ordering).combine_chunks().take(at), old.column(self.ordering)
        matched = pc.is_valid(at)
        at_least = pc.greater_equal(new, mine)
        if pa.types.is_floating(new.type):  # NaN is the greatest number, as Spark and Hudi have it
            at_least = pc.or_(at_least, pc.is_nan(new))
        newer = pc.or_kleene(pc.is_null(mine), pc.fill_null(at_least, False))
        replaced = pc.and_(matched, newer)
        self.met.update(at.filter(matched).to_pylist())
        self.lost.update(at.filter(pc.and_not(matched, replaced)).to_pylist())
        return old.filter(pc.invert(replaced))


class UpsertWriter(HudiWriter):
    """Rewrites the files of one bucket."""

    def __init__(self, options: Options, table: Table, context: WriterContext) -> None:
        super().__init__(options, table, context)
        self._changes = Changes((_KEY,), (options.ordering_field or "",))
        self._timeline: Timeline | None = None
        self._partition: str | None = None
        self._done: set[str] = set()
        self._buffer: list[pa.RecordBatch] = []
        self._buffer_bytes = 0
        self._writing: DataFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        timeline = self._prepare()
        for partition, rows in by_partition(batch, self._options):
            if partition != self._partition:
                self._rewrite(timeline)
                self._partition = partition
            keys = record_keys(rows, self._options)
            self._buffer.append(with_meta(rows, self._schema, self._begin(timeline), keys, partition))
            self._buffer_bytes += self._buffer[-1].nbytes
            if self._buffer_bytes > CHANGES_BYTES_MAX:
                size = CHANGES_BYTES_MAX // 1024**2
                message = f"partition {partition!r}: the rows of one checkpoint and bucket exceed {size} MiB"
                advice = "let checkpoints be smaller, or make the table anew with more `buckets`"
                raise TargetError("CheckpointTooLarge", message, path="options.buckets", advice=advice)

    def flush(self, end_of_input: bool) -> None:
        if self._timeline is not None:
            self._rewrite(self._timeline)

    def _prepare(self) -> Timeline:
        """The table's state that this writer builds on, read once."""
        if self._timeline is None:
            at = self._context.lineage
            if at.subtasks != self._options.buckets:
                message = f"{at.subtasks} tasks write {self._options.buckets} buckets; they must be as many"
                raise TargetError("BucketsDiffer", message, path="options.buckets")
            self._timeline = Timeline.read(self._table)
            Instants(self._table, self._context.identity).refuse_foreign_writes(self._timeline)
            instant = self._begin(self._timeline).instant
            if instant <= self._timeline.last_change:
                message = f"another writer has changed the table at {self._timeline.last_change}, after {instant}"
                advice = "nobody else may write to a table while this sink upserts"
                raise TargetError("ConcurrentWriter", message, path="options.path", advice=advice)
        return self._timeline

    def _more(self) -> dict[str, str]:
        return {"base": self._timeline.last_change if self._timeline else ""}

    def _unfinished(self) -> list[DataFile]:
        return [] if self._writing is None else [self._writing]

    def _forget(self) -> None:
        super()._forget()
        self._buffer, self._buffer_bytes, self._writing = [], 0, None

    # --- one partition

    def _rewrite(self, timeline: Timeline) -> None:
        """Bring the buffered rows into their partition's file of this bucket."""
        partition, rows = self._partition, pa.Table.from_batches(self._buffer, self._schema)
        self._buffer, self._buffer_bytes = [], 0
        if partition is None or rows.num_rows == 0:
            return
        if partition in self._done:
            message = f"the rows of partition {partition!r} came in two parts: null and empty values share a directory"
            raise TargetError("InvalidPartitionValue", message, path="options.partitionBy")
        self._done.add(partition)
        base = self._base(partition, timeline)
        merge = Merge(self._changes.last(rows), self._options.ordering_field or "", set(), set())
        if base is None and self._new(merge).num_rows == 0:
            return
        file = self._writing = self._create(partition, base.group if base else self._group(partition))
        if base is not None:
            for batch in self._old(f"{partition}/{base.name}".lstrip("/")):
                kept = merge.keep(batch)
                if kept.num_rows:
                    file.write(named(kept, file.name))
        fresh = self._new(merge)
        for batch in fresh.combine_chunks().to_batches():
            file.write(named(batch, file.name))
        self._count(merge, fresh.num_rows, partition, base)

    def _count(self, merge: Merge, fresh: int, partition: str, base: BaseFile | None) -> None:
        """Finish the file, with what Hudi keeps of it."""
        assert self._writing is not None
        item = self._finish(self._writing, partition)
        self._writing = None
        won = merge.met - merge.lost
        deletes = self._deletes(merge.rows)
        deleted = sum(1 for at in won if deletes[at].as_py())
        item |= {
            "updates": len(won) - deleted,
            "deletes": deleted,
            "inserts": fresh - (len(won) - deleted),
        }
        if base is not None:
            item |= {"previous": base.instant, "base": base.name}

    def _new(self, merge: Merge) -> pa.Table:
        """The new rows that stand in the file: none that an old one has beaten, none that deletes."""
        lost = pa.array([at in merge.lost for at in range(merge.rows.num_rows)], pa.bool_())
        return merge.rows.filter(pc.invert(pc.or_(lost, self._deletes(merge.rows))))

    def _deletes(self, rows: pa.Table) -> Any:
        condition = self._options.condition
        if condition is None:
            return pa.array([False] * rows.num_rows, pa.bool_())
        held = [condition.holds(batch) for batch in rows.combine_chunks().to_batches()]
        return pc.fill_null(pa.concat_arrays(held) if held else pa.array([], pa.bool_()), False)

    def _group(self, partition: str) -> str:
        """The id of a new file group, as Hudi names a bucket's."""
        rest = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._stem}/{partition}"))[8:]
        return f"{self._context.lineage.subtask:08d}{rest}-0"

    def _base(self, partition: str, timeline: Timeline) -> BaseFile | None:
        """The latest visible file of this bucket; None: it has none yet."""
        found = []
        for name in self._table.names(partition):
            match = _FILE.fullmatch(name)
            if match is None or int(match["bucket"]) != self._context.lineage.subtask:
                continue
            if timeline.shows(match["instant"]):
                found.append(BaseFile(match["group"], match["instant"], name))
        groups = {file.group for file in found}
        if len(groups) > 1:
            message = f"partition {partition!r} has {len(groups)} file groups of one bucket: another writer made some"
            raise TargetError("ConcurrentWriter", message, path="options.path")
        return max(found, key=lambda file: file.instant, default=None)

    def _old(self, path: str) -> Iterator[pa.RecordBatch]:
        stream: IO[bytes]
        with self._table.reader(path) as stream:
            yield from pyarrow.parquet.ParquetFile(stream).iter_batches(BATCH_ROWS, columns=self._schema.names)
