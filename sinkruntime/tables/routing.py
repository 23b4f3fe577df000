"""Commits a checkpoint whose rows were routed to many tables: one atomic commit in each, then one in the book.

Each table's commit has its own evidence in it, as if the sink had that table alone. The *book* is one more table of the
same catalog or folder, without rows: its evidence is the sink's, and it says where each table stands, so that one that
was rolled back, dropped or made anew is noticed. It is written after all tables of a checkpoint. Who dies between two
of these commits has left evidence in some tables: the next attempt finds it there and adds the rest.

Called by the coordinator, alone, through the sinks that route. What a format can do is behind `TableFormat`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    CommitterBase,
    Evidence,
    Lineage,
    SinkAggregatedCommitter,
    SinkIdentity,
)
from sinkruntime.errors import TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.storage.answers import answering

#: The book holds the tables that were written last; of others only their own evidence is asked.
BOOK_TABLES_MAX = 256
#: The property of the book that has them.
TABLES_PROPERTY = "sinkjob.tables"
#: Receipts of undecided checkpoints stay for the epoch after theirs: an old writer may still be at work.
RECEIPT_EPOCHS = 2

#: `Offer.visible` of a sink that routes.
VISIBLE = "table by table, each table's part of a checkpoint at once"

DONE = frozenset({Answer.COMMITTED, Answer.ALREADY_COMMITTED})
_BOOK_AND_TABLE_DISAGREE = frozenset({"TargetBehindLedger", "TargetAheadOfLedger"})

Origin = tuple[int, int]  # checkpoint, epoch


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a table stands: its own identity, and the last checkpoint of this sink that it proves."""

    table: str
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Book:
    """The last checkpoint that is in all of its tables, the book's own identity, and what it knows of tables."""

    checkpoint: int
    target: str
    tables: Mapping[str, Mark]

    @classmethod
    def read(cls, checkpoint: int, target: str, text: str | None) -> Book:
        """`text`: the property."""
        found = json.loads(text) if text else {}
        return cls(checkpoint, target, {name: Mark(table, number) for name, (table, number) in found.items()})


class TableCommitter(Protocol):
    """The committer of one table: a format's own aggregated committer, which can also look before it commits."""

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable: ...
    def look(self, request: CommitRequest) -> None:
        """Answer what keeps it from being committed, or that it is; changes nothing."""

    def commit(self, requests: Sequence[CommitRequest]) -> None: ...
    def fence(self, requests: Sequence[CommitRequest]) -> None: ...
    def abort(self, requests: Sequence[CommitRequest]) -> None: ...
    def recover(self, garbage: Garbage) -> None: ...
    def clean(self, checkpoint: int, epoch: int) -> None: ...


class TableFormat(Protocol):
    """What a table format gives. Tables go by the names that the template makes."""

    def book(self) -> Book | None:
        """The book as it is now; None: it is not there."""

    def book_committer(self) -> CommitterBase:
        """Commits `book_committable`s, with evidence, fence and predecessor as for a table."""

    def book_committable(self, book: Book, tables: str) -> Committable:
        """A commit without rows that sets `TABLES_PROPERTY`."""

    def committer(self, name: str) -> TableCommitter:
        """Of one table. Cheap; connects with the first question."""

    def identities(self, committable: Committable) -> set[str]:
        """Of the tables that a combined committable was staged for."""

    def mark(self, name: str) -> Mark | None:
        """Where a table stands; None: it is not there."""

    def origins(self) -> list[Origin]:
        """Checkpoints that have receipts."""

    def receipts(self, origin: Origin) -> list[str]:
        """The tables in which a checkpoint of an epoch has staged."""

    def forget(self, origin: Origin) -> None:
        """Remove its receipts. Repeatable."""

    def close(self) -> None: ...


