"""The writer of sinks that put files into a storage: splits rows by partition, rolls files, keeps few of them open.

Runs in an executor task, made by the `file` and `hive` sinks. It knows formats and storages only by their interfaces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.storage.base import Item, Output, Storage
from sinkruntime.storage.columnar import GROUP_BYTES_MAX, GROUP_ROWS_MAX, OpenFormat
from sinkruntime.storage.names import owner_digest, partition_directory

#: What all open files of a task may hold unencoded.
BUFFERED_BYTES_MAX = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become files. `extension` begins with a dot; `life_seconds` is how long the storage keeps what is
    staged (None: for ever); `base` is the directory of all files, below the target ("": the target itself)."""

    open_format: OpenFormat
    extension: str
    partition_by: tuple[str, ...]
    target_file_bytes: int
    max_open_files: int
    file_prefix: str = "part-"
    life_seconds: float | None = None
    base: str = ""


class OpenFile:
    """One file being written: rows are gathered until they make a group, where the format has groups."""

    def __init__(self, output: Output, schema: pa.Schema, open_format: OpenFormat, target_file_bytes: int) -> None:
        self.output = output
        self.rows = 0
        self.buffered_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._schema = schema
        self._group_bytes_max = min(GROUP_BYTES_MAX, target_file_bytes)
        self._format = open_format(output.stream, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        self.rows += batch.num_rows
        full = self.buffered_bytes >= self._group_bytes_max or self._buffered_rows >= GROUP_ROWS_MAX
        if full or not self._format.grouped:
            self.encode()

    def encode(self) -> None:
        """Encode what is gathered."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
            self._format.write(table)
            self.output.stream.check()

    def finish(self) -> Item:
        self.encode()
        self._format.close()
        self.output.stream.check()
        return {**self.output.finish(), "rows": self.rows}


class FileWriter(SinkWriter):
    """Stages files of one task."""

    def __init__(self, layout: Layout, storage: Storage, context: WriterContext) -> None:
        self._layout = layout
        self._storage = storage
        self._context = context
        self._schema = file_schema(context.schema, layout.partition_by)
        self._open: OrderedDict[str, OpenFile] = OrderedDict()  # by directory, the least recently used first
        self._items: list[Item] = []
        self._outputs: list[Output] = []
        self._sequence = 0
        self._is_open = False
        self._began_seconds: float | None = None  # when the oldest file was begun

    def open(self) -> None:
        self._storage.open()
        self._is_open = True

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, part in self._split(batch):
            file = self._file(directory)
            file.write(part)
            if file.output.size_bytes >= self._layout.target_file_bytes:
                self._finish(directory)
        bound_buffers(self._open, self._finish)

    def flush(self, end_of_input: bool) -> None:
        for directory in list(self._open):
            self._finish(directory)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        self.flush(end_of_input=True)
        if not self._items:
            return None
        self._storage.prepared()
        return {"files": self._items}

    def remaining_life_seconds(self) -> float | None:
        lifetime = self._layout.life_seconds
        if lifetime is None or self._began_seconds is None:
            return None
        return lifetime - (self._context.clock.monotonic() - self._began_seconds)

    def abort_prepare(self) -> None:
        for output in self._outputs:
            output.discard()
        self._forget()

    def close(self) -> None:
        """What is staged and finished stays; unfinished files go."""
        for file in self._open.values():
            file.output.discard()
        self._forget()
        if self._is_open:
            self._storage.close()
            self._is_open = False

    def _forget(self) -> None:
        self._open.clear()
        self._items, self._outputs = [], []

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The batch by directory, without the columns that the directories stand for."""
        columns, base = self._layout.partition_by, self._layout.base
        if batch.num_rows == 0:
            return
        if not columns:
            yield base, batch
            return
        content = batch.select(self._schema.names)
        for values, rows in groups(batch, columns):
            directory = partition_directory(columns, values)
            yield f"{base}/{directory}" if base else directory, content.take(rows)

    def _file(self, directory: str) -> OpenFile:
        file = self._open.get(directory)
        if file is None:
            if len(self._open) >= self._layout.max_open_files:
                self._finish(next(iter(self._open)))
            if self._began_seconds is None:
                self._began_seconds = self._context.clock.monotonic()
            output = self._storage.create(directory, self._next_name())
            self._outputs.append(output)
            layout = self._layout
            file = OpenFile(output, self._schema, layout.open_format, layout.target_file_bytes)
            self._open[directory] = file
        self._open.move_to_end(directory)
        return file

    def _next_name(self) -> str:
        layout, context = self._layout, self._context
        name = f"{layout.file_prefix}{owner_digest(context.identity)}-{context.stem}-{self._sequence:05d}"
        self._sequence += 1
        return f"{name}{layout.extension}"

    def _finish(self, directory: str) -> None:
        item = self._open[directory].finish()
        del self._open[directory]
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])


def bound_buffers(open_files: Mapping[str, OpenFile], close: Callable[[str], None]) -> None:
    """Encode the largest buffers until all together are small enough; where that does not help, `close` files."""
    while sum(file.buffered_bytes + file.output.buffered_bytes for file in open_files.values()) > BUFFERED_BYTES_MAX:
        largest = max(open_files.values(), key=lambda file: file.buffered_bytes)
        if largest.buffered_bytes:
            largest.encode()
        else:
            close(next(iter(open_files)))


def file_schema(schema: pa.Schema, partition_by: tuple[str, ...]) -> pa.Schema:
    """The columns that stand in the files themselves."""
    return pa.schema([field for field in schema if field.name not in partition_by])


def groups(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], pa.Array[Any]]]:
    """(values, row numbers) for each combination of values in the columns, in order of first appearance."""
    numbered = pa.Table.from_batches([batch]).select(list(columns))
    keys = [f"key_{index}" for index in range(len(columns))]
    numbered = numbered.rename_columns(keys).append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    found = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    for index in range(found.num_rows):
        values = tuple(found.column(key)[index].as_py() for key in keys)
        yield values, found.column("row_list")[index].values
