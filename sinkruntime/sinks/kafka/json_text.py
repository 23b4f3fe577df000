"""Rows as JSON texts, column by column: Arrow's own kernels write them, many rows at a time.

Used by `encode`. The same values as `sinkruntime.json_rows` has them: decimals are strings, binary is base64, NaN and
infinities are strings, null is written. Columns of types that Arrow cannot print so (nested ones, binary, times) are
written value by value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from sinkruntime.json_rows import json_value

#: The stubs know no function here that takes both columns and single values.
pc: Any = pyarrow.compute

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_CONTROL = r"[\x00-\x1f]"
_NON_FINITE = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def json_objects(columns: Sequence[pa.Array[Any]], names: Sequence[str]) -> pa.Array[Any]:
    """One JSON object per row, as a string array."""
    if not columns:
        raise ValueError("an object needs a column")
    parts: list[Any] = []
    for number, (column, name) in enumerate(zip(columns, names, strict=True)):
        lead = "{" if number == 0 else ","
        parts += [pa.scalar(f"{lead}{_ENCODE(name)}:"), _values(column)]
    joined: pa.Array[Any] = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return joined


def _values(column: pa.Array[Any]) -> pa.Array[Any]:
    """A JSON value per row; no nulls."""
    text = _text(column)
    filled: pa.Array[Any] = pc.fill_null(text, pa.scalar("null")) if text.null_count else text
    return filled


def _text(column: pa.Array[Any]) -> pa.Array[Any]:
    kind = column.type
    types = pa.types
    if types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if types.is_integer(kind) or types.is_boolean(kind):
        return column.cast(pa.string())
    if types.is_string(kind) or types.is_large_string(kind):
        return _strings(column)
    if types.is_floating(kind):
        return _floats(column)
    if types.is_date32(kind) or (types.is_timestamp(kind) and kind.unit == "us"):
        return _quoted(_moments(column))
    return _one_by_one(column)


def _strings(column: pa.Array[Any]) -> pa.Array[Any]:
    column = column.cast(pa.string())
    column.validate(full=True)  # Spark may hand over text that is no UTF-8, which no JSON can hold
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
        return _one_by_one(column)
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
        if pc.any(pc.match_substring(column, plain)).as_py():
            column = pc.replace_substring(column, plain, escaped)
    return _quoted(column)


def _quoted(column: pa.Array[Any]) -> pa.Array[Any]:
    quote = pa.scalar('"')
    joined: pa.Array[Any] = pc.binary_join_element_wise(quote, column, quote, "")
    return joined


def _floats(column: pa.Array[Any]) -> pa.Array[Any]:
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return text
    for found, meant in _NON_FINITE.items():
        text = pc.if_else(pc.equal(text, found), meant, text)
    return text


def _moments(column: pa.Array[Any]) -> pa.Array[Any]:
    """ISO 8601, with microseconds where there are any and the zone's offset, as Python writes it."""
    if pa.types.is_date32(column.type):
        return _in_range(column.cast(pa.string()))
    zone = column.type.tz
    if zone not in (None, "UTC"):
        column = column.cast(pa.timestamp("us", "UTC"))
    text = pc.replace_substring(_in_range(column.cast(pa.timestamp("us")).cast(pa.string())), " ", "T")
    text = pc.replace_substring(text, ".000000", "")
    if zone is not None:
        text = pc.binary_join_element_wise(text, pa.scalar("+00:00"), "")
    told: pa.Array[Any] = text
    return told


def _in_range(text: pa.Array[Any]) -> pa.Array[Any]:
    """Arrow prints a time that is too far away as a remark; raises ValueError for one."""
    if pc.any(pc.starts_with(text, "<")).as_py():
        raise ValueError("a date or time is out of the range that can be written")
    return text


def _one_by_one(column: pa.Array[Any]) -> pa.Array[Any]:
    kind = column.type
    values = (json_value(value, kind) for value in column.to_pylist())
    return pa.array([None if value is None else _ENCODE(value) for value in values], pa.string())
