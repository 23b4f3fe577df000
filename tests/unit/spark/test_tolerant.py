"""`onFailure: Warn`: a failing writer costs only its own rows."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from sinkruntime.api import Committable, SinkWriter
from sinkruntime.spark.tolerant import FAILED_WRITERS, TolerantWriter

BATCH = pa.record_batch({"a": [1, 2]})


class Fragile(SinkWriter):
    """Fails in the named method, and remembers what was called."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.called: list[str] = []

    def _do(self, name: str) -> None:
        self.called.append(name)
        if name == self.failing:
            raise OSError(f"{name} failed")

    def open(self) -> None:
        self._do("open")

    def write(self, batch: pa.RecordBatch) -> None:
        self._do("write")

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        self._do("prepare_commit")
        return "staged"

    def snapshot_state(self, checkpoint: int) -> Sequence[object]:
        self._do("snapshot_state")
        return ()

    def remaining_life_seconds(self) -> float | None:
        self._do("remaining_life_seconds")
        return None

    def abort_prepare(self) -> None:
        self._do("abort_prepare")

    def close(self) -> None:
        self._do("close")


def run(writer: TolerantWriter) -> object:
    writer.open()
    writer.write(BATCH)
    writer.flush(end_of_input=True)
    committable = writer.prepare_commit(1)
    assert list(writer.snapshot_state(1)) == []
    assert writer.remaining_life_seconds() is None
    writer.close()
    return committable


@pytest.mark.parametrize("failing", ["open", "write", "prepare_commit"])
def test_a_failing_writer_is_given_up_once_and_stages_nothing(failing: str) -> None:
    counted: dict[str, float] = {}
    inner = Fragile(failing)
    writer = TolerantWriter("screen", lambda: inner, lambda name, amount=1: counted.update({name: amount}))

    assert run(writer) is None

    assert counted == {FAILED_WRITERS: 1}
    assert inner.called[-2:] == ["abort_prepare", "close"]
    assert inner.called.count(failing) == 1


@pytest.mark.parametrize("failing", ["snapshot_state", "remaining_life_seconds", "close"])
def test_what_a_committable_stands_for_is_not_taken_back(failing: str) -> None:
    inner = Fragile(failing)
    writer = TolerantWriter("screen", lambda: inner, lambda name, amount=1: pytest.fail(name))

    assert run(writer) == "staged"

    assert "abort_prepare" not in inner.called
    assert inner.called.count("close") == 1


def test_a_failing_task_takes_back_what_is_prepared() -> None:
    inner = Fragile("nothing")
    writer = TolerantWriter("screen", lambda: inner, lambda name, amount=1: pytest.fail(name))
    writer.open()
    writer.prepare_commit(1)
    writer.abort_prepare()
    writer.close()
    assert inner.called == ["open", "prepare_commit", "abort_prepare", "close"]


def test_a_sound_writer_passes_through() -> None:
    inner = Fragile("nothing")
    writer = TolerantWriter("screen", lambda: inner, lambda name, amount=1: pytest.fail(name))

    assert run(writer) == "staged"
    assert inner.called == ["open", "write", "prepare_commit", "snapshot_state", "remaining_life_seconds", "close"]


def test_a_writer_that_cannot_be_made_is_tolerated_too() -> None:
    counted: list[str] = []

    def make() -> SinkWriter:
        raise ImportError("no such library")

    assert run(TolerantWriter("screen", make, lambda name, amount=1: counted.append(name))) is None
    assert counted == [FAILED_WRITERS]
