"""`iceberg`: rows into an Apache Iceberg table, one snapshot per checkpoint, exactly once.

Here is the sink itself; `writer` stages data files, `committer` makes snapshots of them, `evidence` reads what the
table proves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Committable,
    Distribution,
    Evidence,
    Guarantee,
    Lineage,
    Offer,
    RunOn,
    Sink,
    SinkAggregatedCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, evidence, target
from sinkruntime.sinks.iceberg.changes import ChangesWriter
from sinkruntime.sinks.iceberg.committer import IcebergCommitter
from sinkruntime.sinks.iceberg.distribution import spread
from sinkruntime.sinks.iceberg.maintenance import maintain
from sinkruntime.sinks.iceberg.options import DistributionMode, Options
from sinkruntime.sinks.iceberg.routed import IcebergTables, maintain_routed, routed_writer
from sinkruntime.sinks.iceberg.writer import IcebergWriter
from sinkruntime.tables import routing


class IcebergSink(Sink):
    """One table, or with `${field}` in its name many."""

    Options = Options
    summary = "Apache Iceberg tables, by REST and SQL catalogs"
    rejects_rows = True  # where `table` routes

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        return options.model_copy(update={"catalog": options.catalog.located(base)})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        why = "a checkpoint is one snapshot, which the catalog accepts only on the snapshot that was looked at"
        if options.template is not None:
            return Offer(Guarantee.EXACTLY_ONCE, f"in each table {why}; its summary proves it", routing.VISIBLE)
        return Offer(Guarantee.EXACTLY_ONCE, f"{why}; its summary proves it")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        rewrites = options.maintenance.rewrite_every is not None  # reads rows: no work for a process of all jobs
        return RunOn.DRIVER if options.catalog.is_local or rewrites else RunOn.OPERATOR

    @property
    def _many(self) -> IcebergTables | None:
        """Its tables, where `table` names many."""
        return None if self.options.template is None else IcebergTables(self.options, self.identity)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        if self.options.template is not None:
            return routed_writer(self.options, context)
        return (ChangesWriter if self.options.keyed else IcebergWriter)(self.options, context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        if (many := self._many) is not None:
            return routing.RoutedCommitter(many, self.identity, self.options.empty_checkpoints)
        return IcebergCommitter(self.options, self.identity)

    def distribution(self) -> Distribution | None:
        """Rows of one key meet in one task, in order; else as `distributionMode` says."""
        if self.options.keyed:
            return Distribution(self.options.key, 0, self.options.key + self.options.order_by)
        if self.options.distribution_mode is DistributionMode.NONE:
            return None
        return spread(self.options, None if self.options.template is not None else self._table())

    def inspect(self) -> Mapping[str, Any]:
        if (many := self._many) is not None:
            with contextlib.closing(many):
                book = many.book()
            return {} if book is None else {"table": book.target}
        table = self._table()
        return {} if table is None else {"table": str(table.metadata.table_uuid)}

    def evidence(self) -> Evidence:
        if (many := self._many) is not None:
            with contextlib.closing(many):
                return routing.evidence(many, f"table {many.book_name}")
        table = self._table()
        if table is None:
            return Evidence(detail=f"table {self.options.table} is not there yet")
        marker = evidence.read_marker(table.metadata, self.identity, self.options.branch)
        detail = f"table {self.options.table}, branch {self.options.branch}, snapshot {marker.snapshot_id or 'none'}"
        return Evidence(marker.checkpoint, str(table.metadata.table_uuid), detail)

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        if (many := self._many) is not None:
            with contextlib.closing(many):
                return routing.prove(many, f"table {many.book_name}", checkpoint)
        table = self._table()
        return table and evidence.prove(table.metadata, self.identity, self.options.branch, checkpoint)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create or evolve the table where that is wanted; compare its columns with those of the rows."""
        if (many := self._many) is not None:
            with contextlib.closing(many):
                many.prepare(schema)
            return
        target.prepare(self.options, schema)

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Committable]]) -> None:
        if self.options.template is not None:
            maintain_routed(self.options, self.identity, checkpoint, routing.names_of(committables))
            return
        maintain(self.options, self.identity, checkpoint)

    def _table(self) -> Any:
        """The table; None: it is missing, and will be created."""
        try:
            with catalog.opened(self.options) as opened:
                return catalog.load_table(opened, self.options, self.options.table)
        except TargetError as error:
            if error.reason in ("TableMissing", "CatalogMissing") and self.options.create_table:
                return None
            raise


SINK = IcebergSink
