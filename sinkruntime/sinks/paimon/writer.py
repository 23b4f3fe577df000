"""The writer of the `paimon` sink: data files in their final places, which no manifest names yet.

Runs in an executor task. Rows without a key go to a file per partition as they come; rows with a key are gathered per
bucket, sorted, and written as files of level 0 with sequence numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import snapshots
from sinkruntime.sinks.paimon.binary_row import encode
from sinkruntime.sinks.paimon.buckets import buckets_of
from sinkruntime.sinks.paimon.files import DataFile
from sinkruntime.sinks.paimon.manifests import packed
from sinkruntime.sinks.paimon.options import Options
from sinkruntime.sinks.paimon.schema import Schema
from sinkruntime.sinks.paimon.statistics import Statistics
from sinkruntime.sinks.paimon.table import Table, bucket_directory, marker_of
from sinkruntime.storage.names import owner_digest
from sinkruntime.tables import schemas
from sinkruntime.tables.changes import Changes, comparable

#: What a task may hold unencoded.
BUFFERED_BYTES_MAX = 128 * 1024**2
#: A row group ends at this size.
GROUP_BYTES_MAX = 16 * 1024**2
#: The lower bits of a sequence number count a task's rows, the upper ones are the checkpoint.
ROW_BITS = 32
INSERT, DELETE = 0, 3

Place = tuple[tuple[Any, ...], int]


@dataclass(slots=True)
class Gathered:
    """Rows of one bucket that are in no file yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.nbytes

    def take(self) -> pa.Table:
        table = pa.Table.from_batches(self.batches)
        self.batches, self.size_bytes = [], 0
        return table


class OpenFile:
    """A data file being written."""

    def __init__(self, path: str, output: DataFile, schema: pa.Schema, table: Schema) -> None:
        self.path = path
        self.output = output
        self.rows = 0
        self.gathered = Gathered()
        self.statistics = Statistics(table.fields)
        stream, codec = cast("IO[bytes]", output.stream), cast("Any", table.codec)
        self._parquet = pq.ParquetWriter(stream, schema, compression=codec, store_decimal_as_integer=True)

    def add(self, batch: pa.RecordBatch) -> None:
        self.gathered.add(batch)
        if self.gathered.size_bytes >= GROUP_BYTES_MAX:
            self.encode()

    def encode(self) -> None:
        """Encode what is gathered."""
        if self.gathered.batches:
            self.write(self.gathered.take())

    def write(self, rows: pa.Table) -> None:
        """Encode a row group."""
        self.rows += rows.num_rows
        self.statistics.add(rows)
        self._parquet.write_table(rows)
        self.output.stream.check()

    def finish(self) -> None:
        self.encode()
        self._parquet.close()
        self.output.stream.check()
        self.output.finish()


