"""`foreach` and `foreachBatch` call users' code as Spark does, and tell it which rows it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from sinkruntime.api import Guarantee, Lineage, StageContext
from sinkruntime.errors import ConfigurationError
from sinkruntime.sinks import foreach, foreachBatch
from sinkruntime.usercode import CheckpointContext
from tests.sinks import harness
from tests.unit.sinks import foreach_users
from tests.unit.sinks.foreach_users import CALLS

USERS = foreach_users.__name__


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    CALLS.clear()
    yield
    CALLS.clear()


def each(name: str, **options: Any) -> foreach.ForeachSink:
    return foreach.ForeachSink(
        foreach.Options.model_validate({"class": f"{USERS}:{name}", **options}), harness.identity()
    )


def run(sink: foreach.ForeachSink, rows: list[harness.Row]) -> None:
    """One task as the runtime runs it: an error aborts, then closes."""
    writer = sink.create_writer(harness.writer_context(sink, Lineage(5, 2, 1, 3, 0)))
    try:
        writer.open()
        if rows:
            writer.write(harness.batch_of(rows))
        writer.flush(end_of_input=True)
        assert writer.prepare_commit(5) is None
    except Exception:
        writer.abort_prepare()
        raise
    finally:
        writer.close()


def test_open_gets_partition_and_epoch_and_each_row_is_processed() -> None:
    run(each("Writer"), [(1, "one"), (2, None)])
    (bind, context), *calls = CALLS
    assert bind == "bind"
    assert (context.checkpoint, context.epoch, context.subtask, context.subtasks) == (5, 2, 1, 3)
    assert context.key == f"{harness.LEDGER}/lake/5/1-3"
    assert calls == [
        ("open", 1, 5),
        ("process", 1, "one", {"id": 1, "name": "one"}),
        ("process", 2, None, {"id": 2, "name": None}),
        ("close", None),
    ]


def test_open_false_skips_partition() -> None:
    run(each("Unwilling"), [(1, "one")])
    assert [call[0] for call in CALLS] == ["bind", "open", "close"]


def test_close_called_with_error_when_process_raised() -> None:
    with pytest.raises(ValueError, match="poison"):
        run(each("Writer"), [(1, "poison"), (2, "never")])
    assert [call for call in CALLS if call[0] != "bind"][1:] == [
        ("process", 1, "poison", {"id": 1, "name": "poison"}),
        ("close", "ValueError"),
    ]


def test_close_called_with_error_when_open_raised() -> None:
    with pytest.raises(ConnectionError):
        run(each("Broken"), [(1, "one")])
    assert CALLS[-1] == ("close", "ConnectionError")


def test_close_that_raises_fails_the_batch_and_is_called_once() -> None:
    with pytest.raises(ConnectionError, match="last rows"):
        run(each("BrokenAtTheEnd"), [(1, "one")])
    assert [call for call in CALLS if call[0] == "close"] == [("close", None)]


def test_a_task_that_fails_elsewhere_closes_with_an_error() -> None:
    sink = each("Writer")
    writer = sink.create_writer(harness.writer_context(sink, Lineage(5, 2, 1, 3, 0)))
    writer.open()
    writer.abort_prepare()
    writer.close()
    assert [call for call in CALLS if call[0] == "close"] == [("close", "Abandoned")]


def test_process_is_all_that_a_class_needs() -> None:
    run(each("OnlyProcess"), [(1, "one")])
    assert CALLS == [("process", 1)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Missing", "has no `Missing`"),
        ("NoProcess", "has no method `process`"),
        ("NUMBER", "is a int, not callable"),
    ],
)
def test_a_class_that_cannot_be_used_is_said_before_the_first_batch(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        each(name).prepare_target(harness.SCHEMA)
    assert caught.value.path == "options.class"


def test_a_module_that_is_not_there_is_said_with_advice() -> None:
    sink = foreachBatch.ForeachBatchSink(
        foreachBatch.Options.model_validate({"function": "nowhere.at_all:f"}), harness.identity()
    )
    with pytest.raises(ConfigurationError, match="deps"):
        sink.prepare_target(harness.SCHEMA)


@pytest.mark.parametrize("name", ["Writer", "a.b", "a-b:c", "a:b:c", ":c"])
def test_names_are_module_and_attribute(name: str) -> None:
    with pytest.raises(ValidationError):
        foreach.Options.model_validate({"class": name})


def test_the_guarantee_is_what_the_user_declares() -> None:
    assert each("Writer").guarantee(each("Writer").options, {}).guarantee is Guarantee.AT_LEAST_ONCE
    declared = each("Writer", idempotent=True)
    assert declared.guarantee(declared.options, {}).guarantee is Guarantee.EFFECTIVELY_ONCE


def test_already_committed_is_what_comes_before() -> None:
    context = CheckpointContext(harness.LEDGER, "lake", 5, 2)
    assert context.already_committed(4)
    assert not context.already_committed(5)
    assert context.key == f"{harness.LEDGER}/lake/5"


@dataclass
class Frame:
    """As much of a DataFrame as the sink itself touches."""

    is_cached: bool = False
    calls: list[str] = field(default_factory=list)

    def persist(self) -> None:
        self.is_cached = True
        self.calls.append("persist")

    def unpersist(self) -> None:
        self.is_cached = False
        self.calls.append("unpersist")


def batches(name: str, **options: Any) -> foreachBatch.ForeachBatchSink:
    return foreachBatch.ForeachBatchSink(
        foreachBatch.Options.model_validate({"function": f"{USERS}:{name}", **options}), harness.identity()
    )


def stage(sink: foreachBatch.ForeachBatchSink, frame: Frame) -> None:
    context = StageContext(sink.identity, 5, 2, "000000000005-2-00000-0-aa", harness.ManualClock())
    assert sink.stage(frame, context) == ()


def test_several_actions_see_same_rows() -> None:
    frame = Frame()
    stage(batches("batch"), frame)
    ((_, given, cached, context),) = CALLS
    assert given is frame
    assert cached
    assert frame.calls == ["persist", "unpersist"]
    assert (context.checkpoint, context.epoch) == (5, 2)


def test_what_is_kept_by_others_stays_kept() -> None:
    frame = Frame(is_cached=True)
    stage(batches("batch"), frame)
    assert frame.calls == []
    frame = Frame()
    stage(batches("batch", persist=False), frame)
    assert frame.calls == []


def test_user_exception_fails_batch_not_skips() -> None:
    frame = Frame()
    with pytest.raises(ValueError, match="poison"):
        stage(batches("failing"), frame)
    assert frame.calls == ["persist", "unpersist"]


def test_foreach_batch_has_no_writers() -> None:
    sink = batches("batch")
    assert sink.can_stage()
    assert sink.must_stage()
    assert sink.create_committer() is None
