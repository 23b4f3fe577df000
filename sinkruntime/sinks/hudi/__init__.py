"""`hudi`: copy-on-write tables of Apache Hudi (table version 6), local or on S3, exactly once.

Here is the sink itself; `writer` and `upsert` stage, `committer` commits, `preparation` makes and checks the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Distribution,
    Evidence,
    Guarantee,
    Offer,
    RunOn,
    Sink,
    SinkAggregatedCommitter,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.sinks.hudi.committer import HudiCommitter
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.place import Table, table_at
from sinkruntime.sinks.hudi.preparation import prepare, read_target
from sinkruntime.sinks.hudi.timeline import Proof, Timeline, proof_of
from sinkruntime.sinks.hudi.upsert import UpsertWriter
from sinkruntime.sinks.hudi.writer import InsertWriter


class HudiSink(Sink):
    """One Hudi table."""

    Options = Options
    summary = "Apache Hudi copy-on-write tables (insert, upsert), local or on S3"

    def __init__(self, options: Any, identity: SinkIdentity) -> None:
        super().__init__(options, identity)
        self._root = os.path.abspath(options.path.removeprefix("file://")) if options.is_local else options.path

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        if not options.is_local:
            return options
        path = os.path.abspath(os.path.join(base, options.path.removeprefix("file://")))
        return options.model_copy(update={"path": path})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        how = "a hard link" if options.is_local else "a put with If-None-Match"
        why = f"a checkpoint is one commit of the table, and its instant is completed by {how}, once"
        return Offer(Guarantee.EXACTLY_ONCE, why)

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER if options.is_local else RunOn.OPERATOR

    @classmethod
    def pending_max(cls, options: Any) -> int | None:
        return 1 if options.is_upsert else None

    def table(self) -> Table:
        """The table, not yet connected."""
        return table_at(self.options, self._root, self.identity)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        kind = UpsertWriter if self.options.is_upsert else InsertWriter
        return kind(self.options, self.table(), context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return HudiCommitter(self.options, self.table(), self.identity)

    def distribution(self) -> Distribution | None:
        """Upserts: a task for each bucket, to which Spark hashes the record key."""
        options = self.options
        if not options.is_upsert:
            return None
        return Distribution(options.record_key, options.buckets, options.partition_by)

    def evidence(self) -> Evidence:
        proof, target = self._look()
        return Evidence(proof.checkpoint, target, f"{self._root}, instant {proof.instant or 'none'}")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        proof, _ = self._look()
        if proof.checkpoint < checkpoint:
            return None
        return f"the commit at instant {proof.instant} in {self._root} says checkpoint {proof.checkpoint}"

    def _look(self) -> tuple[Proof, str]:
        table = self.table()
        table.open()
        try:
            proof = proof_of(table, Timeline.read(table), self.identity)
            target = read_target(table)
        finally:
            table.close()
        return proof, "" if target is None else str(target["target"])

    def prepare_target(self, schema: pa.Schema) -> None:
        """Make the table where there is none; check that it can be written, and that the columns are its own."""
        table = self.table()
        table.open()
        try:
            prepare(table, self.options, schema)
        finally:
            table.close()

    def staged_life_seconds(self) -> float | None:
        lifetime = self.options.storage.upload_lifetime
        return None if self.options.is_local or lifetime is None else lifetime.seconds


SINK = HudiSink