class PaimonWriter(SinkWriter):
    """What both kinds of table share: files, their names and markers, and the committable."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._table = Table(options, context.identity)
        self._items: list[dict[str, Any]] = []
        self._begun: list[OpenFile] = []
        self._sequence = 0
        self._is_open = False

    def open(self) -> None:
        self._table.open()
        self._is_open = True
        self._schema = self._table.schema()
        self._target = self._table.target()
        self._arrow = self._schema.arrow
        self._partition = self._schema.picked(self._schema.partition_keys)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        self.flush(end_of_input=True)
        if not self._items:
            return None
        return {
            "target": self._target,
            "schema": self._schema.id,
            "buckets": self._schema.buckets,
            "files": self._items,
        }

    def abort_prepare(self) -> None:
        for file in self._begun:
            file.output.discard()
        if self._begun:
            self._table.unmark([marker_of(file.path) for file in self._begun])
        self._forget()

    def close(self) -> None:
        """What is staged and finished stays; unfinished files go."""
        finished = {item["path"] for item in self._items}
        self._begun = [file for file in self._begun if file.path not in finished]
        if self._is_open:
            self._is_open = False
            self.abort_prepare()
            self._table.close()

    def _forget(self) -> None:
        self._items, self._begun = [], []

    def _begin(self, place: Place, schema: pa.Schema) -> OpenFile:
        context = self._context
        name = f"data-{owner_digest(context.identity)}-{context.stem}-{self._sequence:05d}.parquet"
        self._sequence += 1
        path = f"{bucket_directory(self._schema, *place)}/{name}"
        self._table.mark(marker_of(path), [path])
        file = OpenFile(path, self._table.files.begin(path), schema, self._schema)
        self._begun.append(file)
        return file

    def _finish(self, file: OpenFile, place: Place, more: dict[str, Any]) -> None:
        file.finish()
        values, bucket = place
        item = {
            "path": file.path,
            "partition": packed(encode(values, self._partition)),
            "bucket": bucket,
            "size": file.output.size_bytes,
            "rows": file.rows,
            "deletes": 0,
            "sequence": [0, 0],
            "stats": file.statistics.packed(),
            "columns": file.statistics.columns(),
            "made": int(self._context.clock.wall() * 1000),
            **more,
        }
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])


class AppendWriter(PaimonWriter):
    """For tables without a key: one open file per partition, few of them open."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        super().__init__(options, context)
        self._open: OrderedDict[Place, OpenFile] = OrderedDict()  # the least recently used first

    def write(self, batch: pa.RecordBatch) -> None:
        rows = schemas.conform(batch, self._arrow)
        for values, _, part in split(rows, self._schema.partition_keys, None):
            place = (values, 0)
            file = self._file(place)
            file.add(part)
            if file.output.size_bytes >= self._options.target_file_size.bytes:
                self._end(place)
        while sum(file.gathered.size_bytes for file in self._open.values()) > BUFFERED_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.gathered.size_bytes).encode()

    def flush(self, end_of_input: bool) -> None:
        for place in list(self._open):
            self._end(place)

    def _forget(self) -> None:
        super()._forget()
        self._open.clear()

    def _file(self, place: Place) -> OpenFile:
        file = self._open.get(place)
        if file is None:
            if len(self._open) >= self._options.max_open_files:
                self._end(next(iter(self._open)))
            file = self._open[place] = self._begin(place, self._arrow)
        self._open.move_to_end(place)
        return file

    def _end(self, place: Place) -> None:
        self._finish(self._open.pop(place), place, {})


