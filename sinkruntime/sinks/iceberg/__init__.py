"""`iceberg`: rows into an Apache Iceberg table, one snapshot per checkpoint, exactly once.

Here is the sink itself; `writer` stages data files, `committer` makes snapshots of them, `evidence` reads what the
table proves.
"""

from __future__ import annotations

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
from sinkruntime.sinks.iceberg.writer import IcebergWriter


class IcebergSink(Sink):
    """One table."""

    Options = Options
    summary = "Apache Iceberg tables, by REST and SQL catalogs"

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        return options.model_copy(update={"catalog": options.catalog.located(base)})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        why = "a checkpoint is one snapshot, which the catalog accepts only on the snapshot that was looked at"
        return Offer(Guarantee.EXACTLY_ONCE, f"{why}; its summary proves it")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        rewrites = options.maintenance.rewrite_every is not None  # reads rows: no work for a process of all jobs
        return RunOn.DRIVER if options.catalog.is_local or rewrites else RunOn.OPERATOR

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return (ChangesWriter if self.options.keyed else IcebergWriter)(self.options, context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return IcebergCommitter(self.options, self.identity)

    def distribution(self) -> Distribution | None:
        """Rows of one key meet in one task, in order; else as `distributionMode` says."""
        if self.options.keyed:
            return Distribution(self.options.key, 0, self.options.key + self.options.order_by)
        if self.options.distribution_mode is DistributionMode.NONE:
            return None
        return spread(self.options, self._table())

    def inspect(self) -> Mapping[str, Any]:
        table = self._table()
        return {} if table is None else {"table": str(table.metadata.table_uuid)}

    def evidence(self) -> Evidence:
        table = self._table()
        if table is None:
            return Evidence(detail=f"table {self.options.table} is not there yet")
        marker = evidence.read_marker(table.metadata, self.identity, self.options.branch)
        detail = f"table {self.options.table}, branch {self.options.branch}, snapshot {marker.snapshot_id or 'none'}"
        return Evidence(marker.checkpoint, str(table.metadata.table_uuid), detail)

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        table = self._table()
        return table and evidence.prove(table.metadata, self.identity, self.options.branch, checkpoint)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create or evolve the table where that is wanted; compare its columns with those of the rows."""
        target.prepare(self.options, schema)

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Committable]]) -> None:
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
