"""One Parquet file of a table being written: rows are gathered into row groups, statistics kept from its footer.

Used by the writers of data and of deletes. It knows a location and a schema, and nothing of tables' metadata files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.sinks.iceberg.files import Item, item_of
from sinkruntime.sinks.iceberg.sorting import ordered

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

#: Rows are gathered into groups of this size before they are encoded: many small Arrow batches make poor files.
GROUP_ROWS_MAX = 1_000_000
GROUP_BYTES_MAX = 64 * 1024**2
#: Of a text whose cut end is this, pyiceberg makes an upper bound that is none.
BEFORE_SURROGATES = "\ud7ff"
_CODECS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, slots=True)
class Part:
    """The table's columns that a file has, and whether its rows get the table's sort order."""

    schema: Schema
    is_sorted: bool


class ParquetFile:
    """Opened with the first group; it ends in `finish` or `discard`."""

    def __init__(self, io: Any, location: str, schema: pa.Schema, metadata: TableMetadata, part: Part) -> None:
        self._output = io.new_output(location)
        self._io = io
        self.location = location
        self._schema = schema
        self._metadata = metadata
        self._ice = part.schema
        self._order = metadata.sort_order() if part.is_sorted else None
        self._groups = 0
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self.buffered_bytes = 0
        self._stream: Any = None
        self._writer: Any = None

    @property
    def size_bytes(self) -> int:
        """What was encoded so far."""
        return 0 if self._stream is None else int(self._stream.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self.buffered_bytes >= GROUP_BYTES_MAX or self._buffered_rows >= GROUP_ROWS_MAX:
            self.encode()

    def encode(self) -> None:
        """Encode what is gathered, as one row group."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
        if self._order is not None and self._order.fields:
            table = ordered(table, self._order, self._ice)
        if self._writer is None:
            self._begin()
        self._groups += 1
        self._writer.write_table(table, row_group_size=GROUP_ROWS_MAX)

    def finish(self) -> Item:
        """Close it; how it is committed."""
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata, parquet_path_to_id_mapping

        self.encode()
        self._writer.close()
        size_bytes = self.size_bytes
        self._stream.close()
        footer, ids = self._writer.writer.metadata, parquet_path_to_id_mapping(self._ice)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=self._plan({ids[path] for path in _without_bounds(footer)}),
            parquet_column_mapping=ids,
        )
        item = item_of(self.location.rpartition("/")[2], size_bytes, statistics.to_serialized_dict())
        if self._order is not None and self._order.fields and self._groups == 1:
            item["order"] = self._order.order_id  # each group is sorted; the file, only if it has one
        return item

    def _plan(self, counted: set[int]) -> dict[int, Any]:
        """What is told of each column, as the table wants it; of these, no bounds."""
        from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, compute_statistics_plan

        plan: dict[int, Any] = compute_statistics_plan(self._ice, self._metadata.properties)
        for number in counted:
            if plan[number].mode.type is not MetricModeTypes.NONE:
                plan[number] = replace(plan[number], mode=MetricsMode(MetricModeTypes.COUNTS))
        return plan

    def discard(self) -> None:
        """Take it away, finished or not. Repeatable."""
        self._batches = []
        if self._stream is None:
            return
        # A stream that fails to close has been told already, or is of no interest any more.
        with contextlib.suppress(OSError, pa.ArrowInvalid):
            self._stream.close()
        with contextlib.suppress(FileNotFoundError):
            self._io.delete(self.location)

    def _begin(self) -> None:
        import pyarrow.parquet

        properties = self._metadata.properties
        codec: Any = properties.get("write.parquet.compression-codec", "zstd").lower()
        level = properties.get("write.parquet.compression-level")
        self._stream = self._output.create(overwrite=True)
        self._writer = pyarrow.parquet.ParquetWriter(
            self._stream,
            self._schema,
            compression=codec if codec in _CODECS else "none",
            compression_level=None if level is None else int(level),
            store_decimal_as_integer=True,
            version="2.6",
        )


def _without_bounds(footer: Any) -> Iterator[str]:
    """Columns of which pyiceberg would tell wrong bounds, or would fail to tell them."""
    for position in range(footer.num_columns):
        column = footer.schema.column(position)
        found = [footer.row_group(index).column(position).statistics for index in range(footer.num_row_groups)]
        filled = [part for part in found if part is not None and part.num_values]
        # Values beyond 4 KiB: Parquet gives their row group no bounds, and pyiceberg takes those of the other groups
        # for the file's. Of floats such a group has NaN only, which Iceberg's bounds never tell of.
        is_float = column.physical_type in ("FLOAT", "DOUBLE")
        if not (is_float or all(part.has_min_max for part in filled)) or not all(map(_can_be_told, filled)):
            yield column.path


def _can_be_told(part: Any) -> bool:
    """Whether Python has such dates, and pyiceberg finds a text that is greater when it cuts the largest one."""
    try:
        return not any(isinstance(value, str) and BEFORE_SURROGATES in value for value in (part.min, part.max))
    except (ValueError, OverflowError):
        return False
