"""`console`: prints the first rows of each committed checkpoint. For people; it never fails a batch.

Its writers send the first rows along as their committables, so that what is printed was decided; the aggregated
committer, in the driver, prints one table per checkpoint. After a crash a checkpoint may be printed twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
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
from sinkruntime.spec.base import OptionsModel

#: As Spark's `show()` cuts cells.
CELL_WIDTH = 20
#: Cells are never longer, whatever `truncate` says: committables travel in the ledger.
CELL_WIDTH_MAX = 1_000
SUBTASKS_SHOWN_MAX = 8

log = logging.getLogger(__name__)


class Options(OptionsModel):
    """Options of the `console` sink."""

    rows: int = Field(default=20, ge=0, le=1_000, description="How many rows of each checkpoint are printed.")
    truncate: bool = Field(default=True, description="Cut cells to 20 characters.")


class ConsoleWriter(SinkWriter):
    """Keeps the first rows of a task, as text, and counts the others."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._columns = context.schema.names
        self._count = 0
        self._cells: list[list[str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        wanted = self._options.rows - len(self._cells)
        if wanted > 0:
            shown = batch.slice(0, wanted).to_pylist()
            self._cells += [[self._cell(row[name]) for name in self._columns] for row in shown]
        self._count += batch.num_rows

    def _cell(self, value: Any) -> str:
        text = "NULL" if value is None else str(value)
        width = CELL_WIDTH if self._options.truncate else CELL_WIDTH_MAX
        return text if len(text) <= width else f"{text[: width - 3]}..."

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        if not self._count:
            return None
        return {"columns": self._columns, "rows": self._cells, "count": self._count}


class ConsoleCommitter(SinkAggregatedCommitter):
    """Prints. There is nothing to probe, fence or remove: a second print does no harm."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        rows = [row for _, committable in ordered for row in committable["rows"]]
        return {
            "columns": ordered[0][1]["columns"] if ordered else [],
            "rows": rows[: self._options.rows],
            "counts": [[lineage.subtask, committable["count"]] for lineage, committable in ordered],
        }

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            request.evidence = False
            try:
                print(self._text(request), flush=True)
            except (OSError, ValueError) as error:  # a closed or broken standard output
                log.warning("sink %s: cannot print: %s", self._identity.sink, error)
            request.reply(Answer.COMMITTED)

    def _text(self, request: CommitRequest) -> str:
        shown = request.committable
        counts = shown["counts"]
        total = sum(count for _, count in counts)
        head = f"{self._identity.sink}: checkpoint {request.lineage.checkpoint}, {_rows(total)}"
        if len(counts) > SUBTASKS_SHOWN_MAX:
            head += f" from {len(counts)} tasks"
        elif counts:
            head += f" ({', '.join(f'task {subtask}: {count}' for subtask, count in counts)})"
        lines = [head, *table(shown["columns"], shown["rows"])] if total else [head]
        if shown["rows"] and total > len(shown["rows"]):
            lines.append(f"only the first {_rows(len(shown['rows']))}")
        return "\n".join(lines)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            request.reply(Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            request.reply(Answer.FENCED)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table as Spark's `show()` draws it."""
    if not rows:
        return []
    widths = [max(len(cells[index]) for cells in (columns, *rows)) for index in range(len(columns))]
    ruler = "+".join(["", *("-" * width for width in widths), ""])

    def line(cells: Sequence[str]) -> str:
        return "|".join(["", *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), ""])

    return [ruler, line(columns), ruler, *map(line, rows), ruler]


class ConsoleSink(Sink):
    """The standard output of the driver."""

    Options = Options
    summary = "prints the first rows of each checkpoint"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.AT_LEAST_ONCE, "nobody can prove what was printed: after a crash it is printed again")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return ConsoleWriter(self.options, context)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return ConsoleCommitter(self.options, self.identity)


SINK = ConsoleSink
