"""`paimon`: rows into tables of Apache Paimon, exactly once, one snapshot per checkpoint.

Here is the sink itself; `writer` writes data files, `committer` makes snapshots, `snapshots` reads what they prove.
Paimon's files are written by us, with pyarrow and fastavro: its own Python library needs other versions of both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    SinkWriter,
    WriterContext,
)
from sinkruntime.sinks.paimon import manifests, snapshots
from sinkruntime.sinks.paimon import schema as paimon_schema
from sinkruntime.sinks.paimon.committer import PaimonCommitter
from sinkruntime.sinks.paimon.options import Options, Write
from sinkruntime.sinks.paimon.snapshots import Consumer
from sinkruntime.sinks.paimon.table import Table
from sinkruntime.sinks.paimon.writer import AppendWriter, KeyedWriter
from sinkruntime.tables import schemas
from sinkruntime.tables.changes import Changes


class PaimonSink(Sink):
    """Rows of one Paimon table."""

    Options = Options
    summary = "Apache Paimon tables, append or with a primary key, in a local directory or on S3"

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        if not options.is_local:
            return options
        path = os.path.abspath(os.path.join(base, options.catalog.warehouse.removeprefix("file://")))
        return options.model_copy(update={"catalog": options.catalog.model_copy(update={"warehouse": path})})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        how = "a hard link" if options.is_local else "If-None-Match"
        why = f"the snapshot of a checkpoint names it, and appears by {how}, which never replaces one"
        return Offer(Guarantee.EXACTLY_ONCE, why)

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER if options.is_local else RunOn.OPERATOR

    def create_writer(self, context: WriterContext) -> SinkWriter:
        kind = AppendWriter if self.options.write is Write.APPEND else KeyedWriter
        return kind(self.options, context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return PaimonCommitter(self.options, self.identity)

    def distribution(self) -> Distribution | None:
        """All changes of a key in one task: their order is the order of their sequence numbers. With `orderBy` they
        must come in it: a key may be in several files of a checkpoint, and of these the one that came last counts."""
        options = self.options
        if not options.key:
            return None
        return Distribution(options.key, 0, (*options.key, *options.order_by) if options.order_by else ())

    def evidence(self) -> Evidence:
        with self._table() as table:
            found = snapshots.standing(table.files, self.identity)
            return Evidence(found.checkpoint, table.target(), f"{self.options.table_path}, snapshot {found.tip}")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        with self._table() as table:
            known, snapshot = snapshots.find(table.files, self.identity, checkpoint)
            if snapshot is not None:
                return f"snapshot {snapshot['id']} of {self.options.table} was made for checkpoint {checkpoint}"
            stands = snapshots.standing(table.files, self.identity).checkpoint
        if known or stands < checkpoint:
            return None
        return f"{self.options.table} stands at checkpoint {stands}; the snapshot of {checkpoint} has expired"

    def write_schema(self) -> pa.Schema | None:
        """The schema of the table; None: there is no table yet."""
        with self._table() as table:
            found = paimon_schema.latest_schema(table.files)
            return None if found is None else found.arrow

    def prepare_target(self, schema: pa.Schema) -> None:
        """Make the table if it is missing, check it against the rows, and keep our snapshots from expiring."""
        options = self.options
        changes = None if options.write is Write.APPEND else Changes(options.key, options.order_by, options.condition)
        if changes is not None:
            changes.check(schema)
        with self._table() as table:
            if options.create_table and paimon_schema.latest_schema(table.files) is None:
                made = paimon_schema.new_schema(schema, options, int(time.time() * 1000))
                table.files.create(paimon_schema.path_of(0), made)
            found = table.schema()
            left_out = set() if options.condition is None else {options.condition.column} - set(found.arrow.names)
            schemas.check(pa.schema([field for field in schema if field.name not in left_out]), found.arrow)
            self._keep(table)

    def _keep(self, table: Table) -> None:
        """Make our consumer file where it is missing."""
        files = table.files
        if snapshots.read_consumer(files, self.identity) is not None:
            return
        found = snapshots.standing(files, self.identity)
        base = 0 if self.options.write is Write.APPEND else _highest_sequence(table, found.snapshot) + 1
        # Ours may be below the newest; where none was found and older ones have expired, the ledger knows better.
        snapshots.write_consumer(files, self.identity, Consumer(found.own or found.tip + 1, base))

    @contextmanager
    def _table(self) -> Iterator[Table]:
        table = Table(self.options, self.identity)
        table.open()
        try:
            yield table
        finally:
            table.close()


def _highest_sequence(table: Table, snapshot: Mapping[str, Any] | None) -> int:
    """The highest sequence number that any file of the table has or had."""
    highest = -1
    if snapshot is None:
        return highest
    for key in ("baseManifestList", "deltaManifestList"):
        for meta in manifests.read_list(table.files, snapshot[key]):
            entries = manifests.read_manifest(table.files, meta["_FILE_NAME"])
            highest = max([highest, *(entry["_FILE"]["_MAX_SEQUENCE_NUMBER"] for entry in entries)])
    return highest


SINK = PaimonSink
