"""Drives a sink as the runtime does, one step at a time, for the contract suite and the sinks' own tests.

Everything passes through the sink's serializers, and committers are made anew for each call, unless a test asks
for one that lives on. Holds no assertion.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    CommitterBase,
    Lineage,
    Sink,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.protocol.garbage import Garbage

_FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string()}
SCHEMA = pa.schema(_FIELDS)
LEDGER = "5a0f2d1e-7c57-4b8e-9d3f-0c5a1e6b7d42"
OTHER_LEDGER = "e1d7c3b2-1f0a-4c6d-8b9e-2a4f6c8e0d13"

BATCH_ROWS = 1_000

#: One row: id, name.
Row = tuple[int, str | None]
_orders = count(1)


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until a test moves it."""

    now_seconds: float = 1_700_000_000.0

    def wall(self) -> float:
        return self.now_seconds

    def monotonic(self) -> float:
        return self.now_seconds


@dataclass(slots=True)
class Counters:
    """Counts what a sink counts."""

    values: dict[str, float] = field(default_factory=dict)

    def __call__(self, name: str, amount: float = 1) -> None:
        self.values[name] = self.values.get(name, 0) + amount


@dataclass(frozen=True, slots=True)
class Staged:
    """What the writers of one checkpoint prepared; None where a writer staged nothing."""

    checkpoint: int
    epoch: int
    items: tuple[tuple[Lineage, Committable | None], ...]

    def present(self) -> list[tuple[Lineage, Committable]]:
        return [(lineage, committable) for lineage, committable in self.items if committable is not None]


def identity(ledger_id: str = LEDGER, sink: str = "lake") -> SinkIdentity:
    return SinkIdentity(ledger_id, sink, "data/flights")


def batch_of(rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number, "name": name} for number, name in rows], schema=schema)


def writer_context(sink: Sink, lineage: Lineage, schema: pa.Schema = SCHEMA) -> WriterContext:
    return WriterContext(sink.identity, lineage, uuid.uuid4().hex[:12], schema, Counters(), ManualClock())


def open_writer(
    sink: Sink, checkpoint: int = 1, *, epoch: int = 1, subtask: int = 0, subtasks: int = 1, attempt: int = 0
) -> SinkWriter:
    """A writer of `SCHEMA`, opened."""
    writer = sink.create_writer(writer_context(sink, Lineage(checkpoint, epoch, subtask, subtasks, attempt)))
    writer.open()
    return writer


def finish(sink: Sink, writer: SinkWriter, checkpoint: int) -> Committable | None:
    """Flush, prepare, close; the committable as it comes out of the ledger."""
    writer.flush(end_of_input=True)
    committable = writer.prepare_commit(checkpoint)
    writer.snapshot_state(checkpoint)
    writer.close()
    return through_serializer(sink, committable)


def through_serializer(sink: Sink, committable: Committable | None) -> Committable | None:
    if committable is None:
        return None
    serializer = sink.committable_serializer
    return serializer.deserialize(serializer.version, serializer.serialize(committable))


def stage(sink: Sink, checkpoint: int, *tasks: Sequence[Row], epoch: int = 1, attempt: int = 0) -> Staged:
    """One writer per task, each with its rows."""
    items = []
    for subtask, rows in enumerate(tasks):
        lineage = Lineage(checkpoint, epoch, subtask, len(tasks), attempt)
        writer = open_writer(
            sink, checkpoint, epoch=epoch, subtask=subtask, subtasks=len(tasks), attempt=attempt
        )  # fmt: skip
        for start in range(0, len(rows), BATCH_ROWS):
            writer.write(batch_of(rows[start : start + BATCH_ROWS]))
        items.append((lineage, finish(sink, writer, checkpoint)))
    return Staged(checkpoint, epoch, tuple(items))


def next_order() -> tuple[int, int]:
    """Above all orders before."""
    return 1, next(_orders)


