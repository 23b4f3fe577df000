"""`hive`: tables of Parquet or ORC files that a Hive metastore keeps, exactly once.

Here is the sink itself; `writer` stages, `committer` commits, `metastore` talks to the metastore.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Evidence,
    Guarantee,
    Offer,
    RunOn,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hive.columns import lowered
from sinkruntime.sinks.hive.committer import HiveAggregatedCommitter, HiveCommitter
from sinkruntime.sinks.hive.metastore import Metastore, connected
from sinkruntime.sinks.hive.options import Options
from sinkruntime.sinks.hive.table import local_path, locate, read, to_create
from sinkruntime.sinks.hive.writer import HiveWriter
from sinkruntime.storage.marker import create_target, read_marker, read_target
from sinkruntime.tables import schemas


class HiveSink(Sink):
    """One table."""

    Options = Options
    summary = "Hive tables (parquet, orc), partitioned or not, local or on S3"

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        if not options.is_local:
            return options
        path = os.path.abspath(os.path.join(base, local_path(options.location)))
        return options.model_copy(update={"location": path})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        how = (
            "a file is committed by a hard link, or by completing its upload with If-None-Match, which never replaces "
            "one; a new partition appears whole, files of one that is there one by one"
        )
        return Offer(Guarantee.EXACTLY_ONCE, how)

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER if options.is_local else RunOn.OPERATOR

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return HiveWriter(self.options, context)

    def create_committer(self) -> SinkCommitter:
        return HiveCommitter(self.options, self.identity)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return HiveAggregatedCommitter(self.options, self.identity)

    def evidence(self) -> Evidence:
        with connected(self.options.metastore) as metastore:
            place = locate(metastore, self.options)
        if place is None:
            return Evidence(detail=f"there is no table {self.options.full_name}")
        with place.storage(self.options, self.identity) as storage:
            marker, _ = read_marker(storage, self.identity)
            target = read_target(storage)
        # Both the directory and the metastore's record must be the same: either may be made anew without the other.
        identity = "" if target is None else f"{target['target']}@{place.identity}"
        return Evidence(marker.checkpoint, identity, place.location)

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        evidence = self.evidence()
        if evidence.checkpoint < checkpoint:
            return None
        return f"the marker in {evidence.detail} stands at checkpoint {evidence.checkpoint}"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table where that is wanted; check that it can be written and that the rows fit; name it."""
        with connected(self.options.metastore) as metastore:
            if self.options.create_table:
                self._create(metastore, schema)
            table = read(metastore, self.options)
        schemas.check(lowered(schema), table.rows)
        with table.place.storage(self.options, self.identity) as storage:
            create_target(storage, str(uuid.uuid4()), "{}")

    def _create(self, metastore: Metastore, schema: pa.Schema) -> None:
        options = self.options
        if metastore.table(options.database, options.table_name) is not None:
            return
        table = to_create(options, schema)
        if not metastore.has_database(options.database):
            message = f"there is no database {options.database}"
            raise TargetError("DatabaseMissing", message, path="options.table", advice="create it first")
        metastore.create_table(table)

    def staged_life_seconds(self) -> float | None:
        lifetime = self.options.storage.upload_lifetime
        return None if self.options.is_local or lifetime is None else lifetime.seconds


SINK = HiveSink
