"""Which of a batch's columns are staged, and ours beside them: the row's place, and whether it deletes.

Writers call it with Arrow batches; `prepare_target` asks which columns go into the table. Of the rows with one key the
last counts, which the database finds out by their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.sinks.jdbc.dialects import DELETES, ORDER
from sinkruntime.sinks.jdbc.options import Options
from sinkruntime.tables.changes import Changes, Condition


def changes_of(options: Options) -> Changes:
    """How rows change the table, with these options."""
    condition = Condition.parse(options.delete_when) if options.delete_when else None
    return Changes(options.key, delete_when=condition)


def written_columns(rows: pa.Schema, options: Options, there: Sequence[str] | None = None) -> list[str]:
    """The rows' columns that go into the table. The column of `deleteWhen` stays out of a table that lacks it;
    `there` are the table's columns, None where it is to be made."""
    delete = Condition.parse(options.delete_when).column if options.delete_when else None
    return [name for name in rows.names if there is None or name != delete or name in there]


def staged_batch(batch: pa.RecordBatch, names: Sequence[str], first: int, options: Options) -> pa.RecordBatch:
    """The batch with the columns `names`, ours made here; its first row is the writer's row `first`."""
    changes = changes_of(options)
    changes.check_keys(batch)
    columns: list[Any] = []
    for name in names:
        if name == ORDER:
            columns.append(pa.array(range(first, first + batch.num_rows), pa.int64()))
        elif name == DELETES:
            columns.append(changes.deletes(batch))
        else:
            columns.append(batch.column(name))
    return pa.RecordBatch.from_arrays(columns, names=list(names))
