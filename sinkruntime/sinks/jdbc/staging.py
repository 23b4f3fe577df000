"""`mode: staging`: writers that load rows into tables of their own, and the committer that moves them.

One transaction of the committer moves all writers' rows and the evidence, from the previous checkpoint exactly; so a
commit is there whole or not at all, whoever repeats it and however late. What a database does differently is behind
`Database` and `Loader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    Lineage,
    SinkAggregatedCommitter,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.jdbc.database import AnswerLost, Passing, Pool, Session, named
from sinkruntime.sinks.jdbc.evidence import Evidence, answered
from sinkruntime.sinks.jdbc.names import Origin, origin_of, owner_prefix, staged_name
from sinkruntime.sinks.jdbc.options import Options
from sinkruntime.sinks.jdbc.refusals import rejecting
from sinkruntime.sinks.jdbc.stage import Loader, Stage


class StagingWriter(SinkWriter):
    """Loads one task's rows into a staging table, which is there for others when it is prepared."""

    def __init__(self, stage: Stage, options: Options, context: WriterContext) -> None:
        self._stage = stage
        self._options = options
        self._context = context
        self._name = staged_name(context)
        self._loader: Loader | None = None
        self._rows = self._seen = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with named(self._stage.database):
            if self._loader is None:
                self._loader = self._stage.loader(self._name, self._context.schema, rejecting(self._context))
            self._rows += self._loader.write(batch, self._seen)
        self._seen += batch.num_rows

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        if self._loader is None:
            return None
        with named(self._stage.database):
            self._loader.finish()
        return {"stage": self._name, "rows": self._rows}

    def abort_prepare(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.discard()

    def close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class StagingCommitter(SinkAggregatedCommitter):
    """Moves a checkpoint's rows and the evidence in one transaction."""

    def __init__(self, stage: Stage, options: Options, identity: SinkIdentity) -> None:
        self._stage = stage
        self._options = options
        self._prefix = owner_prefix(identity)
        self._identity = identity
        self._pool = Pool(stage.database)
        self._evidence = Evidence(stage.database, stage.schema, identity)

    def close(self) -> None:
        self._pool.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        return {"stages": [[item["stage"], item["rows"]] for _, item in ordered]}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["stages"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request), self._pool.session() as session:
                self._commit(request, session)

    def _commit(self, request: CommitRequest, session: Session) -> None:
        names = [name for name, _ in request.committable["stages"]]
        with session.transaction():
            if answered(request, self._evidence.lock(session)):
                return
            if lost := self._stage.missing(session, names):
                message = f"{len(lost)} staging tables are not there any more, first {lost[0]}"
                request.reply(Answer.REFUSED, "CommittableLost", message)
                return
            self._stage.move(session, names)
            for statement in self._options.post_sql:
                session.run(statement)
            self._evidence.move(session, request.previous, request.lineage.checkpoint)
            self._stage.drop_inside(session, names)
        request.reply(Answer.COMMITTED)
        with suppress(Passing, TargetError):  # they are removed again by `clean`
            self._stage.drop_after(session, names)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with self._pool.session() as session:
            standing = self._evidence.read(session)
        for request in requests:
            landed = request.lineage.checkpoint <= standing.checkpoint
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            with answering(request, Answer.UNKNOWN), self._pool.session() as session:
                with session.transaction():
                    standing = self._evidence.lock(session)
                    landed = request.lineage.checkpoint <= standing.checkpoint
                    if not landed:
                        self._evidence.fence(session, standing.fenced(request))
                request.reply(Answer.ALREADY_COMMITTED if landed else Answer.FENCED)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        with self._pool.session() as session:
            for request in requests:
                self._stage.drop(session, [name for name, _ in request.committable["stages"]])

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id == self._identity.ledger_id:
            self._remove(
                lambda at: garbage.undecided(at.checkpoint, at.epoch) or garbage.settled(at.checkpoint, at.epoch)
            )

    def clean(self, checkpoint: int, epoch: int) -> None:
        self._remove(lambda at: (at.checkpoint, at.epoch) == (checkpoint, epoch))

    def _remove(self, condition: Callable[[Origin], bool]) -> None:
        with self._pool.session() as session:
            found = self._stage.staged(session, self._prefix)
            chosen = [name for name in found if (at := origin_of(name, self._prefix)) is not None and condition(at)]
            self._stage.drop(session, chosen)


@contextmanager
def answering(request: CommitRequest, passing: Answer = Answer.RETRY_LATER) -> Iterator[None]:
    """What goes wrong inside becomes the request's answer; `passing` where it has not happened."""
    try:
        yield
    except AnswerLost as error:
        request.reply(Answer.UNKNOWN, error.reason, error.message)
    except Passing as error:
        request.reply(passing, error.reason, error.message)
    except TargetError as error:
        request.reply(Answer.REFUSED, error.reason, error.message)


def rows_of(committable: Any) -> int:
    """How many rows a committable stands for."""
    return int(committable["rows"])
