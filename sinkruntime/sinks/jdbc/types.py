"""Which type of a database each Arrow type goes into: for tables that are made, and for tables that are there.

`docs/sinks/jdbc.md` has it as a table. Pure.
"""

from __future__ import annotations

import pyarrow as pa

_INTEGERS = {"int2", "int4", "int8", "numeric"}
_TEXTS = {"text", "varchar", "bpchar", "citext", "name"}
_JSON = {"json", "jsonb"}


def is_text(kind: pa.DataType) -> bool:
    """A string of any width."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Bytes of any width."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def is_nested(kind: pa.DataType) -> bool:
    """What is written as JSON."""
    return bool(pa.types.is_nested(kind))


def postgresql_type(kind: pa.DataType) -> str | None:
    """The type of a column that is made."""
    plain = {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.date32(): "date",
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if is_text(kind):
        return "text"
    if is_binary(kind):
        return "bytea"
    return "jsonb" if is_nested(kind) else None


def postgresql_accepts(kind: pa.DataType, name: str) -> bool:
    """Whether values go into a column of the type `name`, as the catalog has it; too large ones are errors."""
    if pa.types.is_boolean(kind):
        return name == "bool"
    if pa.types.is_integer(kind):
        return name in _INTEGERS
    if pa.types.is_floating(kind):
        return name in ("float8", "float4") if kind.bit_width == 32 else name == "float8"
    if pa.types.is_decimal(kind):
        return name == "numeric"
    if pa.types.is_date(kind):
        return name == "date"
    if pa.types.is_timestamp(kind):
        return name in ("timestamp", "timestamptz")
    if is_text(kind):
        return name in _TEXTS | _JSON | {"uuid"}
    if is_binary(kind):
        return name == "bytea"
    return is_nested(kind) and name in _TEXTS | _JSON
