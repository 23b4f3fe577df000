"""What tests of sinks that route share: committers that die at one step, races, refused rows, the contract.

Used by `routing_faults`, `routing_rows` and the tests of both formats. Holds the contract, and no other test.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, CommitRequest, Lineage, Sink
from sinkruntime.tables.routing import RoutedCommitter
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, OTHER_LEDGER, Row, commit, stage

#: Three tables of two tasks; a fourth commit is the book's.
ROWS: tuple[list[Row], list[Row]] = ([(1, "one"), (2, "two"), (1, "uno")], [(3, "three"), (2, "due")])
ALL = Counter([*ROWS[0], *ROWS[1]])
STEPS = 4
DONE = {Answer.COMMITTED, Answer.ALREADY_COMMITTED}


class Killed(BaseException):
    """The process dies here: nobody catches it, nothing more runs."""


class Flaky:
    """A format whose commits are counted; `act(step, is_before)` is called around each, and may raise or answer."""

    def __init__(self, tables: Any, act: Callable[[int, bool, CommitRequest], None]) -> None:
        self._tables = tables
        self._act = act
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def committer(self, name: str) -> Any:
        return self._around(self._tables.committer(name))

    def book_committer(self) -> Any:
        return self._around(self._tables.book_committer())

    def _around(self, committer: Any) -> Any:
        flaky = self

        class Around:
            def __getattr__(self, name: str) -> Any:
                return getattr(committer, name)

            def commit(self, requests: Sequence[CommitRequest]) -> None:
                flaky._step += 1
                step = flaky._step
                flaky._act(step, True, requests[0])
                committer.commit(requests)
                flaky._act(step, False, requests[0])

        return Around()


def flaky_commit(sink: Any, staged: harness.Staged, act: Callable[[int, bool, CommitRequest], None]) -> CommitRequest:
    """Commit with `act` between committer and tables."""
    (request,) = harness.requests_for(sink, staged).aggregated
    committer = RoutedCommitter(Flaky(sink._many, act), sink.identity)
    try:
        committer.commit([request])
    finally:
        committer.close()
    return request


def rejecting(sink: Sink, rows: list[tuple[str, str, int]]) -> Callable[..., Any]:
    """`harness.open_writer`, where refused rows are noted: (reason, message, how many)."""

    def reject(refused: pa.RecordBatch, reason: str, message: str) -> None:
        rows.append((reason, message, refused.num_rows))

    def opened(schema: pa.Schema = harness.SCHEMA) -> Any:
        lineage = Lineage(1, 1, 0, 1, 0)
        plain = harness.writer_context(sink, lineage, schema)
        context = replace(plain, reject=reject)
        writer = sink.create_writer(context)
        writer.open()
        return writer

    return opened


class RoutingHooks:
    """What only the format knows: fill them, give `prefix` (a name without its id) and a fixture `place`."""

    prefix: ClassVar[str]
    option: ClassVar[str]  # that has the fields

    @pytest.fixture
    def sink(self, place: Any) -> Any:
        return place.sink()

    def make_anew(self, place: Any, name: str) -> None:
        raise NotImplementedError

    def roll_back(self, place: Any, name: str) -> None:
        """Take the newest commit with rows away."""
        raise NotImplementedError

    def forget_views(self) -> None:
        """Drop what writers of this process remember of tables."""
        raise NotImplementedError

    def lose_one(self, place: Any) -> None:
        """Remove a staged file of the last table."""
        raise NotImplementedError

    def make_misfit(self, place: Any, name: str) -> None:
        """A table in which `name` is a whole number."""
        raise NotImplementedError

    def by_name(self, place: Any, **more: Any) -> Any:
        """A sink that routes by `name`."""
        raise NotImplementedError

    def keyed(self, place: Any) -> Any:
        """One that upserts by `id` and routes by `at`."""
        raise NotImplementedError

    def columns(self, place: Any, name: str) -> list[str]:
        raise NotImplementedError

    def changed_rows(self, place: Any, name: str) -> list[Row]:
        raise NotImplementedError


class RoutedContract(SinkContract):
    """The contract, where what one committable and one target are means many tables."""

    golden_version = 1

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        staged: set[str] = place.staged()
        return staged

    def lose_staged(self, place: Any) -> None:
        place.lose_staged()

    def recreate(self, place: Any) -> None:
        place.drop_all()

    def test_state_and_commit_info_are_small(self, sink: Sink) -> None:
        rows: list[Row] = [(number % 10, "x" * 100) for number in range(harness.BATCH_ROWS)]
        ((_, committable),) = stage(sink, 1, rows).items
        assert committable is not None
        assert len(committable["tables"]) == 10
        assert len(sink.committable_serializer.serialize(committable)) < 6_000

    def test_target_keeps_its_identity_until_it_is_made_anew(self, sink: Sink, place: Any) -> None:
        """The book's, which is the sink's own: new tables do not change it, another ledger has another."""
        commit(sink, stage(sink, 1, [(1, "a")]))
        identity = self.identity_of(sink)
        assert identity not in ("", self.identity_of(self.make_sink(place, OTHER_LEDGER)))
        commit(sink, stage(sink, 2, [(2, "b")]), 1)
        sink.prepare_target(harness.SCHEMA)
        assert identity == self.identity_of(sink)
        self.recreate(place)
        sink.prepare_target(harness.SCHEMA)
        assert self.identity_of(sink) not in ("", identity)


_CHANGES: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "at": pa.string()}
CHANGES = pa.schema(_CHANGES)


def stage_changes(sink: Any, checkpoint: int, *tasks: list[tuple[int, str, str]]) -> harness.Staged:
    """One writer per task; rows must come sorted by id, and ids must not lie in two tasks."""
    items = []
    for subtask, rows in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, CHANGES))
        writer.open()
        for id_, name, at in rows:  # a batch each, so that a table is closed early and opened again
            writer.write(pa.RecordBatch.from_pylist([{"id": id_, "name": name, "at": at}], schema=CHANGES))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return harness.Staged(checkpoint, 1, tuple(items))


def race(sink: Any, place: Any, rounds: int) -> None:
    """Two coordinators commit one checkpoint at once, again and again; each table has each checkpoint once."""
    for checkpoint in range(1, rounds + 1):
        staged = stage(sink, checkpoint, [(1, str(checkpoint)), (2, str(checkpoint))])
        start = threading.Barrier(2)
        answers: list[Answer] = []

        threads = [threading.Thread(target=racer, args=(sink, staged, start, answers)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert set(answers) <= DONE, answers
        assert len(answers) == 2
        harness.clean(sink, checkpoint)
    numbers = [str(number) for number in range(1, rounds + 1)]
    for name in place.names():
        assert place.checkpoints(name) == numbers
    assert place.rows() == Counter([(table, number) for number in numbers for table in (1, 2)])


def racer(sink: Any, staged: harness.Staged, start: threading.Barrier, answers: list[Answer]) -> None:
    """Commit until it is there, as a coordinator would."""
    start.wait(timeout=30)
    for _ in range(20):
        made = commit(sink, staged, staged.checkpoint - 1, may_have_landed=True)
        if made.answers() <= DONE:
            break
    answers.extend(made.answers())


def die_between_tables(sink: Any, staged: harness.Staged) -> None:
    """In a process of its own: commit, and be killed when the second table has its part."""

    def die(at: int, before: bool, request: CommitRequest) -> None:
        if (at, before) == (2, False):
            os.kill(os.getpid(), signal.SIGKILL)

    flaky_commit(sink, staged, die)
