"""The writer of the `iceberg` sink: rows to Parquet files with field ids, by partition, a size at which files roll.

Runs in an executor task. It reads the table's schema, partitioning and properties, and never writes metadata: the
committables carry what the committer needs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.sinks.iceberg import catalog, columns, files, naming, partitions
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.parquet import ParquetFile
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: What all open files of a task may hold unencoded.
BUFFERED_BYTES_MAX = 256 * 1024**2
DEFAULT_FILE_BYTES = 512 * 1024**2


class TableWriter:
    """Stages files of one table for one task."""

    def __init__(self, options: Options, table: Table, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._metadata = table.metadata
        self._io = table.io
        self._ice = table.metadata.schema()
        self._spec = table.metadata.spec()
        self._schema = columns.arrow_schema(self._ice)
        schemas.check(context.schema, self._schema)
        at = context.lineage
        data = table.location_provider().data_path
        self.folder = naming.stage_folder(data, context.identity, at.checkpoint, at.epoch)
        self._open: OrderedDict[tuple[Any, ...], ParquetFile] = OrderedDict()
        self._made: list[ParquetFile] = []
        self._items: list[files.Item] = []
        wanted = table.metadata.properties.get("write.target-file-size-bytes", DEFAULT_FILE_BYTES)
        self._file_bytes = options.target_file_size.bytes if options.target_file_size else int(wanted)

    def write(self, batch: pa.RecordBatch) -> None:
        mine = schemas.conform(batch, self._schema)
        for values, part in partitions.split(mine, self._spec, self._ice):
            file = self._file(values)
            file.write(part)
            if file.size_bytes >= self._file_bytes:
                self._finish(values)
        self._bound_buffers()

    def flush(self) -> None:
        for values in list(self._open):
            self._finish(values)

    def committable(self) -> Committable | None:
        """What was staged; None: nothing."""
        self.flush()
        if not self._items:
            return None
        table = str(self._metadata.table_uuid)
        return {"table": table, "folder": self.folder, "spec": self._spec.spec_id, "files": self._items}

    def discard(self) -> None:
        """Take back all that was staged."""
        for file in self._made:
            file.discard()
        self._forget()

    def close(self) -> None:
        """What is finished stays; unfinished files go."""
        for file in self._open.values():
            file.discard()
        self._forget()

    def _forget(self) -> None:
        self._open.clear()
        self._made, self._items = [], []

    def _file(self, values: tuple[Any, ...]) -> ParquetFile:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= self._options.max_open_files:
                self._finish(next(iter(self._open)))
            name = f"{self._context.stem}-{len(self._made):05d}.parquet"
            file = ParquetFile(self._io, f"{self.folder}/{name}", self._schema, self._metadata)
            self._open[values] = file
            self._made.append(file)
        self._open.move_to_end(values)
        return file

    def _finish(self, values: tuple[Any, ...]) -> None:
        item = self._open[values].finish()
        del self._open[values]
        if values:
            item["partition"] = files.partition_values(values, self._spec.spec_id, self._metadata)
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])

    def _bound_buffers(self) -> None:
        """Encode the largest buffers until all together are small enough."""
        while sum(file.buffered_bytes for file in self._open.values()) > BUFFERED_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.buffered_bytes).encode()


class IcebergWriter(SinkWriter):
    """Appends to one table."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._table: TableWriter | None = None

    def open(self) -> None:
        table = catalog.recent_table(self._options, self._options.table)
        known = set(table.metadata.schema().column_names)
        if not known.issuperset(self._context.schema.names):  # it may have got columns since
            table = catalog.recent_table(self._options, self._options.table, fresh=True)
        self._table = TableWriter(self._options, table, self._context)

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._table is not None, "opened first"
        self._table.write(batch)

    def flush(self, end_of_input: bool) -> None:
        if self._table is not None:
            self._table.flush()

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        return None if self._table is None else self._table.committable()

    def abort_prepare(self) -> None:
        if self._table is not None:
            self._table.discard()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
