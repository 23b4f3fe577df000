"""Arrow's types as Paimon's, both ways, and the fields of a table's schema.

Used by `schema`, the writer and `binary_row`. Pure. A type that Paimon has and we do not write is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sinkruntime.errors import TargetError

_ATOMIC: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BYTES": pa.binary(),
    "VARBINARY": pa.binary(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
}
_TEXT = re.compile(r"(?P<name>[A-Z_]+)(?:\((?P<first>\d+)(?:, *(?P<second>\d+))?\))?(?P<rest>.*)")
_TIMESTAMPS = {"TIMESTAMP": None, "TIMESTAMP_LTZ": "UTC"}
#: What Paimon's writers use where a type says no precision.
_TIMESTAMP_PRECISION = 6
#: Columns of less precision hold milliseconds: Paimon's readers go by the column, not by what the Parquet file says.
_MICROSECONDS_FROM = 4
_BOUNDED_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table: its id, and its type in Arrow's words and as the schema has it."""

    id: int
    name: str
    arrow: pa.DataType
    nullable: bool
    paimon: Any

    def to_arrow(self) -> pa.Field[Any]:
        return pa.field(self.name, self.arrow, self.nullable)


def read_fields(documents: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """The fields of a schema file. Raises `TargetError` for a type that we do not write."""
    fields = []
    for document in documents:
        kind, nullable = _read(document["type"], document["name"])
        fields.append(Field(document["id"], document["name"], kind, nullable, document["type"]))
    return tuple(fields)


def make_fields(schema: pa.Schema, required: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """The fields of a new table's schema file, and the highest id. Raises `TargetError`."""
    ids = iter(range(1_000_000))
    fields = []
    for field in schema:
        number = next(ids)
        nullable = field.nullable and field.name not in required
        fields.append({"id": number, "name": field.name, "type": _write(field.type, nullable, field.name, ids)})
    return fields, next(ids) - 1


def limits(field: Field) -> tuple[int, int]:
    """(precision, scale) of a decimal or timestamp."""
    if pa.types.is_decimal(field.arrow):
        return field.arrow.precision, field.arrow.scale
    found = _TEXT.fullmatch(str(field.paimon))
    return int(found["first"]) if found and found["first"] else _TIMESTAMP_PRECISION, 0


def _read(text: Any, column: str) -> tuple[pa.DataType, bool]:
    if isinstance(text, Mapping):
        return _read_nested(text, column)
    found = _TEXT.fullmatch(str(text))
    name = found["name"] if found else str(text)
    rest = found["rest"].strip() if found else ""
    if "WITH LOCAL TIME ZONE" in rest:
        name, rest = "TIMESTAMP_LTZ", rest.replace("WITH LOCAL TIME ZONE", "").strip()
    if found is None or rest not in ("", "NOT NULL"):
        raise _refused(column, str(text))
    nullable = rest == ""
    digits = int(found["first"] or _TIMESTAMP_PRECISION)
    if name in _TIMESTAMPS and _MICROSECONDS_FROM <= digits <= _TIMESTAMP_PRECISION:
        return pa.timestamp("us", tz=_TIMESTAMPS[name]), nullable
    if name in ("DECIMAL", "NUMERIC") and found["first"]:
        return pa.decimal128(int(found["first"]), int(found["second"] or 0)), nullable
    bounded = name in ("CHAR", "VARCHAR", "BINARY", "VARBINARY")
    if name not in _ATOMIC or (bounded and int(found["first"] or 1) != _BOUNDED_MAX):
        raise _refused(column, str(text))
    return _ATOMIC[name], nullable


def _read_nested(document: Mapping[str, Any], column: str) -> tuple[pa.DataType, bool]:
    name, _, rest = str(document["type"]).partition(" ")
    nullable = rest != "NOT NULL"
    if name == "ARRAY":
        element, optional = _read(document["element"], column)
        return pa.list_(pa.field("element", element, optional)), nullable
    if name == "MAP":
        (key, _), (value, _) = _read(document["key"], column), _read(document["value"], column)
        return pa.map_(key, value), nullable
    if name == "ROW":
        parts = read_fields(document["fields"])
        return pa.struct([part.to_arrow() for part in parts]), nullable
    raise _refused(column, str(document["type"]))


def _write(kind: pa.DataType, nullable: bool, column: str, ids: Iterator[int]) -> Any:
    suffix = "" if nullable else " NOT NULL"
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": f"ARRAY{suffix}", "element": _write(kind.value_type, True, column, ids)}
    if types.is_map(kind):
        key, value = _write(kind.key_type, False, column, ids), _write(kind.item_type, True, column, ids)
        return {"type": f"MAP{suffix}", "key": key, "value": value}
    if types.is_struct(kind):
        parts = []
        for field in kind:
            number = next(ids)
            inner = _write(field.type, field.nullable, f"{column}.{field.name}", ids)
            parts.append({"id": number, "name": field.name, "type": inner})
        return {"type": f"ROW{suffix}", "fields": parts}
    return f"{_atomic(kind, column)}{suffix}"


def _atomic(kind: pa.DataType, column: str) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return f"{'TIMESTAMP_LTZ' if kind.tz else 'TIMESTAMP'}({_TIMESTAMP_PRECISION})"
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if types.is_large_string(kind):
        return "STRING"
    if types.is_large_binary(kind):
        return "BYTES"
    for name, known in _ATOMIC.items():
        if known == kind:
            return name
    message = f"column `{column}`: {kind} has no type in Paimon"
    raise TargetError("UnsupportedType", message, path="options.table")


def _refused(column: str, text: str) -> TargetError:
    message = f"column `{column}`: the table has {text}, which this sink does not write"
    return TargetError("UnsupportedType", message, path="options.table")
