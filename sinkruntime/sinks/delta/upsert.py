"""`write: upsert`: executors stage the last change of each key, and the commit merges them into the table.

The rows to merge with are those that the checkpoint before has left, so the merge cannot be prepared while that one is
still pending: it runs in the committer, by `deltalake`, which streams the staged files, holds bounded memory, and
writes rows and evidence as one version. A merge that loses its version is made again, from the rows as they are then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.api import CommitRequest, Committable
from sinkruntime.errors import TargetError
from sinkruntime.sinks.delta.committer import DeltaCommitter
from sinkruntime.sinks.delta.table import app_id
from sinkruntime.sinks.delta.writer import DeltaWriter
from sinkruntime.tables.schemas import conform

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Marks the staged changes that delete.
DELETES = "_sinkjob_deletes"
#: Rows of the staged files that are on their way into a merge at once.
BATCH_ROWS = 8_192
#: Types whose statistics are the values themselves.
BOUNDED = ("byte", "short", "integer", "long", "string")


class ChangesWriter(DeltaWriter):
    """Stages changes. Rows come hashed and sorted by key (`Sink.distribution`), so it holds one row over at most."""

    def open(self) -> None:
        super().open()
        self._changes = self._options.changes
        self._columns = ()
        nullable = [field.with_nullable(True) for field in self._shape.schema]  # a delete needs its key alone
        self._row_schema = pa.schema(nullable)
        self._file_schema = pa.schema([*nullable, pa.field(DELETES, pa.bool_(), nullable=False)])
        self._held: pa.Table | None = None  # the last row of the greatest key so far: another change of it may follow

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._changes.check_keys(batch)
        rows = pa.Table.from_batches([batch])
        if self._held is not None:
            rows = pa.concat_tables([self._held, rows])
        last = self._changes.last(rows)
        if last.num_rows < rows.num_rows and not self._changes.order_by:
            message = "two rows of a checkpoint have one key, and nothing says which is the later one"
            raise TargetError("KeyTwice", message, path="options.orderBy", advice="give `orderBy`")
        self._check_order(last)
        self._stage_changes(last.slice(0, last.num_rows - 1))
        self._held = last.slice(last.num_rows - 1)

    def flush(self, end_of_input: bool) -> None:
        if end_of_input and self._held is not None:
            self._stage_changes(self._held)
            self._held = None
        super().flush(end_of_input)

    def _check_order(self, rows: pa.Table) -> None:
        """Without it a key could be staged twice, and be inserted twice."""
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self._changes.key])
        if not order.equals(pa.array(range(rows.num_rows), order.type)):
            raise TargetError("RowsOutOfOrder", "rows are not sorted by the key", path="options.key")

    def _stage_changes(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            deletes = self._changes.deletes(batch)
            content = conform(batch.drop_columns(list(self._options.omit)), self._row_schema, "options.path")
            conform(content.filter(pc.invert(deletes)), self._shape.schema, "options.path")  # refuses missing values
            self._stage(pa.RecordBatch.from_arrays([*content.columns, deletes], schema=self._file_schema))


class MergeCommitter(DeltaCommitter):
    """Commits staged changes."""

    def _write(self, request: CommitRequest, table: DeltaTable) -> None:
        before = table.version()
        properties = self._properties(request.lineage, [(app_id(self._identity), None)])
        with self._one_version(table, request.lineage.checkpoint):
            self._merge(request, table, properties)
            if table.version() == before:
                # Nothing changed, and a merge without changes writes no version: the evidence moves by itself.
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def _merge(self, request: CommitRequest, table: DeltaTable, properties: Any) -> None:
        items = request.committable["files"]
        key = self._options.key
        columns = {quoted(name): f"source.{quoted(name)}" for name in request.committable["columns"]}
        same = [f"target.{quoted(name)} = source.{quoted(name)}" for name in key]
        merge = table.merge(
            self._staged_rows([item["path"] for item in items]),
            " AND ".join([*same, *bounds(key, request.committable)]),
            source_alias="source",
            target_alias="target",
            streamed_exec=True,
            max_spill_size=self._options.merge_memory.bytes,
            commit_properties=properties,
        )
        deletes = f"source.{quoted(DELETES)}"
        merge = merge.when_matched_delete(deletes).when_matched_update(columns)
        merge.when_not_matched_insert(columns, f"NOT {deletes}").execute()

    def _staged_rows(self, paths: list[str]) -> pa.RecordBatchReader:
        """A stream of the staged changes, a few batches at a time."""
        import pyarrow.dataset

        full = [f"{self._place.root}/{path}" for path in paths]
        staged = pyarrow.dataset.dataset(full, format="parquet", filesystem=self._place.system)
        scanner = staged.scanner(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1, use_threads=False)
        return scanner.to_reader()

    def _remember(self, request: CommitRequest) -> None:
        """The table has its own copy of the rows now."""
        self._place.remove([item["path"] for item in request.committable["files"]])

    def clean(self, checkpoint: int, epoch: int) -> None:
        self._remove(checkpoint, epoch)


def quoted(name: str) -> str:
    """A column's name in SQL, as it is written."""
    return '"' + name.replace('"', '""') + '"'


def bounds(key: tuple[str, ...], committable: Committable) -> Iterator[str]:
    """Conditions on the target that every key of these files meets: by them files without such keys are skipped."""
    statistics = [json.loads(item["stats"]) for item in committable["files"]]
    for name in key:
        lows = [each["minValues"].get(name) for each in statistics]
        highs = [each["maxValues"].get(name) for each in statistics]
        if committable["columns"][name] in BOUNDED and None not in (*lows, *highs):
            yield f"target.{quoted(name)} BETWEEN {_literal(min(lows))} AND {_literal(max(highs))}"


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
