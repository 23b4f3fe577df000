"""A table's columns in Arrow, with Iceberg's field ids; and the other way round.

Used by the writer, which gives files these columns, and by `prepare_target`, which compares and creates. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.errors import TargetError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


def arrow_schema(schema: Schema) -> pa.Schema:
    """The table's columns, each with its field id, also within nested ones; Arrow's small types, as Spark gives."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([_small(field) for field in schema_to_pyarrow(schema)])


def iceberg_schema(schema: pa.Schema, path: str = "options.table") -> Schema:
    """The rows' columns as a new table gets them. Raises `TargetError` by column."""
    from pyiceberg.catalog import Catalog
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
    from pyiceberg.schema import assign_fresh_schema_ids

    schema = pa.schema([pa.field(field.name, _in_utc(field.type), field.nullable) for field in schema])
    for field in schema:
        try:
            Catalog._convert_schema_if_needed(pa.schema([field]))
        except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
            message = f"column `{field.name}`: Iceberg has no type for {field.type}"
            raise TargetError("UnsupportedType", message, path=path, advice="cast it in a transform") from error
    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))


def _small(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _small_type(field.type), field.nullable, field.metadata)


def _small_type(kind: Any) -> Any:
    if isinstance(kind, pa.StructType):
        return pa.struct([_small(field) for field in kind])
    if isinstance(kind, pa.LargeListType | pa.ListType):
        return pa.list_(_small(kind.value_field))
    if isinstance(kind, pa.MapType):
        key, value = _small(kind.key_field), _small(kind.item_field)
        make: Any = pa.map_
        return make(key, value)
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Arrow names the session's time zone; a time with a zone is an instant, whatever its name."""
    if isinstance(kind, pa.TimestampType) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _in_utc(field.type), field.nullable) for field in kind])
    if isinstance(kind, pa.LargeListType | pa.ListType):
        return pa.list_(_in_utc(kind.value_type))
    if isinstance(kind, pa.MapType):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return kind
