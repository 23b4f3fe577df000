"""The evidence of the `jdbc` sink: one row for each (ledger id, sink), in a table beside the target.

The row says which checkpoint is the last one, up to which order commits of which checkpoints are fenced, and whether
the table was prepared once for the job. It moves in the transaction that moves the rows (`mode: staging`), or in one
of its own after all writers' (`mode: xa`). `prepare_target` makes the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkruntime.api import Answer, CommitRequest, Lineage, SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.sinks.jdbc.database import Database, Passing, Session
from sinkruntime.sinks.jdbc.names import EVIDENCE, WRITERS

_FIELDS = ("checkpoint", "fence_low", "fence_high", "fence_token", "fence_count", "is_prepared")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the evidence stands. Commits of the checkpoints `fence_low` to `fence_high` up to `fence` are fenced."""

    checkpoint: int = 0
    fence_low: int = 0
    fence_high: int = 0
    fence: tuple[int, int] = (0, 0)
    prepared: bool = False

    def fences(self, request: CommitRequest) -> bool:
        """Whether this commit must fail."""
        return self.fence_low <= request.lineage.checkpoint <= self.fence_high and request.order <= self.fence

    def fenced(self, request: CommitRequest) -> Standing:
        """After a fence. Checkpoints below the evidence need none, so that the range is that of one abort."""
        number = request.lineage.checkpoint
        live = self.fence_high > self.checkpoint
        low = min(self.fence_low, number) if live else number
        high = max(self.fence_high, number) if live else number
        return Standing(self.checkpoint, low, high, max(self.fence, request.order) if live else request.order)


class Evidence:
    """The row of one sink. Connects to nothing by itself: each method is given a session."""

    def __init__(self, database: Database, schema: str, identity: SinkIdentity) -> None:
        self._dialect = database.dialect
        self._identity = identity
        self._key = (identity.ledger_id, identity.sink)
        self.table = self._dialect.qualified(schema, EVIDENCE)
        self.writers = self._dialect.qualified(schema, WRITERS)

    def create(self, session: Session) -> None:
        """Make the tables of ours, where they are missing. Two jobs may do so at once: one of them tries again."""
        text, number = self._dialect.short_text, self._dialect.whole_number
        numbers = ", ".join(f"{name} {number} NOT NULL" for name in _FIELDS)
        statements = (
            f"CREATE TABLE IF NOT EXISTS {self.table} (ledger_id {text} NOT NULL, sink {text} NOT NULL, "
            f"job {text} NOT NULL, {numbers}, PRIMARY KEY (ledger_id, sink))",
            f"CREATE TABLE IF NOT EXISTS {self.writers} (name {text} NOT NULL, ledger_id {text} NOT NULL, "
            f"sink {text} NOT NULL, checkpoint {number} NOT NULL, epoch {number} NOT NULL, subtask {number} NOT NULL, "
            f"attempt {number} NOT NULL, PRIMARY KEY (name))",
        )
        for statement in statements:
            try:
                session.run(statement)
            except (Passing, TargetError):
                session.run(statement)

    def read(self, session: Session) -> Standing:
        """Where it stands; nothing is proved where the table or the row is missing."""
        try:
            return self._select(session, "") or Standing()
        except TargetError as error:
            if error.reason == "TableMissing":
                return Standing()
            raise

    def lock(self, session: Session) -> Standing:
        """Where it stands, and it stays there until the transaction ends."""
        head, tail = self._dialect.insert_absent
        marks = ", ".join("?" * (3 + len(_FIELDS)))
        names = ", ".join(("ledger_id", "sink", "job", *_FIELDS))
        values = (*self._key, self._identity.job[:255], *(0 for _ in _FIELDS))
        session.run(f"{head} {self.table} ({names}) VALUES ({marks}){tail}", *values)
        found = self._select(session, self._dialect.for_update)
        if found is None:
            raise Passing("EvidenceMoved", f"the row of this sink in {self.table} was removed just now")
        return found

    def move(self, session: Session, previous: int, checkpoint: int) -> None:
        """From the previous checkpoint exactly. Raises `Passing` where another one was first."""
        if session.change(
            f"UPDATE {self.table} SET checkpoint = ? WHERE ledger_id = ? AND sink = ? AND checkpoint = ?",
            checkpoint, *self._key, previous,
        ) != 1:  # fmt: skip
            raise Passing("EvidenceMoved", "another committer moved the evidence at the same time")

    def fence(self, session: Session, standing: Standing) -> None:
        """Write a fence."""
        session.run(
            f"UPDATE {self.table} SET fence_low = ?, fence_high = ?, fence_token = ?, fence_count = ? "
            "WHERE ledger_id = ? AND sink = ?",
            standing.fence_low, standing.fence_high, *standing.fence, *self._key,
        )  # fmt: skip

    def set_prepared(self, session: Session) -> None:
        """Note that what is done once per job is done."""
        session.run(f"UPDATE {self.table} SET is_prepared = 1 WHERE ledger_id = ? AND sink = ?", *self._key)

    def add_writer(self, session: Session, xid: str, at: Lineage) -> None:
        """The row that proves a writer's transaction; part of it."""
        values = (xid, *self._key, at.checkpoint, at.epoch, at.subtask, at.attempt)
        session.run(f"INSERT INTO {self.writers} VALUES ({', '.join('?' * len(values))})", *values)

    def has_writer(self, session: Session, xid: str) -> bool:
        """Whether a writer's transaction is committed, as long as the evidence has not moved past its checkpoint."""
        return bool(session.run(f"SELECT 1 FROM {self.writers} WHERE name = ?", xid))

    def writers_of(self, session: Session, checkpoint: int) -> set[str]:
        """The writers' transactions of a checkpoint that are committed."""
        sql = f"SELECT name FROM {self.writers} WHERE ledger_id = ? AND sink = ? AND checkpoint = ?"
        return {row[0] for row in session.run(sql, *self._key, checkpoint)}

    def prune_writers(self, session: Session, checkpoint: int) -> None:
        """Remove the rows of checkpoints up to this one, which the evidence itself proves from now on.

        One by one, by the key: MySQL would lock all that it passes, and wait for the next checkpoint's prepared rows.
        """
        sql = f"SELECT name FROM {self.writers} WHERE ledger_id = ? AND sink = ? AND checkpoint <= ?"
        for (name,) in session.run(sql, *self._key, checkpoint):
            session.run(f"DELETE FROM {self.writers} WHERE name = ?", name)

    def _select(self, session: Session, suffix: str) -> Standing | None:
        rows = session.run(
            f"SELECT {', '.join(_FIELDS)} FROM {self.table} WHERE ledger_id = ? AND sink = ?{suffix}", *self._key
        )
        if not rows:
            return None
        checkpoint, low, high, token, count, prepared = (int(value) for value in rows[0])
        return Standing(checkpoint, low, high, (token, count), bool(prepared))


def answered(request: CommitRequest, standing: Standing) -> bool:
    """Whether evidence or fence answer the request."""
    if answer_by_evidence(request, standing.checkpoint):
        return True
    if not standing.fences(request):
        return False
    request.reply(Answer.REFUSED, "Fenced", f"checkpoint {request.lineage.checkpoint} is fenced: an abort was begun")
    return True
