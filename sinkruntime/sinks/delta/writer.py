"""The writers of the `delta` sink: Parquet files of one task, split by partition and rolled by size.

Run in executor tasks. They write no log: what the commit needs of a file (size, partition, statistics) goes into the
committable.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.sinks.delta import names
from sinkruntime.sinks.delta.options import Options
from sinkruntime.sinks.delta.place import STORE_ERRORS, Place
from sinkruntime.sinks.delta.statistics import statistics
from sinkruntime.sinks.delta.table import Shape
from sinkruntime.storage.columnar import GROUP_BYTES_MAX, GROUP_ROWS_MAX
from sinkruntime.storage.names import text_of
from sinkruntime.storage.writer import BUFFERED_BYTES_MAX, groups
from sinkruntime.tables.schemas import conform


class OpenFile:
    """One Parquet file being written."""

    def __init__(self, place: Place, path: str, schema: pa.Schema, options: Options) -> None:
        self.path = path
        self.rows = 0
        self.buffered_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._schema = schema
        self._group_bytes_max = min(GROUP_BYTES_MAX, options.target_file_size.bytes)
        self._inexact: set[str] = set()
        self._floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        self._stream = place.create(path)
        codec: Any = options.compression.value
        self._writer = pq.ParquetWriter(
            self._stream, schema, compression=codec, version="2.6", coerce_timestamps="us", store_schema=False
        )

    @property
    def size_bytes(self) -> int:
        """What was written so far."""
        return int(self._stream.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self.buffered_bytes >= self._group_bytes_max or self._buffered_rows >= GROUP_ROWS_MAX:
            self.encode()

    def encode(self) -> None:
        """Encode what is gathered."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
        for name in self._floats:
            if name not in self._inexact and pc.any(pc.is_nan(table.column(name))).as_py():
                self._inexact.add(name)
        self._writer.write_table(table, row_group_size=GROUP_ROWS_MAX)

    def finish(self) -> dict[str, Any]:
        """Close it; its path, size, rows, and statistics as the log has them."""
        self.encode()
        self._writer.close()
        size = self.size_bytes
        self._stream.close()
        found = statistics(self._writer.writer.metadata, self._schema, self._inexact)
        return {"path": self.path, "size": size, "rows": self.rows, "stats": json.dumps(found, separators=(",", ":"))}

    def abandon(self) -> None:
        """Close it as it is, to be removed."""
        for close in (self._writer.close, self._stream.close):
            try:
                close()
            except STORE_ERRORS:
                continue  # it is given up either way


class DeltaWriter(SinkWriter):
    """Stages data files: `write: append` and `complete`."""

    def __init__(self, options: Options, context: WriterContext, shape: Callable[[], Shape]) -> None:
        self._options = options
        self._context = context
        self._place = Place(options)
        self._find_shape = shape
        self._open: OrderedDict[tuple[str | None, ...], OpenFile] = OrderedDict()  # the least recently used first
        self._items: list[dict[str, Any]] = []
        self._paths: list[str] = []
        self._directory = names.directory_of(context.identity, options.write, context.lineage)

    def open(self) -> None:
        self._shape = self._find_shape()
        self._file_schema = self._shape.file_schema
        self._columns = self._shape.partition_by

    def write(self, batch: pa.RecordBatch) -> None:
        self._stage(conform(batch, self._shape.schema, "options.path"))

    def _stage(self, rows: pa.RecordBatch) -> None:
        for values, part in self._split(rows):
            file = self._file(values)
            file.write(part)
            if file.size_bytes >= self._options.target_file_size.bytes:
                self._finish(values)
        self._bound_buffers()

    def flush(self, end_of_input: bool) -> None:
        self.spill()

    def open_files(self) -> int:
        """Of a routed sink: what this table holds of all that its task may hold open; `spill` closes them early."""
        return len(self._open)

    def buffered_bytes(self) -> int:
        """What its open files hold unencoded."""
        return sum(file.buffered_bytes for file in self._open.values())

    def spill(self) -> None:
        for values in list(self._open):
            self._finish(values)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        self.flush(end_of_input=True)
        if not self._items:
            return None
        return {"files": self._items, "table": self._shape.table_id, "columns": self._shape.types}

    def abort_prepare(self) -> None:
        for file in self._open.values():
            file.abandon()
        self._place.remove(self._paths)
        self._forget()

    def close(self) -> None:
        """What is staged and finished stays; unfinished files go."""
        for file in self._open.values():
            file.abandon()
            self._place.remove([file.path])
        self._forget()

    def _forget(self) -> None:
        self._open.clear()
        self._items, self._paths = [], []

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """The rows by partition values as the log writes them, without the partition columns."""
        if rows.num_rows == 0:
            return
        if not self._columns:
            yield (), rows
            return
        content = rows.select(self._file_schema.names)
        for values, numbers in groups(rows, self._columns):
            yield tuple(text_of(value) or None for value in values), content.take(numbers)

    def _file(self, values: tuple[str | None, ...]) -> OpenFile:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= self._options.max_open_files:
                self._finish(next(iter(self._open)))
            path = f"{self._directory}/{self._context.stem}-{len(self._paths):05d}.parquet"
            self._paths.append(path)
            file = self._open[values] = OpenFile(self._place, path, self._file_schema, self._options)
        self._open.move_to_end(values)
        return file

    def _finish(self, values: tuple[str | None, ...]) -> None:
        item = self._open[values].finish()
        del self._open[values]
        item["partition"] = dict(zip(self._columns, values, strict=True))
        item["time"] = int(self._context.clock.wall() * 1000)
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])

    def _bound_buffers(self) -> None:
        while self.buffered_bytes() > BUFFERED_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.buffered_bytes).encode()
