"""A task's calls to its writers: in which order, and what happens when one of them fails. No Spark is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from sinkruntime.api import Guarantee, Lineage, Offer, Sink, SinkIdentity, SinkWriter, WriterContext
from sinkruntime.driver.staging import Written
from sinkruntime.environment import SystemClock
from sinkruntime.spark.failure import TaskFailure
from sinkruntime.spark.task import RESULT_SCHEMA, Feed, WriterTask

LINEAGE = Lineage(4, 2, 1, 3, 77)
SCHEMA = pa.schema([pa.field("x", pa.int64())])


class Journal(BaseModel):
    """Which call fails, if any, and what was called."""

    fail: str = ""
    calls: list[str] = []
    empty: bool = False


class JournalWriter(SinkWriter):
    """Writes down each call."""

    def __init__(self, name: str, journal: Journal, context: WriterContext) -> None:
        self.name, self.journal, self.context = name, journal, context

    def note(self, call: str) -> None:
        self.journal.calls.append(f"{self.name}.{call}")
        if self.journal.fail == f"{self.name}.{call}":
            raise OSError(call)

    def open(self) -> None:
        self.note("open")

    def write(self, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(SCHEMA)
        self.note(f"write {batch.column(0).to_pylist()}")

    def write_watermark(self, watermark_ms: int) -> None:
        self.note(f"watermark {watermark_ms}")

    def flush(self, end_of_input: bool) -> None:
        self.note(f"flush {end_of_input}")

    def prepare_commit(self, checkpoint: int) -> Any:
        self.note(f"prepare {checkpoint}")
        return None if self.journal.empty else {"from": self.name}

    def remaining_life_seconds(self) -> float | None:
        return 9.0

    def snapshot_state(self, checkpoint: int) -> Sequence[Any]:
        self.note("snapshot")
        return [self.name]

    def abort_prepare(self) -> None:
        self.note("abort")

    def close(self) -> None:
        self.note("close")


class JournalSink(Sink):
    """See `JournalWriter`."""

    Options = Journal
    summary = "for this test"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.AT_LEAST_ONCE, "")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return JournalWriter(self.identity.sink, self.options, context)

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter:
        self.options.calls.append(f"{self.identity.sink}.restore {list(states)}")
        return self.create_writer(context)


def feeds(journal: Journal) -> tuple[Feed, ...]:
    """Two sinks, `a` and `b`."""
    return tuple(Feed(JournalSink(journal, SinkIdentity("l", name, "n/j")), SCHEMA) for name in "ab")


def schema_of(**fields: pa.DataType) -> pa.Schema:
    """A schema by its fields."""
    return pa.schema(fields)


def batch(*values: int) -> pa.RecordBatch:
    """A batch of one column."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=SCHEMA)


def test_writers_are_called_in_order_and_closed_last_first() -> None:
    journal = Journal()
    result = WriterTask(feeds(journal), 4, 2, SystemClock(), 1234).stage([batch(1, 2), batch(3)], LINEAGE)
    assert journal.calls == [
        "a.open", "b.open", "a.write [1, 2]", "b.write [1, 2]", "a.write [3]", "b.write [3]",
        "a.watermark 1234", "a.flush True", "b.watermark 1234", "b.flush True",
        "a.prepare 4", "a.snapshot", "b.prepare 4", "b.snapshot", "b.close", "a.close",
    ]  # fmt: skip
    assert result.schema.equals(RESULT_SCHEMA)
    row = result.to_pylist()[1]
    assert (row["sink"], row["subtask"], row["subtasks"], row["attempt"]) == ("b", 1, 3, 77)
    assert (row["seen"], row["rows"], row["remaining_life_seconds"]) == (3, 3, 9.0)
    assert (row["version"], row["committable"]) == (1, b'{"from":"b"}')
    assert row["states"] == [{"version": 1, "data": b'"b"'}]