class KeyedWriter(PaimonWriter):
    """For tables with a key: rows are gathered per bucket, and each flush of one makes one sorted file of level 0."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        super().__init__(options, context)
        self._changes = Changes(options.key, options.order_by, options.condition)
        self._gathered: dict[Place, Gathered] = {}
        self._numbered = 0

    def open(self) -> None:
        super().open()
        consumer = snapshots.read_consumer(self._table.files, self._context.identity)
        if consumer is None:
            message = "the table was not prepared: its consumer file is missing; start the job again"
            raise TargetError("NotPrepared", message, path="options.table")
        self._first = consumer.base + (self._context.lineage.checkpoint << ROW_BITS)
        keys = [pa.field(f"_KEY_{name}", self._arrow.field(name).type, False) for name in self._schema.key]
        system = [pa.field("_SEQUENCE_NUMBER", pa.int64(), False), pa.field("_VALUE_KIND", pa.int8(), False)]
        self._stored = pa.schema([*keys, *system, *self._arrow])

    def write(self, batch: pa.RecordBatch) -> None:
        self._changes.check_keys(batch)
        deletes = self._changes.deletes(batch)
        order = [batch.column(name) for name in self._options.order_by]
        kept = [name for name in batch.schema.names if name in self._arrow.names]
        rows = schemas.conform(batch.select(kept), self._arrow)
        numbers = pa.array(range(self._numbered, self._numbered + rows.num_rows), pa.int64())
        self._numbered += rows.num_rows
        kinds = pc.if_else(deletes, pa.scalar(DELETE, pa.int8()), pa.scalar(INSERT, pa.int8()))
        hashed = buckets_of([rows.column(name) for name in self._schema.bucket_key], self._schema.buckets)
        names = [*rows.schema.names, "_number", "_kind", *(f"_by_{index}" for index in range(len(order)))]
        whole = pa.RecordBatch.from_arrays([*rows.columns, numbers, kinds, *order], names=names)
        for values, bucket, part in split(whole, self._schema.partition_keys, pa.array(hashed)):
            self._gathered.setdefault((values, bucket), Gathered()).add(part)
        while sum(part.size_bytes for part in self._gathered.values()) > BUFFERED_BYTES_MAX:
            self._write_out(max(self._gathered, key=lambda place: self._gathered[place].size_bytes))

    def flush(self, end_of_input: bool) -> None:
        for place in list(self._gathered):
            self._write_out(place)

    def _forget(self) -> None:
        super()._forget()
        self._gathered.clear()

    def _write_out(self, place: Place) -> None:
        rows = self._last(self._gathered.pop(place).take())
        numbers = pc.add(rows.column("_number"), pa.scalar(self._first, pa.int64()))
        kinds = rows.column("_kind")
        keys = [rows.column(name) for name in self._schema.key]
        values = [rows.column(name) for name in self._arrow.names]
        file = self._begin(place, self._stored)
        file.write(pa.Table.from_arrays([*keys, numbers, kinds, *values], schema=self._stored))
        fields = self._schema.picked(self._schema.key)
        ends = [packed(encode([column[at].as_py() for column in keys], fields)) for at in (0, rows.num_rows - 1)]
        found: Any = pc.min_max(numbers).as_py()
        deleted = pc.equal(kinds, pa.scalar(DELETE, pa.int8())).to_pylist().count(True)
        self._finish(file, place, {"key": ends, "sequence": [found["min"], found["max"]], "deletes": deleted})

    def _last(self, rows: pa.Table) -> pa.Table:
        """The last change of each key, sorted by it."""
        by = [f"_by_{index}" for index in range(len(self._options.order_by))]
        columns = comparable([rows.column(name) for name in (*self._schema.key, *by, "_number")])
        names = [str(index) for index in range(len(columns))]
        table = pa.Table.from_arrays(columns, names=names)
        # From the last to the first, and then turned round: nulls of `orderBy` are the oldest, as `Changes` has them.
        order = pc.sort_indices(table, sort_keys=[(name, "descending") for name in names])[::-1]
        rows = rows.take(order).combine_chunks()
        if rows.num_rows < 2:
            return rows
        ends = pa.array([False] * (rows.num_rows - 1))
        for name in self._schema.key:
            column = rows.column(name).combine_chunks()
            ends = pc.or_(ends, pc.not_equal(column.slice(1), column.slice(0, rows.num_rows - 1)))
        return rows.filter(pa.concat_arrays([ends, pa.array([True])]))


def split(
    batch: pa.RecordBatch, columns: Sequence[str], buckets: Any | None
) -> Iterator[tuple[tuple[Any, ...], int, pa.RecordBatch]]:
    """(partition values, bucket, rows in their order) for each combination that occurs."""
    if batch.num_rows == 0:
        return
    keyed = [batch.column(name) for name in columns] + ([] if buckets is None else [buckets])
    if not keyed:
        yield (), 0, batch
        return
    names = [f"key_{index}" for index in range(len(keyed))]
    table = pa.Table.from_arrays([*keyed, pa.array(range(batch.num_rows), pa.int64())], names=[*names, "row"])
    found = table.group_by(names, use_threads=False).aggregate([("row", "list")])
    for index in range(found.num_rows):
        values = [found.column(name)[index].as_py() for name in names]
        bucket = 0 if buckets is None else values.pop()
        rows = found.column("row_list")[index].values
        yield tuple(values), bucket, batch if found.num_rows == 1 else batch.take(rows)
