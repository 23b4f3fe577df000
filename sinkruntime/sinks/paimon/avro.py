"""Avro container files in memory, as manifests are: written with deflate, read with every codec that Paimon uses.

Used by `manifests`. Paimon's own writers take zstandard, for which fastavro needs another library; pyarrow has it.
fastavro is imported when a file is read or written.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from sinkruntime.errors import ConfigurationError, TargetError

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16


def write(schema: dict[str, Any], records: Iterable[dict[str, Any]]) -> bytes:
    """A file of these records."""
    fastavro = load_fastavro()
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), records, codec="deflate")
    return stream.getvalue()


def read(data: bytes, name: str) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The schema that a file was written with, and its records. Raises `TargetError` for a damaged file."""
    stream = io.BytesIO(data)
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise _damaged(name, "it does not begin as Avro files do")
    metadata = {key: value for key, value in _metadata(stream)}  # noqa: C416  (pairs of a generator)
    schema = json.loads(metadata["avro.schema"])
    codec = metadata.get("avro.codec", b"null").decode()
    stream.seek(_SYNC_BYTES, io.SEEK_CUR)
    return schema, _records(stream, schema, codec, name)


def load_fastavro() -> Any:
    """The library; raises `ConfigurationError` where it is not installed."""
    try:
        import fastavro
    except ModuleNotFoundError as error:
        message, advice = "Paimon's manifests need fastavro", "pip install 'sinkjob[paimon]'"
        raise ConfigurationError("MissingModule", message, path="type", advice=advice) from error
    return fastavro


def _records(stream: io.BytesIO, schema: dict[str, Any], codec: str, name: str) -> Iterator[dict[str, Any]]:
    fastavro = load_fastavro()
    parsed = fastavro.parse_schema(schema)
    end = len(stream.getbuffer())
    while stream.tell() < end:
        count, size = _long(stream), _long(stream)
        block = io.BytesIO(_unpacked(stream.read(size), codec, name))
        stream.seek(_SYNC_BYTES, io.SEEK_CUR)
        for _ in range(count):
            yield fastavro.schemaless_reader(block, parsed)


def _unpacked(data: bytes, codec: str, name: str) -> bytes:
    if codec == "null":
        return data
    if codec == "deflate":
        return zlib.decompress(data, -zlib.MAX_WBITS)
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read())
    raise _damaged(name, f"its codec {codec} is not known")


def _metadata(stream: io.BytesIO) -> Iterator[tuple[str, bytes]]:
    while count := _long(stream):
        if count < 0:
            _long(stream)  # the size of the block, of which we read everything
        for _ in range(abs(count)):
            key = stream.read(_long(stream)).decode()
            yield key, stream.read(_long(stream))


def _long(stream: io.BytesIO) -> int:
    """A number in Avro's zigzag form."""
    value, shift = 0, 0
    while shift < 70:
        byte = stream.read(1)
        if not byte:
            return 0
        value |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            break
        shift += 7
    return value >> 1 ^ -(value & 1)


def _damaged(name: str, why: str) -> TargetError:
    return TargetError("TableDamaged", f"{name}: {why}", path="options.table")
