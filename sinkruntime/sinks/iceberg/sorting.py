"""Rows in a table's sort order, row group by row group. Used by the Parquet writer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.sinks.iceberg.partitions import transformed

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder


def ordered(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """The rows in this order."""
    from pyiceberg.table.sorting import NullOrder, SortDirection

    if rows.num_rows < 2:
        return rows
    batch = rows.combine_chunks().to_batches()[0]
    columns: list[Any] = []
    directions: list[Any] = []
    for number, field in enumerate(order.fields):
        values = transformed(batch, field, schema)
        columns += [pc.is_valid(values), values]
        nulls = "ascending" if field.null_order is NullOrder.NULLS_FIRST else "descending"
        way = "ascending" if field.direction is SortDirection.ASC else "descending"
        directions += [(f"valid_{number}", nulls), (f"value_{number}", way)]
    keys = pa.table(columns, names=[name for name, _ in directions])
    return rows.take(pc.sort_indices(keys, sort_keys=directions))
