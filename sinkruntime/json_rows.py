"""Rows as JSON: one text per row, exact where JSON has no type of its own.

Sinks and dead letters use it. Decimals are strings, binary is base64, NaN and infinities are strings, times are
ISO 8601. It goes row by row: a sink for which that is too slow has an encoder of its own.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa


def json_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> list[str]:
    """A JSON object per row, its fields in the order of `schema`, which is that of `rows`."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    values = rows.to_pylist()
    if not all(_is_plain(field.type) for field in schema):
        values = [{field.name: json_value(row[field.name], field.type) for field in schema} for row in values]
    return [encode(row) for row in values]


def told_rows(rows: pa.RecordBatch) -> list[str]:
    """As `json_rows` of batches that hold what JSON or Python cannot: such values are told as text, for people."""
    texts = []
    for index in range(rows.num_rows):
        row = rows.slice(index, 1)
        told = {field.name: _told(column, field.type) for field, column in zip(row.schema, row.columns, strict=True)}
        texts.append(json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    return texts


def _told(one: pa.Array[Any], kind: pa.DataType) -> Any:
    """The only value of a column: a text that is no UTF-8 with its bytes as `\\xff`, a far time as Arrow prints it."""
    try:
        return json_value(one[0].as_py(), kind)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")
    except (pa.ArrowException, ValueError, OverflowError) as error:
        plain = one.cast(pa.timestamp(kind.unit)) if isinstance(kind, pa.TimestampType) else one
        return str(plain.cast(pa.string())[0]) if pa.types.is_temporal(kind) else str(error)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Python's own JSON encoding of its values is right."""
    types = pa.types
    return types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind) or types.is_null(kind)


def json_value(value: Any, kind: pa.DataType) -> Any:
    """A value of an Arrow type as it stands in a JSON file."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: json_value(value[field.name], field.type) for field in kind}
    if isinstance(kind, pa.MapType):
        return {_json_key(key): json_value(item, kind.item_type) for key, item in value}
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return [json_value(item, kind.value_type) for item in value]
    return _json_scalar(value)


def _json_scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value


def _json_key(value: Any) -> str:
    scalar = _json_scalar(value)
    return scalar if isinstance(scalar, str) else json.dumps(scalar)
