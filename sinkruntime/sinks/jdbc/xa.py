"""`mode: xa`: each writer loads straight into the table and prepares it; committers commit them in parallel.

The proof of a writer's commit is a row in `_sinkjob_writers` that is part of its transaction: "there is no such
transaction" alone never means committed. When all of a checkpoint's are committed, the evidence moves, as in
`staging`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    Lineage,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.jdbc.database import Column, Pool, Session, connected, named
from sinkruntime.sinks.jdbc.evidence import Evidence, answered
from sinkruntime.sinks.jdbc.names import Origin, origin_of
from sinkruntime.sinks.jdbc.prepared import Found, PreparedTransactions, check_limit, xid_of, xid_prefix
from sinkruntime.sinks.jdbc.refusals import Sieve, rejecting
from sinkruntime.sinks.jdbc.stage import Load, TableStage
from sinkruntime.sinks.jdbc.staging import answering


class XaWriter(SinkWriter):
    """One task's rows in one transaction, prepared."""

    def __init__(self, stage: TableStage, transactions: PreparedTransactions, context: WriterContext) -> None:
        self._stage = stage
        self._transactions = transactions
        self._context = context
        self._evidence = Evidence(stage.database, stage.schema, context.identity)
        self._xid = xid_of(context)
        self._session: Session | None = None
        self._load: Load | None = None
        self._columns: list[Column] = []
        self._reject = rejecting(context)
        self._may_be_prepared = False
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            with named(self._stage.database):
                self._write(batch, self._session or self._begin())

    def _write(self, batch: pa.RecordBatch, session: Session) -> None:
        if self._reject is not None:
            self._rows += Sieve(session, self._write_piece).take(batch, 0, self._reject)
            return
        if self._load is None:
            self._load = self._stage.begin_load_of(session, self._stage.target, self._columns)
        self._load.write(batch)
        self._rows += batch.num_rows

    def _write_piece(self, piece: pa.RecordBatch, first: int) -> None:
        assert self._session is not None
        self._stage.load_once(self._session, self._stage.target, self._columns, piece)

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        if self._session is None:
            return None
        with named(self._stage.database):
            if self._load is not None:
                self._load.finish()
            self._may_be_prepared = True
            self._transactions.prepare(self._session, self._xid)
        self._session.close()  # MySQL lets nobody else commit it before
        return {"xid": self._xid, "rows": self._rows}

    def abort_prepare(self) -> None:
        self.close()
        if not self._may_be_prepared:
            return  # it went with the connection
        with closing(connected(self._stage.database)) as session:
            roll_back(self._transactions, session, self._xid)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _begin(self) -> Session:
        session = self._session = connected(self._stage.database)
        limit = self._transactions.limit(session)
        check_limit(limit, self._context.lineage.subtasks, self._context.pending_max, self._transactions.setting)
        self._roll_back_former_attempts(session)
        self._columns = self._stage.target_columns(session, self._context.schema)
        self._transactions.begin(session, self._xid)
        if self._reject is not None:
            self._transactions.check_at_once(session)
        self._evidence.add_writer(session, self._xid, self._context.lineage)
        return session

    def _roll_back_former_attempts(self, session: Session) -> None:
        """They hold locks on what this one is to write."""
        prefix, at = xid_prefix(self._context.identity), self._context.lineage
        for found in self._transactions.found(session, prefix):
            other = origin_of(found.xid, prefix)
            same = other and (other.checkpoint, other.epoch, other.subtask) == (at.checkpoint, at.epoch, at.subtask)
            if other and same and other.attempt < at.attempt:
                roll_back(self._transactions, session, found.xid)


