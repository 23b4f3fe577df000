"""The writer for rows with a key: data files of the new rows, and equality deletes of the old ones.

Rows come hashed and sorted by key (`Sink.distribution`), so the last change of a key is known when the next key begins:
memory holds one buffer, however many keys a checkpoint has. A delete reaches the snapshots before its own, so each
checkpoint has one of its own, and within it each key one row at most. Runs in an executor task.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.api import WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.writer import IcebergWriter, open_table
from sinkruntime.tables.schemas import conform

#: Rows are looked at together up to this size.
BUFFER_BYTES_MAX = 16 * 1024**2


class ChangesWriter(IcebergWriter):
    """Upserts and deletes."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        super().__init__(options, context)
        self._changes = options.changes
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._greatest: pa.Table | None = None  # the last key that was written

    def open(self) -> None:
        self._changes.check(self._context.schema)
        kept = [field for field in self._context.schema if field.name not in self._options.omit]
        self._table = open_table(self._options, self._context, pa.schema(kept))

    def write(self, batch: pa.RecordBatch) -> None:
        self._changes.check_keys(batch)
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= BUFFER_BYTES_MAX:
            self._drain(end=False)

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            self._drain(end=True)
            super().flush(end_of_input)

    def buffered_bytes(self) -> int:
        return self._bytes + super().buffered_bytes()

    def spill(self) -> None:
        self._drain(end=False)
        super().spill()

    def _drain(self, end: bool) -> None:
        """Write what is known to be the last change of its key: all but the greatest key, unless no more comes."""
        if not self._rows:
            return
        rows = pa.Table.from_batches(self._rows)
        last = self._changes.last(rows)
        if last.num_rows < rows.num_rows and not self._changes.order_by:
            message = "two rows of a checkpoint have one key, and nothing says which is the later one"
            raise TargetError("KeyTwice", message, path="options.orderBy", advice="give `orderBy`")
        self._rows, self._bytes = [], 0
        if not end:
            self._check_order(last)
            held = last.slice(last.num_rows - 1)
            self._rows = held.to_batches()
            last = last.slice(0, last.num_rows - 1)
        elif self._greatest is not None:
            self._check_order(last)
        for batch in last.to_batches():
            self._apply(batch)
        if last.num_rows:
            self._greatest = last.slice(last.num_rows - 1).select(list(self._options.key))

    def _check_order(self, rows: pa.Table) -> None:
        """Where rows come in several parts: one that is out of order could leave a key twice."""
        keys = rows.select(list(self._options.key))
        if self._greatest is not None:
            keys = pa.concat_tables([self._greatest, keys])
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
        if not order.equals(pa.array(range(keys.num_rows), order.type)):
            raise TargetError("RowsOutOfOrder", "rows are not sorted by the key", path="options.key")

    def _apply(self, batch: pa.RecordBatch) -> None:
        deletes = self._changes.deletes(batch)
        content = batch.drop_columns(list(self._options.omit)) if self._options.omit else batch
        self._writer.delete(content)
        kept = content.filter(pc.invert(deletes))
        if kept.num_rows:
            self._writer.write(conform(kept, self._writer.schema))
