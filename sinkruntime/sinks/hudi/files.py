"""One Parquet file of a Hudi table being written: Hudi's columns before the rows' own.

Called by both writers. Rows are gathered until they make a row group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.schemas import META
from sinkruntime.storage.base import Item, Output

pc: Any = pyarrow.compute  # its stubs know no mixed arguments

GROUP_ROWS_MAX = 1_000_000
GROUP_BYTES_MAX = 64 * 1024**2


@dataclass(slots=True)
class Sequence:
    """Numbers rows within a commit: `<instant>_<subtask>_<number>`."""

    instant: str
    subtask: int
    used: int = 0

    def take(self, rows: int) -> Any:
        """The next numbers."""
        numbers = pa.array(range(self.used, self.used + rows), pa.int64()).cast(pa.string())
        self.used += rows
        return pc.binary_join_element_wise(f"{self.instant}_{self.subtask}_", numbers, "")


class DataFile:
    """A file that is staged; it ends in `finish`, or in its output's `discard`."""

    def __init__(self, output: Output, name: str, schema: pa.Schema, options: Options) -> None:
        self.output = output
        self.name = name
        self.rows = 0
        self.buffered_bytes = 0
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._group_bytes_max = min(GROUP_BYTES_MAX, options.target_file_size.bytes)
        stream: Any = output.stream
        codec: Any = options.compression.value
        self._writer = pyarrow.parquet.ParquetWriter(
            stream, schema, compression=codec, version="2.6", coerce_timestamps="us"
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the file's schema."""
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self.buffered_bytes >= self._group_bytes_max or self._buffered_rows >= GROUP_ROWS_MAX:
            self.encode()

    def encode(self) -> None:
        """Encode what is gathered."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=GROUP_ROWS_MAX)
            self.output.stream.check()

    def finish(self) -> Item:
        """What the committer needs to know of it."""
        self.encode()
        self._writer.close()
        self.output.stream.check()
        return {**self.output.finish(), "rows": self.rows}


def with_meta(
    rows: pa.RecordBatch, schema: pa.Schema, sequence: Sequence, keys: pa.Array[Any] | None, partition: str
) -> pa.RecordBatch:
    """The rows in the file's schema, without the file's name yet. No keys: each row's number is its key."""
    count = rows.num_rows
    numbers = sequence.take(count)
    meta = [
        pa.repeat(sequence.instant, count),
        numbers,
        numbers if keys is None else keys,
        pa.repeat(partition, count),
        pa.repeat("", count),
    ]
    own = [rows.column(field.name).cast(field.type) for field in list(schema)[len(META) :]]
    return pa.RecordBatch.from_arrays([*meta, *own], schema=schema)


def named(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The batch with its file's name in Hudi's column for it."""
    at = META.index("_hoodie_file_name")
    return batch.set_column(at, batch.schema.field(at), pa.repeat(name, batch.num_rows))
