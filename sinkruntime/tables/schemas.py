"""The rows' Arrow schema against a table's: whether it fits, and batches brought to it.

Called by the table sinks: `check` once per driver start, by `prepare_target`; `conform` for each batch, by writers.
Every refusal names the column, what the table has, and what it would get. Reads no table and loses no value silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sinkruntime.errors import TargetError

#: Whole numbers, narrow to wide: a value of one fits every later one.
_INTEGERS: tuple[pa.DataType, ...] = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS: tuple[pa.DataType, ...] = (pa.float16(), pa.float32(), pa.float64())


def check(rows: pa.Schema, table: pa.Schema, path: str = "options.table") -> None:
    """Raises `TargetError` (`SchemaMismatch`) unless each column of the rows fits one of the table, by name.

    A column of the table that the rows lack becomes null; one that is required must be there. A column that the table
    requires may be nullable in the rows: `conform` refuses the nulls, if any come.
    """
    problem = next(problems(rows, table), None)
    if problem is not None:
        raise TargetError("SchemaMismatch", problem, path=path)


def problems(rows: pa.Schema, table: pa.Schema) -> Iterator[str]:
    """Each thing that does not fit, one sentence."""
    yield from _twice(rows)
    yield from _fields("", list(rows), list(table))


def kind(of: pa.DataType) -> str:
    """A type in the words of Arrow, without what tables do not keep apart (large types, names of time zones)."""
    if isinstance(of, pa.TimestampType):
        return "timestamp with time zone" if of.tz else "timestamp without time zone"
    if isinstance(of, pa.StructType):
        return f"struct<{', '.join(f'{field.name}: {kind(field.type)}' for field in of)}>"
    if isinstance(of, pa.MapType):
        return f"map<{kind(of.key_type)}, {kind(of.item_type)}>"
    if isinstance(of, pa.ListType | pa.LargeListType):
        return f"list<{kind(of.value_type)}>"
    return str(of).removeprefix("large_")


def fits(rows: pa.DataType, table: pa.DataType) -> bool:
    """Whether every value of a plain type of the rows is one of the table's: the same type, or a wider one."""
    if kind(rows) == kind(table) or pa.types.is_null(rows):
        return True
    for ladder in (_INTEGERS, _FLOATS):
        if rows in ladder and table in ladder:
            return ladder.index(rows) <= ladder.index(table)
    if pa.types.is_decimal(rows) and pa.types.is_decimal(table):
        whole = table.precision - table.scale
        return bool(table.scale >= rows.scale and whole >= rows.precision - rows.scale)
    return bool(pa.types.is_fixed_size_binary(rows) and pa.types.is_binary(table))


def conform(batch: pa.RecordBatch, table: pa.Schema, path: str = "options.table") -> pa.RecordBatch:
    """The batch with the table's columns, in its order and types. Call `check` once before.

    Raises `TargetError`: `NullInRequiredColumn`, or `ValueOutOfRange` where a value does not fit after all.
    """
    if batch.schema.equals(table):
        arrays = list(batch.columns)
    else:
        names = batch.schema.names
        arrays = [
            _array(batch.column(names.index(field.name)) if field.name in names else None, field, batch.num_rows, path)
            for field in table
        ]
    for field, array in zip(table, arrays, strict=True):
        if not field.nullable and array.null_count:
            message = f"column `{field.name}`: the table requires a value, {array.null_count} rows of a batch have none"
            raise TargetError("NullInRequiredColumn", message, path=path)
    return pa.RecordBatch.from_arrays(arrays, schema=table)


def _twice(rows: pa.Schema) -> Iterator[str]:
    for name in sorted({name for name in rows.names if rows.names.count(name) > 1}):
        yield f"column `{name}`: two columns of the rows have this name"


def _fields(prefix: str, rows: list[pa.Field[Any]], table: list[pa.Field[Any]]) -> Iterator[str]:
    known = {field.name: field for field in table}
    for field in rows:
        name = f"{prefix}{field.name}"
        if field.name not in known:
            yield f"column `{name}`: the table has no such column, it would get {kind(field.type)}{_near(field, known)}"
        else:
            yield from _types(name, field.type, known[field.name].type)
    given = {field.name for field in rows}
    for field in table:
        if field.name not in given and not field.nullable:
            yield f"column `{prefix}{field.name}`: the table requires {kind(field.type)}, the rows do not have it"


def _near(field: pa.Field[Any], known: dict[str, pa.Field[Any]]) -> str:
    other = next((name for name in known if name.lower() == field.name.lower()), None)
    return "" if other is None else f" (it has `{other}`: names are compared as they are written)"


def _types(name: str, rows: Any, table: Any) -> Iterator[str]:
    if isinstance(rows, pa.StructType) and isinstance(table, pa.StructType):
        yield from _fields(f"{name}.", list(rows), list(table))
    elif _is_list(rows) and _is_list(table):
        yield from _types(f"{name}.element", rows.value_type, table.value_type)
    elif isinstance(rows, pa.MapType) and isinstance(table, pa.MapType):
        yield from _types(f"{name}.key", rows.key_type, table.key_type)
        yield from _types(f"{name}.value", rows.item_type, table.item_type)
    elif not fits(rows, table):
        yield f"column `{name}`: the table has {kind(table)}, it would get {kind(rows)}"


def _is_list(of: pa.DataType) -> bool:
    return isinstance(of, pa.ListType | pa.LargeListType)


def _array(array: Any, field: pa.Field[Any], length: int, path: str) -> Any:
    if array is None:
        return pa.nulls(length, field.type)
    try:
        return _cast(array, field.type)
    except pa.ArrowInvalid as error:
        raise TargetError("ValueOutOfRange", f"column `{field.name}`: {error}", path=path) from error


def _cast(array: Any, table: Any) -> Any:
    """The array in the table's type; structs by the names of their fields, wherever they are nested."""
    if array.type == table:
        return array
    if isinstance(table, pa.StructType) and isinstance(array.type, pa.StructType):
        names = [field.name for field in array.type]
        parts = [
            _cast(array.field(names.index(field.name)), field.type)
            if field.name in names
            else pa.nulls(len(array), field.type)
            for field in table
        ]
        return pa.StructArray.from_arrays(parts, fields=list(table), mask=array.is_null())
    if _is_list(table) and _is_list(array.type):
        make = pa.LargeListArray if isinstance(table, pa.LargeListType) else pa.ListArray
        offsets = _offsets(array).cast(pa.int64() if isinstance(table, pa.LargeListType) else pa.int32())
        return make.from_arrays(offsets, _cast(array.values, table.value_type), type=table, mask=_mask(array))
    if isinstance(table, pa.MapType) and isinstance(array.type, pa.MapType):
        keys, items = _cast(array.keys, table.key_type), _cast(array.items, table.item_type)
        make_map: Any = pa.MapArray.from_arrays
        return make_map(_offsets(array), keys, items, type=table, mask=_mask(array))
    return array.cast(table)


def _offsets(array: Any) -> Any:
    """A copy: Arrow takes no mask beside the offsets of a slice."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False))


def _mask(array: Any) -> Any:
    """Which values are null; None where none is."""
    return array.is_null() if array.null_count else None
