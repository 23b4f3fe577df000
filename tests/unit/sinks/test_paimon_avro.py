"""Avro files of Paimon's writers are read, whatever their codec; damaged ones are named."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import avro

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}],
}
RECORDS = [{"a": number, "b": None if number % 3 else f"text {number}"} for number in range(-500, 5_000)]


def written(codec: str) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA, RECORDS, codec=codec, sync_interval=500)
    return stream.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_files_are_read_whatever_their_codec(codec: str) -> None:
    schema, records = avro.read(written(codec), "m")
    assert list(records) == RECORDS
    assert [field["name"] for field in schema["fields"]] == ["a", "b"]


def test_zstandard_is_read_as_paimon_writes_it() -> None:
    plain = written("null")
    assert avro._unpacked(pa.compress(plain, codec="zstd", asbytes=True), "zstandard", "m") == plain


def test_what_is_written_is_read_by_others() -> None:
    assert list(fastavro.reader(io.BytesIO(avro.write(SCHEMA, RECORDS)))) == RECORDS


def test_damaged_files_are_named() -> None:
    with pytest.raises(TargetError, match="TableDamaged: m: it does not begin as Avro files do"):
        avro.read(b"junk", "m")
    with pytest.raises(TargetError, match="TableDamaged: m: its codec snappy is not known"):
        list(avro.read(written("null").replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x0csnappy"), "m")[1])
