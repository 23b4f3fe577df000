"""Nested values (structs, lists, maps) as JSON texts, for databases that have no such types or call them JSON.

Used by every writer. Structs and maps are objects, lists are arrays, bytes are base64, decimals and times are texts,
NaN and infinities (which JSON has not) are texts, too.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa


def json_texts(values: pa.Array[Any]) -> pa.Array[Any]:
    """One text for each value; null stays null."""
    kind = values.type
    texts = [None if value is None else json_text(value, kind) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def json_text(value: Any, kind: pa.DataType) -> str:
    """One value as JSON."""
    return json.dumps(_plain(value, kind), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {_key(key): _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value


def _key(value: Any) -> str:
    plain = _scalar(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
