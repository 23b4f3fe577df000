"""Paimon's binary rows: how partitions, keys and statistics stand in manifests, and what bucket hashes are made of.

A row is a header (one byte for the kind of change, then a bit for each null), eight bytes per field, and what did not
fit there; a manifest puts the number of fields before it. Used by the writer, `manifests` and `buckets`. Pure.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.sinks.paimon.types import Field, limits

EMPTY = struct.pack(">i", 0) + bytes(8)
#: Values of up to so many bytes stand in the field itself.
INLINE_BYTES_MAX = 7
#: Decimals of up to so many digits are whole numbers of eight bytes.
COMPACT_DIGITS_MAX = 18
_COMPACT_TIMESTAMP = 3
_DECIMAL_BYTES = 16
_EPOCH_DAY = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  (without a zone)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def header_bytes(fields: int) -> int:
    """The size of the header of a row."""
    return (fields + 63 + 8) // 64 * 8


def encode(values: Sequence[Any], fields: Sequence[Field]) -> bytes:
    """A row as manifests hold it. Nested values are never encoded: pass None."""
    header = header_bytes(len(fields))
    fixed = bytearray(header + 8 * len(fields))
    rest = bytearray()
    for index, (value, field) in enumerate(zip(values, fields, strict=True)):
        at = header + 8 * index
        if value is None:
            bit = index + 8
            fixed[bit // 8] |= 1 << bit % 8
            continue
        place, more = _encode(value, field, len(fixed) + len(rest))
        fixed[at : at + 8] = place
        rest += more
    return struct.pack(">i", len(fields)) + bytes(fixed) + bytes(rest)


def decode(data: bytes, fields: Sequence[Field]) -> list[Any]:
    """The values of a row of plain types, as `encode` takes them."""
    row = data[4:]
    header = header_bytes(len(fields))
    values: list[Any] = []
    for index, field in enumerate(fields):
        bit = index + 8
        if row[bit // 8] >> bit % 8 & 1:
            values.append(None)
        else:
            values.append(_decode(row, row[header + 8 * index : header + 8 * index + 8], field))
    return values


def micros(value: datetime.datetime) -> int:
    """Microseconds since 1970."""
    return (value - (_EPOCH_UTC if value.tzinfo else _EPOCH)) // _MICROSECOND


def _encode(value: Any, field: Field, end: int) -> tuple[bytes, bytes]:
    """The eight bytes of a field, and what is added at the row's `end`."""
    kind = field.arrow
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        data = value.encode() if isinstance(value, str) else bytes(value)
        if len(data) <= INLINE_BYTES_MAX:
            return data.ljust(INLINE_BYTES_MAX, b"\0") + bytes([0x80 | len(data)]), b""
        return _pointer(end, len(data)), data + bytes(-len(data) % 8)
    if types.is_decimal(kind):
        precision, scale = limits(field)
        unscaled = int(decimal.Decimal(value).scaleb(scale, decimal.Context(prec=80)))
        if precision <= COMPACT_DIGITS_MAX:
            return struct.pack("<q", unscaled), b""
        data = unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)
        return _pointer(end, len(data)), data.ljust(_DECIMAL_BYTES, b"\0")
    if types.is_timestamp(kind):
        whole, rest = divmod(micros(value), 1000)
        if limits(field)[0] <= _COMPACT_TIMESTAMP:
            return struct.pack("<q", whole), b""
        return _pointer(end, rest * 1000), struct.pack("<q", whole)
    if types.is_date(kind):
        value = (value - _EPOCH_DAY).days
    code = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "date32[day]": "i", "float": "f", "double": "d"}
    return struct.pack(f"<{code.get(str(kind), 'q')}", value).ljust(8, b"\0"), b""


def _decode(row: bytes, place: bytes, field: Field) -> Any:
    kind = field.arrow
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        data = place[: place[7] & 0x7F] if place[7] & 0x80 else _at(row, place)
        return data.decode() if types.is_string(kind) else data
    if types.is_decimal(kind):
        precision, scale = limits(field)
        compact = precision <= COMPACT_DIGITS_MAX
        unscaled = struct.unpack("<q", place)[0] if compact else int.from_bytes(_at(row, place), "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=80))
    if types.is_timestamp(kind):
        return _decode_timestamp(row, place, field)
    if types.is_date(kind):
        return _EPOCH_DAY + datetime.timedelta(days=struct.unpack("<i", place[:4])[0])
    code = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "float": "f", "double": "d"}.get(str(kind), "q")
    return struct.unpack_from(f"<{code}", place)[0]


def _decode_timestamp(row: bytes, place: bytes, field: Field) -> datetime.datetime:
    nanos = 0
    if limits(field)[0] <= _COMPACT_TIMESTAMP:
        (millis,) = struct.unpack("<q", place)
    else:
        nanos, offset = struct.unpack("<II", place)
        (millis,) = struct.unpack_from("<q", row, offset)
    start = _EPOCH_UTC if isinstance(field.arrow, pa.TimestampType) and field.arrow.tz else _EPOCH
    return start + datetime.timedelta(milliseconds=millis, microseconds=nanos // 1000)


def _pointer(offset: int, length: int) -> bytes:
    return struct.pack("<q", offset << 32 | length)


def _at(row: bytes, place: bytes) -> bytes:
    length, offset = struct.unpack("<II", place)
    return row[offset : offset + length]
