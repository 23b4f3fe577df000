"""One Parquet file of a Hudi table being written: Hudi's columns before the rows' own.

Called by both writers. How rows become row groups is the matter of `storage.writer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.schemas import META
from sinkruntime.storage.base import Output
from sinkruntime.storage.columnar import ParquetWriter
from sinkruntime.storage.writer import OpenFile

pc: Any = pyarrow.compute  # its stubs know no mixed arguments


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


class DataFile(OpenFile):
    """A file that is staged; it ends in `finish`, or in its output's `discard`."""

    def __init__(self, output: Output, name: str, schema: pa.Schema, options: Options) -> None:
        codec = options.compression.value
        super().__init__(
            output, schema, lambda stream, rows: ParquetWriter(stream, rows, codec), options.target_file_size.bytes
        )
        self.name = name


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
