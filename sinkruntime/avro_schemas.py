"""Avro: an Arrow schema as an Avro schema; fastavro, which is imported when an encoder is opened.

Used by the sinks that write Avro. Never sees a path or a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load_fastavro(path: str = "options.format") -> Any:
    """The library; `path` is the option that asks for it. Raises `ConfigurationError` where it is not installed."""
    try:
        import fastavro.write
    except ModuleNotFoundError as error:
        advice = "pip install 'sinkjob[file]'"
        message = "format avro needs fastavro"
        raise ConfigurationError("MissingModule", message, path=path, advice=advice) from error
    return fastavro


def avro_problem(field: pa.Field[Any]) -> str:
    """Why Avro cannot hold this column; "" when it can."""
    if not _NAME.fullmatch(field.name):
        return f"avro names have letters, digits and _ only; `{field.name}` has others"
    try:
        avro_type(field.type, field.name)
    except ValueError as error:
        return str(error)
    return ""


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The record schema of a file; every column may be null."""
    return {"type": "record", "name": "row", "fields": _fields(list(schema), "row")}


def _fields(fields: Iterable[pa.Field[Any]], path: str) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "type": ["null", avro_type(field.type, f"{path}_{field.name}")], "default": None}
        for field in fields
    ]


def avro_type(kind: pa.DataType, path: str) -> Any:
    """The Avro type of an Arrow type; `path` makes the names of nested records unique. Raises ValueError."""
    simple = _SIMPLE.get(str(kind))
    if simple is not None:
        return simple
    if isinstance(kind, pa.TimestampType):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if isinstance(kind, pa.Decimal128Type):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return {"type": "array", "items": ["null", avro_type(kind.value_type, f"{path}_item")]}
    if isinstance(kind, pa.StructType):
        return {"type": "record", "name": path, "fields": _fields(list(kind), path)}
    raise ValueError(f"avro cannot hold {kind}")


_SIMPLE: Mapping[str, Any] = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "bytes",
    "large_binary": "bytes",
    "date32[day]": {"type": "int", "logicalType": "date"},
}
