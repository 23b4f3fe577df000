"""A small sink for Spark tests: each task's rows as JSON lines in a staged file, which the committer links into place.

It also tells what its writers were given (`context` in the committable) and can fail on demand. `read` is the
independent reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Distribution,
    Guarantee,
    Offer,
    Sink,
    SinkCommitter,
    SinkIdentity,
    SinkWriter,
    StageContext,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.protocol.garbage import Garbage

LEDGER_ID = "11111111-1111-4111-8111-111111111111"


class Options(BaseModel):
    """`fail_once` and `fail` are tasks that fail (by subtask) after their first batch, once or always."""

    path: Path
    distribution: Distribution | None = None
    fail_once: tuple[int, ...] = ()
    fail: tuple[int, ...] = ()
    staged_by_spark: bool = False
    stateful: bool = False
    refuse: tuple[int, ...] = ()  # ids of rows that the target turns down


class LinesWriter(SinkWriter):
    """Stages `staged/<stem>.jsonl`."""

    def __init__(self, options: Options, context: WriterContext, states: Sequence[Any]) -> None:
        self.options, self.context = options, context
        self.total = sum(states)
        self.rows = 0
        self.watermark_ms: int | None = None
        self.path = options.path / "staged" / f"{context.stem}.jsonl"

    def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("x", encoding="utf-8")

    def write(self, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(self.context.schema)
        assert batch.num_rows
        batch = self._accepted(batch)
        self.rows += batch.num_rows
        self.context.count("rows", batch.num_rows)
        for row in batch.to_pylist():
            self.file.write(json.dumps(row, default=str) + "\n")
        self._fail_on_demand()

    def _accepted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.options.refuse:
            return batch
        refused = pa.array([row["id"] in self.options.refuse for row in batch.to_pylist()])
        if refused.true_count:
            self.context.reject(batch.filter(refused), "Unwanted", "not this id")
        return batch.filter(pa.array([not value for value in refused.to_pylist()]))

    def _fail_on_demand(self) -> None:
        subtask = self.context.lineage.subtask
        if subtask in self.options.fail:
            raise TargetError("TooBig", f"subtask {subtask} will not have it", path="spec.sinks[0].options.path")
        mark = self.options.path / f"failed-{subtask}"
        if subtask in self.options.fail_once and not mark.exists():
            mark.write_text("")
            raise OSError("a passing fault")

    def write_watermark(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms

    def prepare_commit(self, checkpoint: int) -> Any:
        self.file.flush()
        os.fsync(self.file.fileno())
        lineage = self.context.lineage
        return {
            "file": self.path.name,
            "subtask": lineage.subtask,
            "subtasks": lineage.subtasks,
            "attempt": lineage.attempt,
            "watermark_ms": self.watermark_ms,
            "rows": self.rows,
        }

    def snapshot_state(self, checkpoint: int) -> Sequence[Any]:
        return [self.total + self.rows] if self.options.stateful else ()

    def abort_prepare(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.file.close()


class LinesCommitter(SinkCommitter):
    """Links each staged file to its final name: the link is the evidence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        (self.path / "out").mkdir(parents=True, exist_ok=True)
        for request in requests:
            staged, final = self._names(request)
            if final.exists():
                request.reply(Answer.ALREADY_COMMITTED)
            elif not staged.exists():
                request.reply(Answer.REFUSED, "CommittableLost", f"{staged} is gone")
            else:
                os.link(staged, final)
                staged.unlink()

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            landed = self._names(request)[1].exists()
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def recover(self, garbage: Garbage) -> None:
        for staged in (self.path / "staged").glob("*.jsonl"):
            number, epoch = map(int, staged.name.split("-")[:2])
            if garbage.undecided(number, epoch) or garbage.settled(number, epoch):
                staged.unlink()

    def _names(self, request: CommitRequest) -> tuple[Path, Path]:
        name = request.committable["file"]
        return self.path / "staged" / name, self.path / "out" / name


class LinesSink(Sink):
    """See the module."""

    Options = Options
    summary = "JSON lines, for tests"
    rejects_rows = True

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.EXACTLY_ONCE, "a link is made once")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return LinesWriter(self.options, context, ())

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter:
        return LinesWriter(self.options, context, states)

    def create_committer(self) -> SinkCommitter | None:
        return LinesCommitter(self.options.path)

    def distribution(self) -> Distribution | None:
        wish: Distribution | None = self.options.distribution
        return wish

    def can_stage(self) -> bool:
        return bool(self.options.staged_by_spark)

    def stage(self, df: Any, context: StageContext) -> Sequence[Any] | None:
        folder = self.options.path / "staged" / context.stem
        df.write.json(str(folder))
        return [{"file": f"{context.stem}/{part.name}"} for part in sorted(folder.glob("part-*"))]


def lines_sink(path: Path, name: str = "lines", **options: Any) -> LinesSink:
    """A sink that keeps its files under `path`."""
    return LinesSink(Options(path=path, **options), SinkIdentity(LEDGER_ID, name, "default/test"))


def read(path: Path) -> list[dict[str, Any]]:
    """All visible rows, in no order."""
    files = sorted((path / "out").glob("*.jsonl")) if (path / "out").exists() else []
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
