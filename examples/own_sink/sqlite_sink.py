"""An exactly-once sink into a table of SQLite, as an author outside of sinkjob would write it.

Writers stage Arrow files beside the database; the aggregated committer moves a whole checkpoint into the table in one
transaction, which also moves the fence row from the previous checkpoint to this one. The fence row is the evidence.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
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
from sinkruntime.protocol.garbage import Garbage

#: A row per (ledger, sink): the last checkpoint that is in the table, and the order up to which commits are fenced off.
TABLES = """
CREATE TABLE IF NOT EXISTS sinkjob_fence (owner TEXT PRIMARY KEY, last INTEGER, token INTEGER, round INTEGER);
CREATE TABLE IF NOT EXISTS sinkjob_target (id TEXT NOT NULL);
INSERT INTO sinkjob_target SELECT hex(randomblob(16)) WHERE NOT EXISTS (SELECT * FROM sinkjob_target);
"""
PUT_ROW = "INSERT OR REPLACE INTO sinkjob_fence VALUES (?, ?, ?, ?)"


class Options(BaseModel):
    """What a manifest may say under `options`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Path = Field(description="The database's file; made if missing.")
    table: str = Field(pattern=r"^[A-Za-z_]\w*$", description="The table; made if missing.")

    @property
    def staging(self) -> Path:
        """Staged files lie here; no reader of the table sees them."""
        return self.database.with_name(self.database.name + ".staging")


def owner(identity: SinkIdentity) -> str:
    """Everything in the target is keyed by ledger and sink, so no other job ever answers for this one."""
    return f"{identity.ledger_id}.{identity.sink}"


class SqliteWriter(SinkWriter):
    """Stages one task's rows in one Arrow file."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._path = options.staging / owner(context.identity) / f"{context.stem}.arrow"
        self._schema = context.schema
        self._writer: pa.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the batch to the file."""
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pa.ipc.new_stream(str(self._path), self._schema)
        self._writer.write_batch(batch)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        """The file's path, once the file is whole and on disk; None where there was no row."""
        if self._writer is None:
            return None
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        return str(self._path)

    def abort_prepare(self) -> None:
        """Take the file back."""
        self._path.unlink(missing_ok=True)


class SqliteCommitter(SinkAggregatedCommitter):
    """Moves whole checkpoints into the table."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._owner = owner(identity)

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        """The paths of all writers' files."""
        return sorted(path for _, path in committables)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """One transaction each: the fence row moves from `previous` to this checkpoint, and the rows go in."""
        for request in requests:
            with closing(_connect(self._options)) as database, database:  # commits, or rolls back
                database.execute("BEGIN IMMEDIATE")
                row = _row(database, self._owner)
                if not self._may_commit(request, row):
                    continue
                for path in request.committable:
                    self._insert(database, path)
                database.execute(PUT_ROW, (self._owner, request.lineage.checkpoint, row.token, row.round))
            for path in request.committable:
                Path(path).unlink(missing_ok=True)

    def _may_commit(self, request: CommitRequest, row: Row) -> bool:
        """Answers what the fence row alone decides: it must stand exactly at the predecessor."""
        lost = [path for path in request.committable if not Path(path).exists()]
        if row.last >= request.lineage.checkpoint:
            request.reply(Answer.ALREADY_COMMITTED)
        elif row.last != request.previous:
            request.reply(Answer.REFUSED, "TargetBehindLedger", f"the fence row stands at {row.last}")
        elif request.order <= (row.token, row.round):
            request.reply(Answer.REFUSED, "Fenced", "an abort was begun")
        elif lost:
            request.reply(Answer.REFUSED, "CommittableLost", f"{lost[0]} is gone")
        else:
            return True
        return False

    def _insert(self, database: sqlite3.Connection, path: str) -> None:
        with pa.OSFile(path, "rb") as file, pa.ipc.open_stream(file) as reader:
            names = ", ".join(f'"{name}"' for name in reader.schema.names)
            marks = ", ".join("?" for _ in reader.schema.names)
            database.execute(f'CREATE TABLE IF NOT EXISTS "{self._options.table}" ({names})')
            for batch in reader:
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                database.executemany(f'INSERT INTO "{self._options.table}" ({names}) VALUES ({marks})', rows)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        """The fence row tells."""
        with closing(_connect(self._options)) as database:
            last = _row(database, self._owner).last
        for request in requests:
            request.reply(Answer.ALREADY_COMMITTED if last >= request.lineage.checkpoint else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """Every commit up to this order fails from now on."""
        for request in requests:
            with closing(_connect(self._options)) as database, database:
                database.execute("BEGIN IMMEDIATE")
                row = _row(database, self._owner)
                if row.last >= request.lineage.checkpoint:
                    request.reply(Answer.ALREADY_COMMITTED)
                    continue
                order = max(request.order, (row.token, row.round))
                database.execute(PUT_ROW, (self._owner, row.last, *order))
                request.reply(Answer.FENCED)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        """The abort is on record: the staged files may go."""
        for request in requests:
            for path in request.committable:
                Path(path).unlink(missing_ok=True)

    def clean(self, checkpoint: int, epoch: int) -> None:
        """The checkpoint is in the table: its staged files, and those of losing attempts, may go."""
        self._remove(lambda number, at: (number, at) == (checkpoint, epoch))

    def recover(self, garbage: Garbage) -> None:
        """Staged files of checkpoints that were never decided, or are over."""
        self._remove(lambda number, at: garbage.undecided(number, at) or garbage.settled(number, at))

    def _remove(self, condemned: Any) -> None:
        for path in (self._options.staging / self._owner).glob("*.arrow"):
            number, epoch, *_ = path.name.split("-")  # see `WriterContext.stem`
            if condemned(int(number), int(epoch)):
                path.unlink(missing_ok=True)


class SqliteSink(Sink):
    """The factory."""

    Options = Options
    summary = "an example: a table of SQLite, exactly-once"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        """Rows and evidence are in one transaction."""
        return Offer(Guarantee.EXACTLY_ONCE, "rows and fence row are written in one transaction")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        """The database is a local file, which only the driver's machine has."""
        return RunOn.DRIVER

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """See `Sink`."""
        return SqliteWriter(self.options, context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        """See `Sink`."""
        return SqliteCommitter(self.options, self.identity)

    def evidence(self) -> Evidence:
        """The fence row, and the database's own identity: one that is made anew has another."""
        with closing(_connect(self.options)) as database:
            target = str(database.execute("SELECT id FROM sinkjob_target").fetchone()[0])
            return Evidence(_row(database, owner(self.identity)).last, target, str(self.options.database))

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        """What the fence row says of one checkpoint."""
        last = self.evidence().checkpoint
        return f"the fence row is at {last}" if last >= checkpoint else None


class Row(NamedTuple):
    """A fence row."""

    last: int = 0
    token: int = -1
    round: int = -1


def _connect(options: Options) -> sqlite3.Connection:
    options.database.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(options.database, timeout=30.0, isolation_level=None)
    database.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
    return database


def _row(database: sqlite3.Connection, owner_name: str) -> Row:
    query = "SELECT last, token, round FROM sinkjob_fence WHERE owner = ?"
    return Row(*(database.execute(query, (owner_name,)).fetchone() or ()))