@dataclass(slots=True)
class Round:
    """The requests of one pass over a sink's committers, answered. Empty lists: the sink has no such tier."""

    writers: list[CommitRequest]
    aggregated: list[CommitRequest]

    @property
    def all(self) -> list[CommitRequest]:
        return [*self.writers, *self.aggregated]

    def answers(self, unanswered: Answer = Answer.COMMITTED) -> set[Answer]:
        return {request.answer or unanswered for request in self.all}

    def reasons(self) -> set[str]:
        return {request.reason for request in self.all if request.reason}


def requests_for(
    sink: Sink,
    staged: Staged,
    previous: int = 0,
    *,
    order: tuple[int, int] | None = None,
    may_have_landed: bool = False,
) -> Round:
    """The requests that a coordinator would make of a checkpoint's committables."""

    def request(lineage: Lineage, committable: Committable) -> CommitRequest:
        return CommitRequest(
            committable, lineage, previous, may_have_landed=may_have_landed, order=order or next_order()
        )  # fmt: skip

    present = sink.pre_commit(staged.present())
    has_committer = sink.create_committer() is not None
    aggregated = sink.create_aggregated_committer()
    whole = Lineage(staged.checkpoint, staged.epoch, 0, 1, 0)
    return Round(
        [request(lineage, committable) for lineage, committable in present] if has_committer else [],
        [request(whole, aggregated.combine(present))] if aggregated else [],
    )


def with_committers(sink: Sink, action: Callable[[CommitterBase, bool], object]) -> None:
    """Run `action(committer, whether it is the aggregated one)` on fresh committers of each tier, in order."""
    for committer, whole in ((sink.create_committer(), False), (sink.create_aggregated_committer(), True)):
        if committer is not None:
            committer.open()
            try:
                action(committer, whole)
            finally:
                committer.close()


def commit(
    sink: Sink,
    staged: Staged,
    previous: int = 0,
    *,
    order: tuple[int, int] | None = None,
    may_have_landed: bool = False,
) -> Round:
    """Commit a checkpoint: the committer first; the aggregated one if all of the first is committed."""
    made = requests_for(sink, staged, previous, order=order, may_have_landed=may_have_landed)

    def action(committer: CommitterBase, whole: bool) -> None:
        if whole and not all(done(request) for request in made.writers):
            made.aggregated.clear()
            return
        committer.commit(made.aggregated if whole else made.writers)

    with_committers(sink, action)
    return made


def done(request: CommitRequest) -> bool:
    return request.answer in (None, Answer.COMMITTED, Answer.ALREADY_COMMITTED)


def ask(sink: Sink, what: str, staged: Staged, previous: int = 0, *, order: tuple[int, int] | None = None) -> Round:
    """Call `probe`, `fence`, `abort` or `restore_commit` of each tier with a checkpoint's requests."""
    made = requests_for(sink, staged, previous, order=order, may_have_landed=True)

    def action(committer: CommitterBase, whole: bool) -> None:
        method = getattr(committer, what, None)
        if method is not None:
            method(made.aggregated if whole else made.writers)

    with_committers(sink, action)
    return made


def recover(sink: Sink, garbage: Garbage) -> None:
    with_committers(sink, lambda committer, whole: committer.recover(garbage))


def clean(sink: Sink, checkpoint: int, epoch: int = 1) -> None:
    with_committers(sink, lambda committer, whole: committer.clean(checkpoint, epoch))


def garbage(epoch: int, firsts: Sequence[int], unsettled: Iterable[int] = (), ledger_id: str = LEDGER) -> Garbage:
    """`firsts[e - 1]` is the first number that epoch e could decide, up to `firsts[e]` (exclusive)."""
    return Garbage(ledger_id, epoch, tuple(firsts), frozenset(unsettled))


def in_another_process(sink: Sink, staged: Staged, previous: int) -> Mapping[str, Any]:
    """Commit in a fresh process; its answers and reasons."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        return pool.apply(_commit_there, (sink, staged, previous))


def _commit_there(sink: Sink, staged: Staged, previous: int) -> Mapping[str, Any]:
    made = commit(sink, staged, previous, may_have_landed=True)
    return {"answers": made.answers(), "reasons": made.reasons()}
