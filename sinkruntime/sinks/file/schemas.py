"""Whether rows fit the format and the target: checked once per driver start, before anything is staged.

Called by `prepare_target`. Every refusal names the column, what there is, and what it would get.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from sinkruntime.avro_schemas import avro_schema, load_fastavro
from sinkruntime.errors import TargetError
from sinkruntime.sinks.file.formats import column_problem
from sinkruntime.sinks.file.options import Format, Options
from sinkruntime.storage.base import Storage
from sinkruntime.storage.writer import file_schema


def check_columns(schema: pa.Schema, options: Options) -> None:
    """Raises `TargetError` unless the format can hold each column, and directories each partition value."""
    for name in options.partition_by:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise _mismatch(f"there is no column `{name}`; the rows have {known}", "options.partitionBy")
        if not _can_be_directory(schema.field(name).type):
            right = "strings, whole numbers, decimals, dates, timestamps and booleans"
            raise _mismatch(
                f"`{name}` is {schema.field(name).type}; directories are made of {right}", "options.partitionBy"
            )
    content = file_schema(schema, options.partition_by)
    if not content.names:
        raise _mismatch("every column is a partition column: nothing is left to write", "options.partitionBy")
    if len(set(content.names)) != len(content.names):
        raise _mismatch("two columns have the same name", "options.path")
    if options.format is Format.TEXT and len(content.names) != 1:
        raise _mismatch(f"text needs one string column, the rows have {', '.join(content.names)}", "options.format")
    for field in content:
        problem = column_problem(options, field)
        if problem:
            raise _mismatch(f"column `{field.name}`: {problem}", "options.format")
    if options.format is Format.AVRO:
        _check_avro(content)


def _check_avro(schema: pa.Schema) -> None:
    """Fields may be right one by one and not together: `a.b` and `a_b` make records of one name."""
    fastavro = load_fastavro()
    try:
        fastavro.parse_schema(avro_schema(schema))
    except fastavro.schema.SchemaParseException as error:
        raise _mismatch(f"avro cannot hold these columns together: {error}", "options.format") from error


def check_target(schema: pa.Schema, known: str, storage: Storage, options: Options) -> None:
    """Raises `TargetError` unless a file in place (else what the target was first given) has the same columns."""
    kept = json.loads(known)
    existing = _existing(storage, options)
    mine = to_columns(file_schema(schema, options.partition_by))
    if existing is None:
        existing = {name: kind for name, kind in kept.items() if name not in options.partition_by}
    for name, kind in mine.items():
        if name not in existing:
            raise _mismatch(f"column `{name}`: the target has no such column, it would get {kind}", "options.path")
        if existing[name] != kind:
            raise _mismatch(f"column `{name}`: the target has {existing[name]}, it would get {kind}", "options.path")
    missing = [name for name in existing if name not in mine]
    if missing:
        raise _mismatch(
            f"column `{missing[0]}`: the target has {existing[missing[0]]}, the rows do not have it", "options.path"
        )


def to_text(schema: pa.Schema) -> str:
    """A schema as it is kept in `target.json`."""
    return json.dumps(to_columns(schema))


def to_columns(schema: pa.Schema) -> dict[str, str]:
    """Columns and types, in the words of Arrow, without what formats do not keep apart."""
    return {field.name: _kind(field.type) for field in schema}


def _kind(kind: pa.DataType) -> str:
    if isinstance(kind, pa.TimestampType):
        return "timestamp" if kind.tz else "timestamp without time zone"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{field.name}: {_kind(field.type)}' for field in kind)}>"
    if isinstance(kind, pa.MapType):
        return f"map<{_kind(kind.key_type)}, {_kind(kind.item_type)}>"
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"list<{_kind(kind.value_type)}>"
    return str(kind).removeprefix("large_")


def _existing(storage: Storage, options: Options) -> dict[str, str] | None:
    """The columns of a file in place, for the formats that say them exactly."""
    if options.format not in (Format.PARQUET, Format.ORC):
        return None
    stream = storage.sample(options.extension)
    if stream is None:
        return None
    with stream:
        return to_columns(_read_schema(stream, options.format))


def _read_schema(stream: Any, kind: Format) -> pa.Schema:
    if kind is Format.PARQUET:
        import pyarrow.parquet

        return pyarrow.parquet.read_schema(stream)
    import pyarrow.orc

    return pyarrow.orc.ORCFile(stream).schema


def _can_be_directory(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (
        types.is_string, types.is_large_string, types.is_integer, types.is_decimal,
        types.is_date, types.is_timestamp, types.is_boolean,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def _mismatch(message: str, path: str) -> TargetError:
    return TargetError("SchemaMismatch", message, path=path)
