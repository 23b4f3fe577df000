"""`delta`: a Delta Lake table in a local directory or an S3 bucket, exactly once, without a JVM.

Here is the sink itself; `writer` stages, `committer` commits, `table` knows the table, `place` its files.
"""

from __future__ import annotations

import os
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
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.sinks.delta import table as tables
from sinkruntime.sinks.delta import target
from sinkruntime.sinks.delta.committer import DeltaCommitter
from sinkruntime.sinks.delta.maintenance import maintain
from sinkruntime.sinks.delta.options import Options, Write
from sinkruntime.sinks.delta.place import Place
from sinkruntime.sinks.delta.routed import DeltaTables, routed_writer
from sinkruntime.sinks.delta.upsert import ChangesWriter, MergeCommitter
from sinkruntime.sinks.delta.writer import DeltaWriter
from sinkruntime.tables import routing

#: What VACUUM spares by default, wherever it runs: files that no version names are removed when they are older.
VACUUM_RETENTION_SECONDS = 7 * 24 * 3600.0


class DeltaSink(Sink):
    """One Delta table, or with `${field}` in its path many."""

    Options = Options
    summary = "Delta Lake tables: append, complete, upsert; local or on S3"
    rejects_rows = True  # where `path` routes

    def __init__(self, options: Any, identity: SinkIdentity) -> None:
        super().__init__(options, identity)
        self._shape: tables.Shape | None = None  # travels to the executors

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        if not options.is_local:
            return options
        path = os.path.abspath(os.path.join(base, options.path.removeprefix("file://")))
        return options.model_copy(update={"path": path})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        how = "rows and evidence (an application transaction) are in one version of the table's log"
        if options.template is not None:
            why = f"in each table {how}, which only one writer can write"
            return Offer(Guarantee.EXACTLY_ONCE, why, routing.VISIBLE)
        return Offer(Guarantee.EXACTLY_ONCE, f"{how}, which only one writer can write")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        heavy = options.write is Write.UPSERT or options.maintenance.optimize_every is not None
        return RunOn.DRIVER if options.is_local or heavy else RunOn.OPERATOR

    @property
    def _many(self) -> DeltaTables | None:
        """Its tables, where `path` names many."""
        return None if self.options.template is None else DeltaTables(self.options, self.identity)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        if self.options.template is not None:
            return routed_writer(self.options, context)
        made = ChangesWriter if self.options.write is Write.UPSERT else DeltaWriter
        return made(self.options, context, self._find_shape)

    def _find_shape(self) -> tables.Shape:
        return self._shape or tables.shape_of(tables.load(Place(self.options)))

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        if (many := self._many) is not None:
            return routing.RoutedCommitter(many, self.identity)
        made = MergeCommitter if self.options.write is Write.UPSERT else DeltaCommitter
        return made(self.options, self.identity)

    def distribution(self) -> Distribution | None:
        """Changes of one key meet in one task, in order."""
        if self.options.write is not Write.UPSERT:
            return None
        key: tuple[str, ...] = self.options.key
        return Distribution(key, 0, key + self.options.order_by)

    def evidence(self) -> Evidence:
        if (many := self._many) is not None:
            return routing.evidence(many, many.book_name)
        place = Place(self.options)
        table = tables.find(place)
        if table is None:
            return Evidence(0, "", place.uri)
        proved = tables.evidence_of(place, table, self.identity)
        return Evidence(proved, str(table.metadata().id), f"{place.uri}, version {table.version()}")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        if (many := self._many) is not None:
            return routing.prove(many, many.book_name, checkpoint)
        evidence = self.evidence()
        if evidence.checkpoint < checkpoint:
            return None
        return f"transaction {tables.app_id(self.identity)} of {evidence.detail} stands at {evidence.checkpoint}"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table, or check that it takes these rows; add columns where `mergeSchema` says so."""
        if (many := self._many) is not None:
            many.prepare(schema)
            return
        self._shape = target.prepare(self.options, schema)

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Committable]]) -> None:
        if self.options.template is None:
            maintain(self.options, checkpoint)
            return
        for name in routing.names_of(committables):
            maintain(self.options.for_table(name), checkpoint)

    def staged_life_seconds(self) -> float | None:
        return None if self.options.write is Write.UPSERT else VACUUM_RETENTION_SECONDS


SINK = DeltaSink
