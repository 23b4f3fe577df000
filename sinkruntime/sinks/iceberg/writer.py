"""The writer of the `iceberg` sink: rows to Parquet files with field ids, by partition, a size at which files roll.

Runs in an executor task. It reads the table's schema, partitioning and properties, and never writes metadata: the
committables carry what the committer needs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, columns, files, naming, partitions
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.parquet import ParquetFile, Part
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

#: What all open files of a task may hold unencoded.
BUFFERED_BYTES_MAX = 256 * 1024**2
DEFAULT_FILE_BYTES = 512 * 1024**2


class TableWriter:
    """Stages files of one table for one task."""

    def __init__(self, options: Options, table: Table, context: WriterContext, rows: pa.Schema) -> None:
        self._options = options
        self._context = context
        self._metadata = table.metadata
        self._io = table.io
        self._ice = table.metadata.schema()
        self._spec = table.metadata.spec()
        self._delete_spec = delete_spec(table.metadata)
        self.schema = columns.arrow_schema(self._ice)
        schemas.check(rows, self.schema)
        check_partitions(options, table)
        self._key_ids = [self._ice.find_field(name).field_id for name in options.key]
        self._keys = pa.schema([self.schema.field(name) for name in options.key])
        at = context.lineage
        data = table.location_provider().data_path
        self.folder = naming.stage_folder(data, context.identity, at.checkpoint, at.epoch)
        self._open: OrderedDict[tuple[Any, ...], ParquetFile] = OrderedDict()
        self._made: list[ParquetFile] = []
        self._items: list[files.Item] = []
        self._file_bytes = file_bytes(options, table)

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the table."""
        self._put(files.DATA, schemas.conform(batch, self.schema))

    def delete(self, batch: pa.RecordBatch) -> None:
        """Rows of equal key are deleted, of all snapshots before this one."""
        keys = schemas.conform(batch.select(self._keys.names), self._keys)
        self._put(files.EQUALITY_DELETES, keys)

    def _put(self, content: int, batch: pa.RecordBatch) -> None:
        for values, part in partitions.split(batch, self._spec_of(content), self._ice):
            file = self._file((content, *values), batch.schema)
            file.write(part)
            if file.size_bytes >= self._file_bytes:
                self._finish((content, *values))
        self._bound_buffers()

    def flush(self) -> None:
        for values in list(self._open):
            self._finish(values)

    def open_files(self) -> int:
        return len(self._open)

    def buffered_bytes(self) -> int:
        """What its open files hold unencoded."""
        return sum(file.buffered_bytes for file in self._open.values())

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

    def _file(self, key: tuple[Any, ...], schema: pa.Schema) -> ParquetFile:
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= self._options.max_open_files:
                self._finish(next(iter(self._open)))
            name = f"{self._context.stem}-{len(self._made):05d}.parquet"
            is_data = key[0] == files.DATA
            part = Part(self._ice if is_data else self._ice.select(*schema.names), is_data)
            file = ParquetFile(self._io, f"{self.folder}/{name}", schema, self._metadata, part)
            self._open[key] = file
            self._made.append(file)
        self._open.move_to_end(key)
        return file

    def _finish(self, key: tuple[Any, ...]) -> None:
        item = self._open[key].finish()
        del self._open[key]
        content, *values = key
        spec = self._spec_of(content).spec_id
        if content != files.DATA:
            item["content"], item["equality"] = content, self._key_ids
        if spec != self._spec.spec_id:
            item["spec"] = spec
        if values:
            item["partition"] = files.partition_values(values, spec, self._metadata)
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])

    def _spec_of(self, content: int) -> PartitionSpec:
        return self._spec if content == files.DATA else self._delete_spec

    def _bound_buffers(self) -> None:
        """Encode the largest buffers until all together are small enough."""
        while self.buffered_bytes() > BUFFERED_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.buffered_bytes).encode()


def file_bytes(options: Options, table: Table) -> int:
    """The size at which a file is closed."""
    if options.target_file_size:
        return options.target_file_size.bytes
    return int(table.metadata.properties.get("write.target-file-size-bytes", DEFAULT_FILE_BYTES))


def delete_spec(metadata: TableMetadata) -> PartitionSpec:
    """How deletes are partitioned: as rows are; or not at all, where former rows are partitioned otherwise and the
    table knows such a spec: then they reach all rows."""
    whole = [spec for spec in metadata.partition_specs if not spec.fields]
    return whole[0] if whole and len(metadata.partition_specs) > 1 else metadata.spec()


def check_partitions(options: Options, table: Table) -> None:
    """Deletes reach one partition only, so rows of one key must not be able to lie in two."""
    if not options.keyed:
        return
    metadata = table.metadata
    if len(metadata.partition_specs) > 1 and delete_spec(metadata).fields:
        message = "the table was partitioned otherwise before: deletes would not reach its older rows"
        advice = "write its rows into a new table"
        raise TargetError("UnsupportedTableFeature", message, path="options.table", advice=advice)
    for field in metadata.spec().fields:
        source = metadata.schema().find_column_name(field.source_id)
        if source not in options.key and str(field.transform) != "void":
            message = f"the table is partitioned by `{source}`, which is not in `key`"
            advice = "add it to `key`, or partition the table by columns of the key"
            raise TargetError("PartitionOutsideKey", message, path="options.key", advice=advice)


class IcebergWriter(SinkWriter):
    """Appends to one table."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._table: TableWriter | None = None

    def open(self) -> None:
        self._table = open_table(self._options, self._context, self._context.schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def flush(self, end_of_input: bool) -> None:
        self._writer.flush()

    def open_files(self) -> int:
        """Of a routed sink: what this table holds of all that its task may hold open; `spill` closes them early."""
        return self._writer.open_files()

    def buffered_bytes(self) -> int:
        return self._writer.buffered_bytes()

    def spill(self) -> None:
        self._writer.flush()

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        return self._writer.committable()

    def abort_prepare(self) -> None:
        if self._table is not None:
            self._table.discard()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    @property
    def _writer(self) -> TableWriter:
        assert self._table is not None, "opened first"
        return self._table


def open_table(options: Options, context: WriterContext, rows: pa.Schema) -> TableWriter:
    """A writer of the table for such rows; a table that does not fit any more is looked at anew."""
    try:
        return TableWriter(options, catalog.recent_table(options, options.table), context, rows)
    except TargetError:
        return TableWriter(options, catalog.recent_table(options, options.table, fresh=True), context, rows)
