"""The writer of the `hive` sink: brings rows to the table's columns and stages files below the table's directory.

Runs in an executor task. Asks the metastore once, when it is opened, where the table is and what it holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hive.metastore import connected
from sinkruntime.sinks.hive.options import Format, Options
from sinkruntime.sinks.hive.table import HiveTable, of_table, read
from sinkruntime.storage.columnar import OpenFormat, OrcWriter, ParquetWriter
from sinkruntime.storage.writer import FileWriter, Layout
from sinkruntime.tables import schemas


class HiveWriter(SinkWriter):
    """Stages files of one task."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._staging: tuple[HiveTable, FileWriter] | None = None

    def open(self) -> None:
        with connected(self._options.metastore) as metastore:
            table = read(metastore, self._options)
        storage = table.place.unopened(self._options, self._context.identity)
        context = replace(self._context, schema=table.rows)
        files = FileWriter(self._layout(table), storage, context)
        self._staging = table, files
        with of_table():
            files.open()

    def _layout(self, table: HiveTable) -> Layout:
        options = self._options
        codec = options.codec(table.format)
        lifetime = options.storage.upload_lifetime
        return Layout(
            open_format=opener(table.format, codec),
            extension=f".{table.format}" if codec == "none" else f".{codec}.{table.format}",
            partition_by=table.place.keys,
            target_file_bytes=options.target_file_size.bytes,
            max_open_files=options.max_open_files,
            life_seconds=lifetime.seconds if lifetime and table.place.on_s3 else None,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._staging is not None, "open comes first"
        table, files = self._staging
        named = batch.rename_columns([name.lower() for name in batch.schema.names])
        files.write(schemas.conform(named, table.rows))

    def flush(self, end_of_input: bool) -> None:
        if self._staging is not None:
            self._staging[1].flush(end_of_input)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        assert self._staging is not None, "open comes first"
        table, files = self._staging
        staged = files.prepare_commit(checkpoint)
        return None if staged is None else {**staged, "table": table.place.stamp}

    def remaining_life_seconds(self) -> float | None:
        return self._staging[1].remaining_life_seconds() if self._staging else None

    def abort_prepare(self) -> None:
        if self._staging is not None:
            self._staging[1].abort_prepare()

    def close(self) -> None:
        if self._staging is not None:
            self._staging[1].close()


class WallClockOrcWriter(OrcWriter):
    """ORC as every Hive reads it: a timestamp is the wall clock in UTC, for Hive 3 knows no instants in ORC.

    Arrow writes fractions of seconds before 1970 as ORC's Java readers do not take them (negative nanoseconds), so
    such a value is refused: it would make the whole file unreadable.
    """

    def __init__(self, stream: Any, schema: pa.Schema, codec: str) -> None:
        self._stored = pa.schema([field.with_type(without_zone(field.type)) for field in schema])
        super().__init__(stream, self._stored, codec)

    def write(self, table: pa.Table) -> None:
        for name in table.column_names:
            if any(_has_early_fraction(chunk) for chunk in table.column(name).chunks):
                message = f"column `{name}`: ORC cannot keep a fraction of a second before 1970; use `format: parquet`"
                raise TargetError("ValueOutOfRange", message, path="options.format")
        super().write(table.cast(self._stored))


def opener(kind: Format, codec: str) -> OpenFormat:
    """Writers of a table's format; Parquet with 96-bit timestamps, as Spark writes them for Hive."""
    if kind is Format.ORC:
        return lambda stream, schema: WallClockOrcWriter(stream, schema, codec)
    return lambda stream, schema: ParquetWriter(stream, schema, codec, int96=True)


def _has_early_fraction(array: Any) -> bool:
    """Whether there is a timestamp before 1970 with a fraction of a second, at any depth."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        micros = array.drop_null().cast(pa.int64())
        whole = pc.multiply(pc.divide(micros, 1_000_000), 1_000_000)
        return bool(pc.any(pc.and_(pc.less(micros, pa.scalar(0)), pc.not_equal(micros, whole))).as_py())
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        parts = array.flatten()
        return any(map(_has_early_fraction, parts if pa.types.is_struct(kind) else [parts]))
    if pa.types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()  # `keys` and `items` know no slices
        return any(_has_early_fraction(part.slice(start, end - start)) for part in (array.keys, array.items))
    return False


def without_zone(kind: pa.DataType) -> pa.DataType:
    """The type with timestamps as wall clocks, at any depth."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us")
    if types.is_list(kind):
        return pa.list_(without_zone(kind.value_type))
    if types.is_map(kind):
        return pa.map_(without_zone(kind.key_type), without_zone(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(without_zone(field.type)) for field in kind])
    return kind
