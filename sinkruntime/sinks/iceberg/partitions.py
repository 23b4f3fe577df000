"""Rows by partition: Iceberg's transforms over Arrow columns, and batches split by their results.

Used by the writer. Results are those of pyiceberg's own functions, which work on single values; here whole columns are
transformed, or each distinct value once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField

MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}


def split(
    batch: pa.RecordBatch, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """(partition values as Iceberg stores them, the rows) for each partition, in order of first appearance."""
    if batch.num_rows == 0:
        return
    columns = [transformed(batch, field, schema) for field in spec.fields]
    if not columns:
        yield (), batch
        return
    names = [f"key_{index}" for index in range(len(columns))]
    keys = pa.table([*columns, pa.array(range(batch.num_rows), pa.int64())], names=[*names, "row"])
    found = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
    rows = found.column("row_list").combine_chunks()
    for index in range(found.num_rows):
        values = tuple(found.column(name)[index].as_py() for name in names)
        yield values, batch if found.num_rows == 1 else batch.take(rows[index].values)


def transformed(batch: pa.RecordBatch, field: PartitionField | SortField, schema: Schema) -> Any:
    """A partition or sort field's values for each row: whole numbers for times and dates, else what it results in."""
    name = str(field.transform).partition("[")[0]
    if name == "void":
        return pa.nulls(batch.num_rows, pa.int32())
    source = schema.find_column_name(field.source_id)
    kind = schema.find_type(field.source_id)
    if source is None:
        raise ValueError(f"{field} has no source column")
    column = _column(batch, source)
    if name == "identity":
        return _stored(column)
    if name in MICROSECONDS and pa.types.is_timestamp(column.type):
        return _floor_divide(column.cast(pa.int64()), MICROSECONDS[name]).cast(pa.int32())
    if name == "day":
        return column.cast(pa.int32())
    if name in ("year", "month"):
        years = pc.subtract(pc.year(column), 1970)
        if name == "year":
            return years.cast(pa.int32())
        return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(column), 1)).cast(pa.int32())
    return _each_distinct(_stored(column), field.transform.transform(kind), field.transform.result_type(kind))


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """A column, or a field within a struct: `place.country`."""
    if name in batch.schema.names:
        return batch.column(name)
    first, *inner = name.split(".")
    return pc.struct_field(batch.column(first), inner)


def _stored(column: Any) -> Any:
    """Times as the numbers that Iceberg stores."""
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _floor_divide(column: Any, by: int) -> Any:
    """Rounded down, also before 1970; Arrow's own division rounds to zero."""
    unit: Any = pa.scalar(by, pa.int64())
    zero: Any = pa.scalar(0, pa.int64())
    quotient = pc.divide(column, unit)
    inexact = pc.and_(pc.less(column, zero), pc.not_equal(pc.multiply(quotient, unit), column))
    return pc.subtract(quotient, pc.cast(inexact, pa.int64()))


def _each_distinct(column: Any, function: Any, result: Any) -> Any:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    encoded = column.dictionary_encode()
    values = [function(value) for value in encoded.dictionary.to_pylist()]
    kind: Any = schema_to_pyarrow(result)
    small: Any = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return pa.array(values, small.get(kind, kind)).take(encoded.indices)
