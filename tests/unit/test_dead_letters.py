"""What a task does with rows that a sink's target turns down. No Spark is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Sink, SinkIdentity, SinkWriter, WriterContext
from sinkruntime.dead_letters import DEAD_LETTER_SCHEMA, DeadLetters, Refusals, check_bound
from sinkruntime.environment import SystemClock
from sinkruntime.errors import TargetError
from sinkruntime.spark.failure import TaskFailure, translate
from sinkruntime.spark.task import Feed, WriterTask
from tests.unit.spark.test_task import LINEAGE, SCHEMA, Journal, JournalSink, batch


class PickyWriter(SinkWriter):
    """Turns down odd numbers: the first at once, the others when it prepares."""

    def __init__(self, context: WriterContext) -> None:
        self.context = context
        self.late: list[pa.RecordBatch] = []
        self.rejected = False

    def write(self, batch: pa.RecordBatch) -> None:
        odd = batch.filter(pa.array([row["x"] % 2 == 1 for row in batch.to_pylist()]))
        if not odd.num_rows:
            return
        if self.rejected:
            self.late.append(odd)
        else:
            self.context.reject(odd, "Odd", "it takes even numbers")
        self.rejected = True

    def prepare_commit(self, checkpoint: int) -> Any:
        for rows in self.late:
            self.context.reject(rows, "OddToo", "it takes even numbers")
        return {}


class PickySink(JournalSink):
    """See `PickyWriter`."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return PickyWriter(context)


class KeepingWriter(SinkWriter):
    """Keeps what it is given in its committable, and fails at the 51st row."""

    def __init__(self, context: WriterContext) -> None:
        assert context.schema.equals(DEAD_LETTER_SCHEMA)
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(DEAD_LETTER_SCHEMA)
        self.rows += batch.to_pylist()
        if len(self.rows) > 50:
            raise OSError("the disk is full")

    def prepare_commit(self, checkpoint: int) -> Any:
        return self.rows


class KeepingSink(JournalSink):
    """See `KeepingWriter`."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return KeepingWriter(context)


def sink(kind: type[Sink], name: str) -> Sink:
    return kind(Journal(), SinkIdentity("l", name, "n/j"))


def feeds(rows_max: int = 10) -> tuple[Feed, ...]:
    """`picky`, whose refused rows go to `rejects`."""
    return (
        Feed(sink(PickySink, "picky"), SCHEMA, dead_letters=DeadLetters("rejects", rows_max)),
        Feed(sink(KeepingSink, "rejects"), DEAD_LETTER_SCHEMA, index=1, takes_refused=True),
    )


def stage(found: tuple[Feed, ...], batches: Sequence[pa.RecordBatch]) -> dict[str, dict[str, Any]]:
    """The results by sink."""
    rows = WriterTask(found, 4, 2, SystemClock()).stage(batches, LINEAGE).to_pylist()
    return {row["sink"]: row for row in rows}


def test_refused_rows_are_the_other_sinks_until_the_last_writer_has_prepared() -> None:
    found = stage(feeds(), [batch(1, 2, 3), batch(4, 5)])
    assert (found["picky"]["rows"], found["rejects"]["rows"]) == (2, 3), "in is written and dead"
    assert found["picky"]["seen"] == found["rejects"]["seen"] == 5
    letters = json.loads(found["rejects"]["committable"])
    assert [(row["reason"], row["row"]) for row in letters] == [
        ("Odd", '{"x":1}'), ("Odd", '{"x":3}'), ("OddToo", '{"x":5}')
    ]  # fmt: skip
    assert all((row["sink"], row["checkpoint"]) == ("picky", 4) for row in letters)
    assert dict(found["picky"]["counters"]) == {"refused_rows": 3}


def test_without_dead_letters_a_refused_row_fails_the_task_and_says_where_it_could_go() -> None:
    with pytest.raises(TaskFailure) as caught:
        stage((replace(feeds()[0], dead_letters=None),), [batch(1)])
    error = translate(caught.value, "staging")
    assert isinstance(error, TargetError)
    assert (error.reason, error.path) == ("Odd", "spec.sinks[0]")
    assert "1 row(s): it takes even numbers" in error.message
    assert "deadLetter" in error.advice


def test_more_refused_rows_than_agreed_fail_the_task() -> None:
    with pytest.raises(TaskFailure) as caught:
        stage(feeds(rows_max=2), [batch(1, 3, 5)])
    error = translate(caught.value, "staging")
    assert isinstance(error, TargetError)
    assert (error.reason, error.path) == ("TooManyRefused", "spec.sinks[0].deadLetter.maxRows")
    assert "more than 2 rows" in error.message


def test_a_dead_letter_sink_that_fails_is_named_itself() -> None:
    with pytest.raises(TaskFailure) as caught:
        stage(feeds(rows_max=100), [batch(*range(1, 111, 2))])
    assert "sink rejects: OSError: the disk is full" in translate(caught.value, "staging").message
    assert translate(caught.value, "staging").path == "spec.sinks[1]"  # type: ignore[attr-defined]


def test_the_bound_is_inclusive() -> None:
    check_bound(DeadLetters("rejects", 3), 3)
    with pytest.raises(TargetError, match="more than 3 rows"):
        check_bound(DeadLetters("rejects", 3), 4)


def test_a_row_that_no_json_can_hold_is_told_all_the_same() -> None:
    """It may have been refused for that: text that is no UTF-8, times beyond the year 9999."""
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b'a\xffb"'], pa.binary()).buffers())
    far = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 2, pa.array([2**58, 0], pa.int64()).buffers())
    nested = pa.ListArray.from_arrays([0, 1, 2], far)
    rows = pa.RecordBatch.from_arrays([text, far, nested], names=["a", "b", "c"])
    written: list[pa.RecordBatch] = []
    Refusals("lake", 3, DeadLetters("rejects", 10), lambda name, amount=1: None, written.append)(rows, "No", "why")
    assert [json.loads(letter["row"]) for letter in written[0].to_pylist()] == [
        {"a": "ok", "b": "11103-08-29 17:22:31.711744", "c": "date value out of range"},
        {"a": 'a\\xffb"', "b": "1970-01-01T00:00:00+00:00", "c": ["1970-01-01T00:00:00+00:00"]},
    ]
