"""Dead letters: rows that a sink's target turns down go to another sink of the job, in the same task and decision.

`columns.py` lays them out, a task's `WriterContext.reject` comes here, `passes.py` bounds them over all tasks. So of
each checkpoint the rows in are those written and those in the dead-letter sink. It never drops a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.json_rows import json_rows, told_rows

if TYPE_CHECKING:
    from sinkruntime.api import Counter

#: What a writer calls with rows that its target turns down for good: rows of its schema, a reason, a sentence. They
#: go to the sink of `deadLetter`, in the same decision. Raises `TargetError` without one, and beyond its `maxRows`.
Reject = Callable[[pa.RecordBatch, str, str], None]

#: The counter of a sink's refused rows.
REFUSED_ROWS = "refused_rows"

_FIELDS: list[pa.Field[Any]] = [
    pa.field("sink", pa.string(), nullable=False),  # whose target turned it down
    pa.field("checkpoint", pa.int64(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("row", pa.string(), nullable=False),  # as JSON, with the columns that the sink was given
]
#: What a dead-letter sink's writers are given, whatever the job's columns are.
DEAD_LETTER_SCHEMA = pa.schema(_FIELDS)


def reject_nothing(rows: pa.RecordBatch, reason: str, message: str) -> None:
    """The `Reject` of a sink without `deadLetter`."""
    said = f"the target turns down {rows.num_rows} row(s): {message}"
    raise TargetError(reason, said, advice="mend the rows in a transform, or send such rows to a `deadLetter` sink")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where a sink's refused rows go, and how many at most of a checkpoint."""

    sink: str
    rows_max: int


@dataclass(slots=True)
class Refusals:
    """The `Reject` of one writer: hands the rows on to `write`, the dead-letter sink's writer in the same task."""

    sink: str
    checkpoint: int
    to: DeadLetters
    count: Counter
    write: Callable[[pa.RecordBatch], None]
    rows: int = 0

    def __call__(self, rows: pa.RecordBatch, reason: str, message: str) -> None:
        """See `Reject`."""
        self.rows += rows.num_rows
        self.count(REFUSED_ROWS, rows.num_rows)
        check_bound(self.to, self.rows, f"{reason}: {message}")
        same: list[list[Any]] = [[value] * rows.num_rows for value in (self.sink, self.checkpoint, reason, message)]
        try:
            texts = json_rows(rows, rows.schema)
        except (pa.ArrowException, ValueError, OverflowError):  # it may have been refused for that
            texts = told_rows(rows)
        columns = [*same, texts]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, DEAD_LETTER_SCHEMA, strict=True)]
        self.write(pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA))


def check_bound(to: DeadLetters, rows: int, last: str = "") -> None:
    """Raises `TargetError` where more rows of a checkpoint are refused than `maxRows`."""
    if rows > to.rows_max:
        said = f"the target turns down more than {to.rows_max} rows of this checkpoint" + (f"; {last}" if last else "")
        advice = f"mend the rows in a transform, or raise deadLetter.maxRows ({to.rows_max})"
        raise TargetError("TooManyRefused", said, path="deadLetter.maxRows", advice=advice)


def refused_rows(counters: Mapping[str, float]) -> int:
    """How many rows a sink's writers have refused."""
    return int(counters.get(REFUSED_ROWS, 0))