class RoutedCommitter(SinkAggregatedCommitter):
    """Commits `{"tables": {name: committable}}`. `prove_every`: of empty checkpoints in succession each so many-th
    leaves evidence; 0: none."""

    def __init__(self, tables: TableFormat, identity: SinkIdentity, prove_every: int = 0) -> None:
        self._format = tables
        self._identity = identity
        self._prove_every = prove_every

    def close(self) -> None:
        self._format.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        by_name: dict[str, list[tuple[Lineage, Committable]]] = {}
        for lineage, committable in committables:
            for name, part in committable["tables"].items():
                by_name.setdefault(name, []).append((lineage, part))
        return {"tables": {name: self._format.committer(name).combine(by_name[name]) for name in sorted(by_name)}}

    # --- commit

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            with answering(request):
                self._commit(request)
            if request.answer not in DONE:
                break
        for request in requests:
            if request.answer is None:
                request.reply(Answer.RETRY_LATER, "Waiting", "an earlier checkpoint is not committed")

    def _commit(self, request: CommitRequest) -> None:
        if not request.committable["tables"] and self._needs_no_proof(request):
            request.evidence = False
            request.reply(Answer.COMMITTED)
            return
        book = self._book()
        if book.checkpoint >= request.lineage.checkpoint:
            request.reply(Answer.ALREADY_COMMITTED)
            return
        self._commit_on(book, request)
        refused = request.answer is Answer.REFUSED
        if refused and self._book().checkpoint >= request.lineage.checkpoint:  # a twin has done it since the look
            request.reply(Answer.ALREADY_COMMITTED)

    def _commit_on(self, book: Book, request: CommitRequest) -> None:
        asked, known = self._expected(book, request), book.tables
        looked = book.checkpoint == request.previous and self._look(asked, request)
        if not looked:
            if request.answer not in (None, Answer.REFUSED) or request.reason not in ("", *_BOOK_AND_TABLE_DISAGREE):
                return
            # The book, a table and the ledger disagree: look at all tables, as the start check does.
            request.answer, request.reason, request.message = None, "", ""
            marks = self._marks({*book.tables, *asked})
            if answer_by_evidence(request, standing(book, marks, request.lineage.checkpoint), "table"):
                return
            for name, one in asked.items():
                mark = marks[name]
                one.previous = mark.checkpoint if mark is not None else 0
            if request.previous < book.checkpoint:  # a person has accepted the loss: from now on it is as it is
                known = {name: mark for name in book.tables if (mark := marks[name]) is not None}
            if not self._look(asked, request):
                return
        for name, one in asked.items():
            one.answer = None
            self._format.committer(name).commit([one])
            if not self._passed_on(name, one, request):
                return
        self._write(book, known, asked, request)

    def _expected(self, book: Book, request: CommitRequest) -> dict[str, CommitRequest]:
        """The request of each table, on the predecessor that the book has; of a table that is not in it, on that which
        the table proves. Raises `TargetError` (`TableTwice`)."""
        names: dict[str, str] = {}
        for name, part in request.committable["tables"].items():
            for identity in sorted(self._format.identities(part)):
                other = names.setdefault(identity, name)
                if other != name:
                    message = f"`{other}` and `{name}` are one table ({identity})"
                    raise TargetError("TableTwice", message)
        asked = {}
        for name, part in request.committable["tables"].items():
            mark = book.tables.get(name) or self._format.mark(name)
            asked[name] = replace(request, committable=part, previous=mark.checkpoint if mark is not None else 0)
        return asked

    def _look(self, asked: Mapping[str, CommitRequest], request: CommitRequest) -> bool:
        """Whether every table would take its part, so that none is committed while another refuses."""
        for name, one in asked.items():
            one.answer = None
            self._format.committer(name).look(one)
            if not self._passed_on(name, one, request):
                return False
        return True

    def _passed_on(self, name: str, one: CommitRequest, request: CommitRequest) -> bool:
        """Whether a table has no objection; an objection becomes the answer of all."""
        if one.answer in (None, *DONE):
            return True
        assert one.answer is not None
        request.reply(one.answer, one.reason, f"table `{name}`: {one.message}")
        return False

    def _write(
        self, book: Book, known: Mapping[str, Mark], asked: Mapping[str, CommitRequest], request: CommitRequest
    ) -> None:
        number = request.lineage.checkpoint
        written = {
            name: Mark(min(self._format.identities(one.committable)), number) for name, one in asked.items()
        }  # fmt: skip
        newest = sorted(({**known, **written}).items(), key=lambda item: item[1].checkpoint, reverse=True)
        tables = {name: [mark.table, mark.checkpoint] for name, mark in newest[:BOOK_TABLES_MAX]}
        text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
        committable = self._format.book_committable(book, text)
        one = replace(request, committable=committable, previous=book.checkpoint, answer=None)
        self._format.book_committer().commit([one])
        request.reply(one.answer or Answer.COMMITTED, one.reason, one.message)

    def _needs_no_proof(self, request: CommitRequest) -> bool:
        return self._prove_every == 0 or request.lineage.checkpoint - request.previous < self._prove_every

    # --- probe, fence

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        """A checkpoint of which only some tables are written is absent: a commit adds the rest."""
        proved = self._book().checkpoint
        for request in requests:
            request.reply(Answer.ALREADY_COMMITTED if proved >= request.lineage.checkpoint else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """In every table and in the book. A checkpoint of which a table has its part is not fenced, but committed."""
        for request in requests:
            self._fence(request)

    def _fence(self, request: CommitRequest) -> None:
        number, names = request.lineage.checkpoint, sorted(request.committable["tables"])
        if self._book().checkpoint >= number:
            request.reply(Answer.ALREADY_COMMITTED)
            return
        marks = self._marks(names)
        landed = [name for name in names if (mark := marks[name]) is not None and mark.checkpoint >= number]
        parts = {name: replace(request, committable=request.committable["tables"][name], answer=None) for name in names}
        for name in [] if landed else names:
            if marks[name] is None:
                continue  # nothing lands in a table that is not there, nor in one of another identity
            one = parts[name]
            self._format.committer(name).fence([one])
            if one.answer is Answer.ALREADY_COMMITTED:
                landed.append(name)
            elif one.answer not in (None, Answer.FENCED):
                request.reply(one.answer, one.reason, f"table `{name}`: {one.message}")
                return
        if landed:
            self._complete(request, f"{len(landed)} of {len(names)} tables have checkpoint {number}, as `{landed[0]}`")
            return
        book = replace(request, committable=self._format.book_committable(self._book(), ""), answer=None)
        self._format.book_committer().fence([book])
        request.reply(book.answer or Answer.FENCED, book.reason, book.message)

    def _complete(self, request: CommitRequest, landed: str) -> None:
        """What a reader may have seen in part is not taken back: the rest is committed."""
        one = replace(request, answer=None)
        with answering(one):
            self._commit(one)
        if one.answer in DONE:
            request.reply(Answer.ALREADY_COMMITTED)
        else:
            request.reply(Answer.UNKNOWN, "PartlyLanded", f"{landed}; of the rest: {one.reason}, {one.message}")

    # --- clean-up

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            for name, part in request.committable["tables"].items():
                self._format.committer(name).abort([replace(request, committable=part)])

    def recover(self, garbage: Garbage) -> None:
        """By receipts: each writer leaves one for a table before it stages there, so no table is overlooked."""
        if garbage.ledger_id != self._identity.ledger_id:
            return
        undecided = [origin for origin in self._format.origins() if garbage.undecided(*origin)]
        for name in sorted({name for origin in undecided for name in self._format.receipts(origin)}):
            if self._format.mark(name) is not None:
                self._format.committer(name).recover(garbage)
        for origin in undecided:
            if origin[1] <= garbage.epoch - RECEIPT_EPOCHS:
                self._format.forget(origin)
        for origin in self._format.origins():  # a losing attempt can come after its checkpoint was cleaned
            if garbage.settled(*origin):
                self.clean(*origin)

    def clean(self, checkpoint: int, epoch: int) -> None:
        for name in self._format.receipts((checkpoint, epoch)):
            if self._format.mark(name) is not None:
                self._format.committer(name).clean(checkpoint, epoch)
        self._format.forget((checkpoint, epoch))

    def _book(self) -> Book:
        found = self._format.book()
        if found is None:
            message = "the table that says where all others stand is gone"
            raise TargetError("TargetReplaced", message)
        return found

    def _marks(self, names: Iterable[str]) -> dict[str, Mark | None]:
        return {name: self._format.mark(name) for name in sorted(names)}


def standing(book: Book, marks: Mapping[str, Mark | None], below: int | None = None) -> int:
    """The checkpoint that book and tables prove together. `marks` must have been read after the book.

    A table that is ahead of the book says that a checkpoint has begun to land (not counted from `below` on). One that
    lacks what the book knows of it says that the target has lost that checkpoint.
    """
    there = [mark.checkpoint for mark in marks.values() if mark is not None]
    ahead = [number for number in there if number > book.checkpoint and (below is None or number < below)]
    if ahead:
        return max(ahead)
    lost = [book.tables[name].checkpoint - 1 for name in behind(book, marks)]
    return min([book.checkpoint, *lost])


def behind(book: Book, marks: Mapping[str, Mark | None]) -> list[str]:
    """Tables that were dropped, made anew or rolled back: they lack what the book knows of them."""
    found = []
    for name, known in book.tables.items():
        if name not in marks:
            continue
        mark = marks[name]
        if mark is None or mark.table != known.table or mark.checkpoint < known.checkpoint:
            found.append(name)
    return found


def evidence(tables: TableFormat, where: str) -> Evidence:
    """What all tables and the book prove together. Tables that only have receipts are asked too: of a checkpoint that
    has begun to land they may be the only ones."""
    book = tables.book()
    if book is None:
        return Evidence(detail=f"{where} is not there yet")
    staged = {name for origin in tables.origins() for name in tables.receipts(origin)}
    marks = {name: tables.mark(name) for name in sorted({*book.tables, *staged})}
    lost = behind(book, marks)
    said = f"; {len(lost)} of them lack what they had, first `{lost[0]}`" if lost else ""
    detail = f"{where} has checkpoint {book.checkpoint} and {len(book.tables)} tables{said}"
    return Evidence(standing(book, marks), book.target, detail)


def prove(tables: TableFormat, where: str, checkpoint: int) -> str | None:
    """A sentence if the book has the checkpoint."""
    book = tables.book()
    if book is None or book.checkpoint < checkpoint:
        return None
    return f"{where} has checkpoint {book.checkpoint}, which it is given after all tables of a checkpoint"


def names_of(committables: Sequence[tuple[Lineage, Any]]) -> list[str]:
    """The tables that a checkpoint was written to."""
    return sorted({name for _, committable in committables for name in committable["tables"]})
