"""Which type of a database each Arrow type goes into: for tables that are made, and for tables that are there.

`docs/sinks/jdbc.md` has it as a table. Pure.
"""

from __future__ import annotations

from typing import Any

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


def mysql_type(kind: pa.DataType, key: bool) -> str | None:
    """The type of a column that is made. Texts are compared byte by byte, so that no two keys become one."""
    plain = {
        pa.bool_(): "boolean",
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if kind.scale <= 30 else None
    if pa.types.is_timestamp(kind):
        return "datetime(6)"
    if is_text(kind):
        return f"{'varchar(255)' if key else 'longtext'} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    if is_binary(kind):
        return "varbinary(255)" if key else "longblob"
    return "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if is_nested(kind) else None


_MYSQL_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
_MYSQL_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "uuid")
_MYSQL_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


def mysql_accepts(kind: pa.DataType, name: str) -> bool:
    """As `postgresql_accepts`. The server is strict: what does not fit is an error when it is staged."""
    if pa.types.is_boolean(kind):
        return name == "tinyint"
    if pa.types.is_integer(kind):
        return name in _MYSQL_INTEGERS
    if pa.types.is_floating(kind):
        return name in ("float", "double") if kind.bit_width == 32 else name == "double"
    if pa.types.is_decimal(kind):
        return name == "decimal"
    if pa.types.is_date(kind):
        return name == "date"
    if pa.types.is_timestamp(kind):
        return name in ("datetime", "timestamp")
    if is_text(kind):
        return name in _MYSQL_TEXTS
    if is_binary(kind):
        return name in _MYSQL_BYTES
    return is_nested(kind) and name in _MYSQL_TEXTS


def sqlite_type(kind: pa.DataType) -> str | None:
    """The type of a column that is made: SQLite has four. Decimals and times are texts, else they would lose digits."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    if is_binary(kind):
        return "BLOB"
    texts = pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return "TEXT" if texts or is_text(kind) or is_nested(kind) else None


def sqlite_affinity(declared: str) -> str:
    """What SQLite makes of a declared type: its documentation, "Determination Of Column Affinity"."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if any(word in text for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in text or not text:
        return "BLOB"
    return "REAL" if any(word in text for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def sqlite_accepts(kind: pa.DataType, declared: str) -> bool:
    """As `postgresql_accepts`, by affinity: what comes back is what went in."""
    affinity = sqlite_affinity(declared)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return affinity in ("INTEGER", "NUMERIC")
    if pa.types.is_floating(kind):
        return affinity == "REAL"
    if is_binary(kind):
        return affinity == "BLOB"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return affinity in ("TEXT", "NUMERIC")  # a text that looks like no number stays one
    return sqlite_type(kind) == "TEXT" and affinity == "TEXT"


def duckdb_type(kind: pa.DataType) -> str | None:
    """The type of a column that is made, as DuckDB writes it itself."""
    plain = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if is_text(kind):
        return "VARCHAR"
    if is_binary(kind):
        return "BLOB"
    return _duckdb_nested(kind)


def _duckdb_nested(kind: Any) -> str | None:
    if pa.types.is_struct(kind):
        parts = [(field.name, duckdb_type(field.type)) for field in kind]
        inside = ", ".join('"' + name.replace('"', '""') + f'" {part}' for name, part in parts)
        return None if any(part is None for _, part in parts) else f"STRUCT({inside})"
    if pa.types.is_map(kind):
        key, item = duckdb_type(kind.key_type), duckdb_type(kind.item_type)
        return None if key is None or item is None else f"MAP({key}, {item})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = duckdb_type(kind.value_type)
        return None if item is None else f"{item}[]"
    return None


_DUCKDB_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")


def duckdb_accepts(kind: pa.DataType, declared: str) -> bool:
    """Rows are staged in files, and moved after the decision: only what holds every value is taken."""
    made = duckdb_type(kind)
    if made in _DUCKDB_INTEGERS:
        return declared in _DUCKDB_INTEGERS[_DUCKDB_INTEGERS.index(made) :]
    if made == "FLOAT":
        return declared in ("FLOAT", "DOUBLE")
    if made is not None and is_nested(kind):
        return declared.replace('"', "") == made.replace('"', "")
    return declared == made
