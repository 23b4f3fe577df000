"""Avro: an encoder of object container files over fastavro, which is imported when one is opened.

Used by `formats`. Never sees a path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from sinkruntime.avro_schemas import avro_schema, load_fastavro


class AvroEncoder:
    """Writes rows as one Avro object container file."""

    def __init__(self, stream: Any, schema: pa.Schema, codec: str) -> None:
        fastavro = load_fastavro()
        parsed = fastavro.parse_schema(avro_schema(schema))
        self._writer = fastavro.write.Writer(stream, parsed, codec)

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._writer.write(row)

    def close(self) -> None:
        self._writer.flush()
