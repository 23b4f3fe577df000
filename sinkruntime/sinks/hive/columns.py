"""Types of Hive as they stand in the metastore, and the types of Arrow that hold the same values.

Used when a table is read or created. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sinkruntime.errors import TargetError

#: By the word of Hive. Timestamps are instants, as Spark writes them into Hive tables.
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_WORDS = {kind: word for word, kind in _PLAIN.items()}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
#: What a partition's directory and the metastore write alike, whoever writes them.
PARTITION_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "date", "boolean")


def to_arrow(hive: str) -> pa.DataType:
    """Raises ValueError, with the part that is not supported."""
    text = hive.strip()
    word = text.lower()
    if word in _PLAIN:
        return _PLAIN[word]
    if found := _DECIMAL.fullmatch(word):
        return pa.decimal128(int(found[1]), int(found[2]))
    kind, _, rest = text.partition("<")
    if rest.endswith(">"):
        parts = list(_split(rest[:-1]))
        if kind.lower() == "array" and len(parts) == 1:
            return pa.list_(to_arrow(parts[0]))
        if kind.lower() == "map" and len(parts) == 2:
            return pa.map_(to_arrow(parts[0]), to_arrow(parts[1]))
        if kind.lower() == "struct" and parts:
            named = [part.partition(":") for part in parts]
            return pa.struct([pa.field(name.strip(), to_arrow(inner)) for name, _, inner in named])
    raise ValueError(f"{text} is not supported")


def to_hive(arrow: pa.DataType) -> str:
    """Raises ValueError where Hive has no such type."""
    kinds = pa.types
    if kinds.is_timestamp(arrow) and arrow.tz is None:
        raise ValueError("a timestamp without time zone is not supported; cast it to TIMESTAMP in a transform")
    if kinds.is_timestamp(arrow):
        return "timestamp"
    if kinds.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if kinds.is_list(arrow) or kinds.is_large_list(arrow):
        return f"array<{to_hive(arrow.value_type)}>"
    if kinds.is_map(arrow):
        return f"map<{to_hive(arrow.key_type)},{to_hive(arrow.item_type)}>"
    if kinds.is_struct(arrow):
        return f"struct<{','.join(f'{field.name.lower()}:{to_hive(field.type)}' for field in arrow)}>"
    if kinds.is_large_string(arrow) or kinds.is_large_binary(arrow):
        return "string" if kinds.is_large_string(arrow) else "binary"
    if arrow not in _WORDS:
        raise ValueError(f"Hive has no type for {arrow}")
    return _WORDS[arrow]


def table_schema(fields: Any, required: frozenset[str] = frozenset()) -> pa.Schema:
    """The Arrow schema of a table's columns (Thrift `FieldSchema`s); raises `TargetError` for types that cannot be."""
    return pa.schema([pa.field(field.name, _column(field), field.name not in required) for field in fields])


def _column(field: Any) -> pa.DataType:
    try:
        return to_arrow(field.type)
    except ValueError as error:
        message = f"column `{field.name}`: the table has {field.type}, and {error}"
        raise TargetError("UnsupportedType", message, path="options.table") from error


def lowered(schema: pa.Schema) -> pa.Schema:
    """The rows' schema with names as Hive keeps them; two that become one are found by the check of the rows."""
    return pa.schema([field.with_name(field.name.lower()) for field in schema])


def _split(text: str) -> Iterator[str]:
    """At the commas that stand in no bracket."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