class XaCommitter(SinkCommitter):
    """Commits each prepared transaction, under a lock that fences share."""

    def __init__(self, stage: TableStage, transactions: PreparedTransactions, identity: SinkIdentity) -> None:
        self._transactions = transactions
        self._identity = identity
        self._prefix = xid_prefix(identity)
        self._seen: dict[str, float] = {}  # monotonic seconds, by xid
        self._pool = Pool(stage.database)
        self._evidence = Evidence(stage.database, stage.schema, identity)

    def close(self) -> None:
        self._pool.close()

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            xid = request.committable["xid"]
            with answering(request), self._pool.session() as session, self._transactions.alone(session, xid):
                if not answered(request, self._evidence.read(session)):
                    self._commit(request, session)

    def _commit(self, request: CommitRequest, session: Session) -> None:
        xid = request.committable["xid"]
        try:
            self._transactions.commit(session, xid)
        except TargetError as error:
            if error.reason != "ObjectMissing":
                raise
            request.reply(*self._without(session, xid, request.lineage.checkpoint))
        else:
            request.reply(Answer.COMMITTED)

    def _landed(self, session: Session, xid: str, checkpoint: int) -> bool:
        """The row first, the evidence after it: a former committer may move the evidence meanwhile, and then the row is
        gone."""
        return self._evidence.has_writer(session, xid) or checkpoint <= self._evidence.read(session).checkpoint

    def _without(self, session: Session, xid: str, checkpoint: int) -> tuple[Answer, str, str]:
        """What it means that the server knows no transaction of this name. Listed first, the proof looked for
        afterwards: one that is committed in between is seen."""
        if any(found.xid == xid for found in self._transactions.found(session, self._prefix)):
            return Answer.RETRY_LATER, "Busy", "the connection that prepared it is not closed yet"
        if self._landed(session, xid, checkpoint):
            return Answer.ALREADY_COMMITTED, "", ""
        message = f"{xid} is neither prepared nor committed: it was rolled back by somebody"
        return Answer.REFUSED, "CommittableLost", message

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with self._pool.session() as session:
            for request in requests:
                landed = self._landed(session, request.committable["xid"], request.lineage.checkpoint)
                request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            xid = request.committable["xid"]
            with answering(request, Answer.UNKNOWN), self._pool.session() as session:
                with self._transactions.alone(session, xid):
                    landed = self._evidence.has_writer(session, xid) or self._fence(session, request)
                request.reply(Answer.ALREADY_COMMITTED if landed else Answer.FENCED)

    def _fence(self, session: Session, request: CommitRequest) -> bool:
        """Whether the checkpoint is committed; else it is fenced now."""
        with session.transaction():
            standing = self._evidence.lock(session)
            if request.lineage.checkpoint <= standing.checkpoint:
                return True
            self._evidence.fence(session, standing.fenced(request))
        return False

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        with self._pool.session() as session:
            for request in requests:
                roll_back(self._transactions, session, request.committable["xid"])

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id == self._identity.ledger_id:
            self._remove(
                lambda at: garbage.undecided(at.checkpoint, at.epoch) or garbage.settled(at.checkpoint, at.epoch)
            )

    def clean(self, checkpoint: int, epoch: int) -> Mapping[str, float]:
        """Gauges what is prepared in the database and left, whoever's it is: it holds locks and room."""
        left = self._remove(lambda at: (at.checkpoint, at.epoch) == (checkpoint, epoch))
        return {"prepared_transactions": len(left), "prepared_oldest_seconds": max(self._ages(left), default=0.0)}

    def _ages(self, left: Sequence[Found]) -> list[float]:
        """As the server tells them, else since they were seen first: MySQL and MariaDB keep no time."""
        now = time.monotonic()
        self._seen = {found.xid: self._seen.get(found.xid, now) for found in left}
        return [now - self._seen[found.xid] if found.age_seconds is None else found.age_seconds for found in left]

    def _remove(self, condition: Callable[[Origin], bool]) -> list[Found]:
        """Roll those of this sink back for which it holds; those that are left."""
        left = []
        with self._pool.session() as session:
            for found in self._transactions.found(session):
                at = origin_of(found.xid, self._prefix)
                if at is not None and condition(at):
                    roll_back(self._transactions, session, found.xid)
                else:
                    left.append(found)
        return left


class XaEvidenceCommitter(SinkAggregatedCommitter):
    """Moves the evidence when all writers' transactions are committed, and removes their rows of proof."""

    def __init__(self, stage: TableStage, identity: SinkIdentity) -> None:
        self._post_sql = stage.options.post_sql
        self._pool = Pool(stage.database)
        self._evidence = Evidence(stage.database, stage.schema, identity)

    def close(self) -> None:
        self._pool.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        return {"xids": [[item["xid"], item["rows"]] for _, item in ordered]}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["xids"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request), self._pool.session() as session, session.transaction():
                self._move(request, session)

    def _move(self, request: CommitRequest, session: Session) -> None:
        if answered(request, self._evidence.lock(session)):
            return
        xids = {xid for xid, _ in request.committable["xids"]}
        missing = xids - self._evidence.writers_of(session, request.lineage.checkpoint)
        if missing:
            message = f"{len(missing)} writers' transactions are not committed, first {min(missing)}"
            request.reply(Answer.RETRY_LATER, "WritersNotCommitted", message)
            return
        for statement in self._post_sql:
            session.run(statement)
        self._evidence.move(session, request.previous, request.lineage.checkpoint)
        self._evidence.prune_writers(session, request.lineage.checkpoint)
        request.reply(Answer.COMMITTED)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with self._pool.session() as session:
            standing = self._evidence.read(session)
        for request in requests:
            landed = request.lineage.checkpoint <= standing.checkpoint
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """The writers' transactions are fenced one by one; without them the evidence does not move."""
        self.probe(requests)
        for request in requests:
            if request.answer is Answer.ABSENT:
                request.reply(Answer.FENCED)


def roll_back(transactions: PreparedTransactions, session: Session, xid: str) -> None:
    """Roll a prepared transaction back; one that is not there is no error. One that a session is still preparing is
    refused by the server, and asked for again with the next `recover`."""
    try:
        transactions.rollback(session, xid)
    except TargetError as error:
        if error.reason != "ObjectMissing":
            raise
