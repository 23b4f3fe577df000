"""`memory`: rows kept in this process, with every capability of the interface and faults on demand. For tests only.

The simulator and the contract suite run it: it is the reference for what a sink with writer state, both committers,
exact-predecessor evidence, fences, updates and expiry does. It never crosses a process border, so Spark cannot use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Committable,
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
from sinkruntime.sinks.memory.committers import MemoryAggregatedCommitter, MemoryCommitter
from sinkruntime.sinks.memory.session import Options, Session, Tier
from sinkruntime.sinks.memory.target import StagedKey


class MemoryWriter(SinkWriter):
    """Stages rows under its own key. Its state counts the rows of this subtask since the first checkpoint."""

    def __init__(self, options: Options, context: WriterContext, states: Sequence[Any]) -> None:
        self._options = options
        self._context = context
        at = context.lineage
        who = context.identity
        self._key = StagedKey(
            who.ledger_id, who.sink, at.checkpoint, at.epoch, at.subtask, at.attempt, context.unique
        )  # fmt: skip
        self._rows_before = sum(int(state["rows"]) for state in states)
        self._rows = 0
        self._session: Session | None = None
        self.watermark_ms: int | None = None
        self.notices: list[tuple[str, int]] = []

    def open(self) -> None:
        self._session = Session(self._options, self._context.identity)

    @property
    def session(self) -> Session:
        assert self._session is not None, "open comes first"
        return self._session

    def write(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        if rows:
            self.session.must("stage", self._key.unique, lambda: self.session.target.stage(self._key, rows))
            self._rows += len(rows)

    def write_watermark(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        life = self.remaining_life_seconds()
        expires = None if life is None else self._context.clock.wall() + life
        rows = self.session.must(
            "prepare", self._key.unique, lambda: self.session.target.prepare(self._key, expires)
        )  # fmt: skip
        return None if rows is None else {"key": self._key.as_json(), "rows": rows, "updates": 0}

    def remaining_life_seconds(self) -> float | None:
        return self._options.life.seconds if self._options.life else None

    def abort_prepare(self) -> None:
        self.session.must(
            "abort_prepare",
            self._key.unique,
            lambda: self.session.target.remove(lambda key: key == self._key, "abort_prepare"),
        )

    def snapshot_state(self, checkpoint: int) -> Sequence[Any]:
        return [{"rows": self._rows_before + self._rows}]

    def notify_committed(self, checkpoint: int) -> None:
        self.notices.append(("committed", checkpoint))

    def notify_aborted(self, checkpoint: int) -> None:
        self.notices.append(("aborted", checkpoint))


class MemorySink(Sink):
    """Rows in this process, for tests."""

    Options = Options
    summary = "for tests: keeps rows in this process, injects faults"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        whole = "a checkpoint" if options.tier is Tier.AGGREGATED else "each writer's rows"
        return Offer(Guarantee.EXACTLY_ONCE, f"publishes {whole} at once, with evidence in the same operation")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return MemoryWriter(self.options, context, ())

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter:
        return MemoryWriter(self.options, context, states)

    def create_committer(self) -> SinkCommitter | None:
        if self.options.tier is Tier.AGGREGATED:
            return None
        committer = MemoryCommitter(self.options, self.identity)
        committer.proves = self.options.tier is Tier.COMMITTER
        return committer

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        if self.options.tier is Tier.COMMITTER:
            return None
        committer = MemoryAggregatedCommitter(self.options, self.identity)
        committer.publishes = self.options.tier is Tier.AGGREGATED
        return committer

    def staged_life_seconds(self) -> float | None:
        return self.options.life.seconds if self.options.life else None

    def evidence(self) -> Evidence | None:
        session = Session(self.options, self.identity)
        last = session.must("evidence", "", lambda: session.target.evidence.get(session.owner, 0))
        return Evidence(last, session.target.identity, f"in memory, {len(session.target.history)} publications")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        session = Session(self.options, self.identity)
        mine = [at for at in session.target.history if (at.owner, at.checkpoint) == (session.owner, checkpoint)]
        return f"published in {len(mine)} operations" if mine else None


SINK = MemorySink
