"""Arrow tables into the bytes of a file: the interface of all formats, and the columnar ones, Parquet and ORC.

Used by the rolling writer, which opens one per file and closes it. Never sees a path or a storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

#: Rows are gathered into groups of this size before they are encoded: many small Arrow batches make poor files.
GROUP_ROWS_MAX = 1_000_000
GROUP_BYTES_MAX = 64 * 1024**2


class FormatWriter(ABC):
    """Encodes tables into one file. `grouped`: each `write` makes a row group, so it wants large tables."""

    grouped = False

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Encode a table of the file's schema."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file. The stream stays open."""


class ParquetWriter(FormatWriter):
    """Apache Parquet, readable by Spark with its default settings. `codec`: `snappy`, `zstd`, `gzip`, `lz4`, `none`.
    `int96`: timestamps as older Hive needs them."""

    grouped = True

    def __init__(self, stream: Any, schema: pa.Schema, codec: Any, *, int96: bool = False) -> None:
        import pyarrow.parquet

        self._writer = pyarrow.parquet.ParquetWriter(
            stream, schema, compression=codec, version="2.6", use_deprecated_int96_timestamps=int96,
            coerce_timestamps=None if int96 else "us",
        )  # fmt: skip

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=GROUP_ROWS_MAX)

    def close(self) -> None:
        self._writer.close()


class OrcWriter(FormatWriter):
    """Apache ORC. `codec`: `zstd`, `snappy`, `zlib`, `lz4`, `none`."""

    grouped = True

    def __init__(self, stream: Any, schema: pa.Schema, codec: Any) -> None:
        import pyarrow.orc

        self._schema = schema
        compression: Any = "uncompressed" if codec == "none" else codec
        self._writer = pyarrow.orc.ORCWriter(stream, compression=compression)

    def write(self, table: pa.Table) -> None:
        self._writer.write(table)

    def close(self) -> None:
        self._writer.close()


#: Makes a `FormatWriter` for a stream and the schema of the file's columns.
OpenFormat = Callable[[Any, pa.Schema], FormatWriter]
