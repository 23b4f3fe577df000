"""What turns Arrow tables into the bytes of a file, one class per format.

Used by the rolling writer, which opens one per file and closes it. Never sees a path or a storage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sinkruntime.avro_schemas import avro_problem
from sinkruntime.json_rows import json_rows
from sinkruntime.sinks.file.avro import AvroEncoder
from sinkruntime.sinks.file.options import Format, Options
from sinkruntime.storage.columnar import FormatWriter, OrcWriter, ParquetWriter


class AvroWriter(FormatWriter):
    """Apache Avro object container files."""

    def __init__(self, stream: Any, schema: pa.Schema, options: Options) -> None:
        self._encoder = AvroEncoder(stream, schema, _codec(options))

    def write(self, table: pa.Table) -> None:
        self._encoder.write(table.to_pylist())

    def close(self) -> None:
        self._encoder.close()


class _CompressedText(FormatWriter):
    """What the text formats share: the whole stream is compressed."""

    def __init__(self, stream: Any, schema: pa.Schema, options: Options) -> None:
        plain = pa.PythonFile(stream, mode="w")
        self._sink: Any = plain if options.codec == "none" else pa.CompressedOutputStream(plain, _codec(options))
        self._compressed = options.codec != "none"

    def close(self) -> None:
        if self._compressed:
            self._sink.close()  # writes the codec's end mark


#: What numbers, dates and times may hold: as a delimiter it would cut them, so that they are quoted, too.
_IN_VALUES = re.compile(r"[A-Za-z0-9 :.+-]")


class CsvWriter(_CompressedText):
    """CSV as RFC 4180 has it: quotes are doubled, null is empty, an empty string is `""`."""

    def __init__(self, stream: Any, schema: pa.Schema, options: Options) -> None:
        import pyarrow.csv

        super().__init__(stream, schema, options)
        layout = pyarrow.csv.WriteOptions(
            include_header=options.header,
            delimiter=options.delimiter,
            quoting_style="all_valid" if _IN_VALUES.fullmatch(options.delimiter) else "needed",
        )
        self._writer = pyarrow.csv.CSVWriter(self._sink, schema, write_options=layout)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()
        super().close()


class JsonWriter(_CompressedText):
    """One JSON object a line. Decimals are strings (exact), binary is base64, NaN and infinities are strings."""

    def __init__(self, stream: Any, schema: pa.Schema, options: Options) -> None:
        super().__init__(stream, schema, options)
        self._schema = schema

    def write(self, table: pa.Table) -> None:
        self._sink.write("".join(f"{row}\n" for row in json_rows(table, self._schema)).encode())


class TextWriter(_CompressedText):
    """The one string column, a line each; null is an empty line."""

    def write(self, table: pa.Table) -> None:
        lines = table.column(0).to_pylist()
        self._sink.write("".join(f"{line or ''}\n" for line in lines).encode())


_WRITERS: dict[Format, Callable[[Any, pa.Schema, Options], FormatWriter]] = {
    Format.PARQUET: lambda stream, schema, options: ParquetWriter(stream, schema, options.codec),
    Format.ORC: lambda stream, schema, options: OrcWriter(stream, schema, options.codec),
    Format.AVRO: AvroWriter,
    Format.CSV: CsvWriter,
    Format.JSON: JsonWriter,
    Format.TEXT: TextWriter,
}


def _codec(options: Options) -> Any:
    """The compression in the word of the format's library."""
    if options.codec == "none":
        return "null" if options.format is Format.AVRO else "none"
    return options.codec


def open_writer(stream: Any, schema: pa.Schema, options: Options) -> FormatWriter:
    """A writer of `options.format` into `stream`."""
    return _WRITERS[options.format](stream, schema, options)


def column_problem(options: Options, field: pa.Field[Any]) -> str:
    """Why the format cannot hold this column; "" when it can."""
    kind = field.type
    if options.format is Format.CSV and (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
        return f"csv cannot hold {kind}"
    if options.format is Format.TEXT and not pa.types.is_string(kind):
        return f"text needs one string column, this is {kind}"
    if options.format is Format.AVRO:
        return avro_problem(field)
    return ""
