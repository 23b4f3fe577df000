"""Arrow schemas as Hudi keeps them: in Avro, inside each commit; and whether rows fit a table.

Called by `prepare_target`, by writers and by the committer's metadata. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.errors import TargetError

#: Hudi's own columns, first in every file, in this order.
META = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_TYPES = "strings, whole numbers, dates and booleans"
_PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def file_schema(rows: pa.Schema) -> pa.Schema:
    """The schema of a data file: Hudi's columns, then the rows' own in the types that Avro has."""
    meta = [pa.field(name, pa.string()) for name in META]
    return pa.schema([*meta, *(pa.field(field.name, _stored(field.type)) for field in rows)])


def avro(rows: pa.Schema, table: str) -> str:
    """The rows' schema as Hudi writes it into a commit."""
    record = f"{table}_record"
    space = f"hoodie.{table}"
    fields = [_field(field, f"{space}.{record}") for field in rows]
    return json.dumps({"type": "record", "name": record, "namespace": space, "fields": fields}, separators=(",", ":"))


def check_rows(rows: pa.Schema, keys: Mapping[str, tuple[str, ...]], ordering: str | None) -> None:
    """Raises `TargetError` unless Hudi can hold each column. `keys`: by option, the columns that make keys or paths."""
    for field in rows:
        if not _NAME.fullmatch(field.name) or field.name in META:
            right = "letters, digits and `_`, not a digit first, and none of Hudi's own"
            raise _mismatch(f"column `{field.name}`: Hudi cannot have this name; expected {right}")
        try:
            _field(field, "x")
        except ValueError as error:
            raise _mismatch(f"column `{field.name}`: Hudi tables cannot hold {error}") from error
    if len(set(rows.names)) != len(rows.names):
        raise _mismatch("two columns have the same name")
    for option, names in keys.items():
        for name in names:
            kind = _column(rows, name, option).type
            if not _can_be_key(kind):
                raise _mismatch(f"`{name}` is {kind}; expected {_KEY_TYPES}", f"options.{option}")
    if ordering is not None and pa.types.is_nested(kind := _column(rows, ordering, "orderingField").type):
        raise _mismatch(f"`{ordering}` is {kind}, which does not compare", "options.orderingField")


def check_table(rows: pa.Schema, known: str, table: str, keys: tuple[str, ...]) -> None:
    """Raises `TargetError` unless the table's last schema (`known`, Avro) has exactly the rows' columns."""
    has = {field["name"]: field["type"] for field in json.loads(known)["fields"] if field["name"] not in META}
    mine = {field["name"]: field["type"] for field in json.loads(avro(rows, table))["fields"]}
    for name, kind in mine.items():
        if name not in has:
            raise _mismatch(f"column `{name}`: the table has no such column, it would get {_said(kind)}")
        if _said(has[name]) != _said(kind):
            raise _mismatch(f"column `{name}`: the table has {_said(has[name])}, it would get {_said(kind)}")
        if not isinstance(has[name], list) and name not in keys and rows.field(name).nullable:
            raise _mismatch(f"column `{name}`: the table requires a value, the rows may have none")
    if missing := [name for name in has if name not in mine]:
        raise _mismatch(f"column `{missing[0]}`: the table has {_said(has[missing[0]])}, the rows do not have it")


def _field(field: pa.Field[Any], space: str) -> dict[str, Any]:
    return {"name": field.name, "type": ["null", _avro(field.type, f"{space}.{field.name}")], "default": None}


def _avro(kind: pa.DataType, space: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, pa.Decimal128Type) and kind.scale >= 0:
        fixed = {"type": "fixed", "name": "fixed", "namespace": space, "size": _decimal_bytes(kind.precision)}
        return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, pa.TimestampType):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if isinstance(kind, pa.StructType):
        name = space.rpartition(".")[2]
        return {
            "type": "record",
            "name": name,
            "namespace": space.rpartition(".")[0],
            "fields": [_field(field, space) for field in kind],
        }
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return {"type": "array", "items": ["null", _avro(kind.value_type, f"{space}.array")]}
    if isinstance(kind, pa.MapType) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro(kind.item_type, f"{space}.value")]}
    raise ValueError(str(kind))


def _decimal_bytes(precision: int) -> int:
    """The fewest bytes that hold so many digits and a sign."""
    digits: int = 10**precision
    return (digits.bit_length() + 8) // 8


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type in the file: what Avro has not, in the next wider one."""
    if kind in (pa.int8(), pa.int16()):
        return pa.int32()
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _stored(field.type)) for field in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(_stored(kind.value_type))
    if isinstance(kind, pa.MapType):
        return pa.map_(kind.key_type, _stored(kind.item_type))
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", kind.tz)
    return kind


def _column(rows: pa.Schema, name: str, option: str) -> pa.Field[Any]:
    if name not in rows.names:
        raise _mismatch(f"there is no column `{name}`; the rows have {', '.join(rows.names)}", f"options.{option}")
    return rows.field(name)


def _can_be_key(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_signed_integer(kind)
        or types.is_date32(kind) or types.is_boolean(kind)
    )  # fmt: skip


def _said(kind: Any) -> str:
    """An Avro type in words, without what does not matter: nulls, names, namespaces."""
    if isinstance(kind, list):
        return _said(next(item for item in kind if item != "null"))
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("logicalType") == "decimal":
        return f"decimal({kind['precision']}, {kind.get('scale', 0)})"
    if "logicalType" in kind:
        return str(kind["logicalType"])
    return "".join(_said_nested(kind))


def _said_nested(kind: Mapping[str, Any]) -> Iterator[str]:
    if kind["type"] == "array":
        yield f"array<{_said(kind['items'])}>"
    elif kind["type"] == "map":
        yield f"map<string, {_said(kind['values'])}>"
    elif kind["type"] == "record":
        fields = ", ".join(f"{field['name']}: {_said(field['type'])}" for field in kind["fields"])
        yield f"record<{fields}>"
    else:
        yield _said(kind["type"])


def _mismatch(message: str, path: str = "options.table") -> TargetError:
    return TargetError("SchemaMismatch", message, path=path)