def test_an_empty_task_opens_prepares_and_closes_too() -> None:
    journal = Journal(empty=True)
    result = WriterTask(feeds(journal), 4, 2, SystemClock()).stage([], LINEAGE)
    assert [call for call in journal.calls if call.startswith("a")] == [
        "a.open", "a.flush True", "a.prepare 4", "a.snapshot", "a.close",
    ]  # fmt: skip
    assert [(row["version"], row["committable"], row["rows"]) for row in result.to_pylist()] == [(None, None, 0)] * 2


@pytest.mark.parametrize(
    "failing", ["a.open", "b.open", "a.write [1]", "b.flush True", "a.prepare 4", "b.prepare 4", "a.snapshot"]
)
def test_after_an_error_all_that_are_open_are_aborted_once_then_closed(failing: str) -> None:
    journal = Journal(fail=failing)
    with pytest.raises(TaskFailure, match=f"OSError: {failing[2:].split('[', maxsplit=1)[0]}"):
        WriterTask(feeds(journal), 4, 2, SystemClock()).stage([batch(1)], LINEAGE)
    opened = ["a"] if failing == "a.open" else ["b", "a"]
    assert journal.calls[-2 * len(opened) :] == [f"{name}.{call}" for name in opened for call in ("abort", "close")]
    assert journal.calls.count("a.abort") == 1


def test_an_error_on_the_way_out_hides_nothing() -> None:
    class Broken(JournalWriter):
        def abort_prepare(self) -> None:
            raise ValueError("second")

    class BrokenSink(JournalSink):
        def create_writer(self, context: WriterContext) -> SinkWriter:
            return Broken(self.identity.sink, self.options, context)

    journal = Journal(fail="a.flush True")
    feed = Feed(BrokenSink(journal, SinkIdentity("l", "a", "n/j")), SCHEMA)
    with pytest.raises(TaskFailure, match="OSError: flush") as caught:
        WriterTask((feed,), 4, 2, SystemClock()).stage([], LINEAGE)
    assert "ValueError('second')" in caught.value.__notes__[0]
    assert journal.calls[-1] == "a.close"


def test_states_are_remapped_by_index() -> None:
    journal = Journal()
    states = {"a": tuple(Written(1, b"%d" % number) for number in range(5))}
    WriterTask(feeds(journal), 4, 2, SystemClock(), states=states).stage([], LINEAGE)
    assert journal.calls[0] == "a.restore [1, 4]"
    assert not any(call.startswith("b.restore") for call in journal.calls)


def test_rows_that_are_not_a_sinks_own_are_cut_away() -> None:
    schema = schema_of(c0=pa.int64(), c1=pa.bool_(), c2=pa.string())
    whole = pa.RecordBatch.from_pydict(
        {"c0": [1, 2, 3], "c1": [True, None, False], "c2": ["p", "q", "r"]}, schema=schema
    )
    mine = schema_of(text=pa.string(), n=pa.int64())
    sink = JournalSink(Journal(), SinkIdentity("l", "a", "n/j"))
    cut = Feed(sink, mine, (2, 0), 1).cut(whole)
    assert cut.schema.equals(mine)
    assert cut.to_pylist() == [{"text": "p", "n": 1}], "null is not true"
    uncut = Feed(sink, mine, (2, 0)).cut(whole)
    after, before = uncut.column(1).buffers()[1], whole.column(0).buffers()[1]
    assert after is not None
    assert before is not None
    assert after.address == before.address, "no copy"


def test_a_sink_without_rows_in_a_batch_is_not_called_for_it() -> None:
    journal = Journal()
    schema = schema_of(x=pa.int64(), c1=pa.bool_())
    none = pa.RecordBatch.from_pydict({"x": [1], "c1": [False]}, schema=schema)
    feed = Feed(JournalSink(journal, SinkIdentity("l", "a", "n/j")), SCHEMA, (0,), 1)
    rows = WriterTask((feed,), 4, 2, SystemClock()).stage([none], LINEAGE).to_pylist()
    assert not any("write" in call for call in journal.calls)
    assert (rows[0]["seen"], rows[0]["rows"]) == (1, 0)
