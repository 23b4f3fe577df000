"""Rows as JSON texts, column by column: Arrow's own kernels write them, many rows at a time.

Used by `encode`. The same values as `sinkruntime.json_rows` has them: decimals are strings, binary is base64, NaN and
infinities are strings, null is written. Columns of types that Arrow cannot print so (nested ones, binary, times) are
written value by value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from sinkruntime.json_rows import json_value

#: The stubs know no function here that takes both columns and single values.
pc: Any = pyarrow.compute

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_CONTROL = r"[\x00-\x1f]"
#: `2026-01-31 12:00:00.000001`, as Arrow prints a time, and where the day ends.
_MOMENT_BYTES, _MOMENT_SPACE = 26, 10
_NON_FINITE = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def json_objects(columns: Sequence[pa.Array[Any]], names: Sequence[str]) -> pa.Array[Any]:
    """One JSON object per row, as a string array."""
    if not columns:
        raise ValueError("an object needs a column")
    parts: list[Any] = []
    tail = "{"
    for column, name in zip(columns, names, strict=True):
        found = _text(column)
        if found.values.null_count:
            found = _Text(pc.fill_null(found.whole(), pa.scalar("null")))
        parts += [pa.scalar(f"{tail}{_ENCODE(name)}:{found.before}"), found.values]
        tail = f"{found.after},"
    joined: pa.Array[Any] = pc.binary_join_element_wise(*parts, pa.scalar(f"{tail[:-1]}}}"), "")
    return joined


@dataclass(frozen=True, slots=True)
class _Text:
    """JSON values, each to stand between `before` and `after`: those go into the one join of all columns."""

    values: pa.Array[Any]
    before: str = ""
    after: str = ""

    def whole(self) -> pa.Array[Any]:
        """The values with what stands around them; a null stays one."""
        if not self.after:
            return self.values
        joined: pa.Array[Any] = pc.binary_join_element_wise(self.before, self.values, self.after, "")
        return joined


def _text(column: pa.Array[Any]) -> _Text:
    kind = column.type
    types = pa.types
    if types.is_null(kind):
        return _Text(pa.nulls(len(column), pa.string()))
    if types.is_integer(kind) or types.is_boolean(kind):
        return _Text(column.cast(pa.string()))
    if types.is_string(kind) or types.is_large_string(kind):
        return _strings(column)
    if types.is_floating(kind):
        return _Text(_floats(column))
    if types.is_date32(kind):
        return _Text(_in_range(column.cast(pa.string())), '"', '"')
    if types.is_timestamp(kind) and kind.unit == "us":
        return _Text(_moments(column), '"', '"' if kind.tz is None else '+00:00"')
    return _one_by_one(column)


def _strings(column: pa.Array[Any]) -> _Text:
    column = column.cast(pa.string())
    column.validate(full=True)  # Spark may hand over text that is no UTF-8, which no JSON can hold
    if not _is_plain(column):
        if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
            return _one_by_one(column)
        for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
            column = pc.replace_substring(column, plain, escaped)
    return _Text(column, '"', '"')


def _is_plain(column: pa.Array[Any]) -> bool:
    """Whether nothing is to be escaped: all bytes are looked at at once, which is cheaper than text by text."""
    import numpy as np

    data = np.frombuffer(_data(column), np.uint8)
    return not ((data < ord(" ")) | (data == ord('"')) | (data == ord("\\"))).any()


def _data(column: pa.Array[Any]) -> memoryview:
    """The bytes of a string array's texts, one after the other."""
    _, offsets, data = column.buffers()
    if offsets is None or data is None:
        return memoryview(b"")
    first, last = (struct.unpack_from("<i", offsets, 4 * at)[0] for at in (column.offset, column.offset + len(column)))
    return memoryview(data)[first:last]


def _floats(column: pa.Array[Any]) -> pa.Array[Any]:
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return text
    for found, meant in _NON_FINITE.items():
        text = pc.if_else(pc.equal(text, found), meant, text)
    return text


def _moments(column: pa.Array[Any]) -> pa.Array[Any]:
    """ISO 8601 as Python writes it, in UTC where there is a zone, with microseconds where there are any."""
    if column.type.tz not in (None, "UTC"):
        column = column.cast(pa.timestamp("us", "UTC"))
    text = column.cast(pa.timestamp("us")).cast(pa.string())
    if text.null_count == 0 and (joined := _with_t(text)) is not None:
        text = joined
    else:
        text = pc.replace_substring(_in_range(text), " ", "T")
    if pc.any(pc.ends_with(text, ".000000")).as_py():
        text = pc.replace_substring(text, ".000000", "")
    told: pa.Array[Any] = text
    return told


def _with_t(text: pa.Array[Any]) -> pa.Array[Any] | None:
    """`2026-01-31 …` as `2026-01-31T…`, where all texts have the usual width: the letter is put into a copy of all
    bytes. None: some have another one, as years beyond 9999 do."""
    import numpy as np

    offsets: Any = np.arange(0, (len(text) + 1) * _MOMENT_BYTES, _MOMENT_BYTES, dtype=np.int32)
    place: Any = text.buffers()[1]
    ends = np.frombuffer(place, np.int32, len(text) + 1, 4 * text.offset)
    if not np.array_equal(ends - ends[0], offsets):
        return None
    rows: Any = np.frombuffer(_data(text), np.uint8).reshape(len(text), _MOMENT_BYTES).copy()
    if (rows[:, _MOMENT_SPACE] != ord(" ")).any():
        return None
    rows[:, _MOMENT_SPACE] = ord("T")
    return pa.Array.from_buffers(pa.string(), len(text), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _in_range(text: pa.Array[Any]) -> pa.Array[Any]:
    """Arrow prints a time that is too far away as a remark; raises ValueError for one."""
    if pc.any(pc.starts_with(text, "<")).as_py():
        raise ValueError("a date or time is out of the range that can be written")
    return text


def _one_by_one(column: pa.Array[Any]) -> _Text:
    kind = column.type
    values = (json_value(value, kind) for value in column.to_pylist())
    return _Text(pa.array([None if value is None else _ENCODE(value) for value in values], pa.string()))
