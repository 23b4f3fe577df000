"""The in-memory reference sink keeps the contract, in each of its variants, and its faults do what they say."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.sinks.memory import MemorySink
from sinkruntime.sinks.memory.session import INTERCEPTS, TARGETS, Fault, Options
from sinkruntime.sinks.memory.target import MemoryTarget
from tests.sinks import harness
from tests.sinks.contract import ROWS, SinkContract
from tests.sinks.harness import LEDGER, Row, commit, stage

KEY = {"ledger_id": LEDGER, "sink": "lake", "checkpoint": 1, "epoch": 1, "subtask": 0, "attempt": 0, "unique": "u"}


@pytest.fixture
def place() -> MemoryTarget:
    return fresh_target()


def fresh_target() -> MemoryTarget:
    name = f"target-{uuid.uuid4()}"
    TARGETS[name] = MemoryTarget(name)
    return TARGETS[name]


def name_of(place: MemoryTarget) -> str:
    return next(name for name, target in TARGETS.items() if target is place)


class MemoryContract(SinkContract):
    tier: ClassVar[str]
    crosses_processes = False
    golden_version = 1
    golden_bytes = (
        b'{"key":{"attempt":0,"checkpoint":1,"epoch":1,"ledger_id":"5a0f2d1e-7c57-4b8e-9d3f-0c5a1e6b7d42",'
        b'"sink":"lake","subtask":0,"unique":"u"},"rows":5,"updates":0}'
    )
    golden_value: ClassVar = {"key": KEY, "rows": 5, "updates": 0}

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        options = Options.model_validate({"target": name_of(place), "tier": self.tier})
        return MemorySink(options, harness.identity(ledger_id, sink))

    def read_visible(self, place: Any) -> Counter[Row]:
        return Counter((row["id"], row["name"]) for _, row in place.visible)

    def list_staged(self, place: Any) -> set[str]:
        return {f"{key}" for key in place.staged}

    def lose_staged(self, place: Any) -> None:
        place.remove(lambda key: True, "test")

    def recreate(self, place: Any) -> None:
        place.__init__(str(uuid.uuid4()))


class TestMemoryWithCommitter(MemoryContract):
    tier = "committer"


class TestMemoryWithAggregatedCommitter(MemoryContract):
    tier = "aggregated"


class TestMemoryWithBoth(MemoryContract):
    tier = "both"


def make(place: MemoryTarget, **options: Any) -> Sink:
    return MemorySink(
        Options.model_validate({"target": name_of(place), "tier": "committer", **options}), harness.identity()
    )


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"retries": 2}, Answer.RETRY_LATER),
        ({"updates": 2}, Answer.UPDATE_AND_RETRY_LATER),
        ({"refusals": 2}, Answer.REFUSED),
    ],
)
def test_counted_faults_come_first_and_change_nothing(place: MemoryTarget, options: Any, answer: Answer) -> None:
    sink = make(place, **options)
    staged = stage(sink, 1, ROWS)
    for _ in range(2):
        assert commit(sink, staged).answers() == {answer}
        assert place.visible == []
    assert commit(sink, staged).answers() == {Answer.COMMITTED}


def test_a_lost_answer_is_unknown_and_yet_landed(place: MemoryTarget) -> None:
    sink = make(place, lostAnswers=1)
    staged = stage(sink, 1, ROWS)
    assert commit(sink, staged).answers() == {Answer.UNKNOWN}
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED}


def test_an_intercept_may_refuse_drop_or_crash(place: MemoryTarget) -> None:
    class Script:
        faults: ClassVar = [Fault.UNAVAILABLE, Fault.REFUSED, Fault.LOST_ANSWER]

        def before(self, operation: str, subject: str) -> Fault:
            return self.faults.pop(0) if operation == "commit" and self.faults else Fault.NONE

        def after(self, operation: str, subject: str) -> None:
            if operation == "probe":
                raise KeyboardInterrupt

    sink = make(place)
    staged = stage(sink, 1, ROWS)
    INTERCEPTS[name_of(place)] = Script()
    answers = [commit(sink, staged).answers() for _ in range(4)]
    assert answers == [{Answer.RETRY_LATER}, {Answer.REFUSED}, {Answer.UNKNOWN}, {Answer.ALREADY_COMMITTED}]
    with pytest.raises(KeyboardInterrupt):
        harness.ask(sink, "probe", staged)


def test_expired_rows_are_lost_by_name(place: MemoryTarget) -> None:
    sink = make(place, life="10s")
    writer = harness.open_writer(sink)
    writer.write(harness.batch_of(ROWS))
    committable = harness.finish(sink, writer, 1)
    assert writer.remaining_life_seconds() == 10
    place.expire(harness.ManualClock().now_seconds + 11)
    staged = harness.Staged(1, 1, ((Lineage(1, 1, 0, 1, 0), committable),))
    assert commit(sink, staged).reasons() == {"CommittableLost"}


def test_states_are_added_up_by_the_next_writer(place: MemoryTarget) -> None:
    sink = make(place)
    first = harness.open_writer(sink)
    first.write(harness.batch_of(ROWS))
    states = first.snapshot_state(1)
    context = harness.writer_context(sink, Lineage(2, 1, 0, 1, 0))
    second = sink.restore_writer(context, [*states, {"rows": 3}])
    second.open()
    second.write(harness.batch_of(ROWS))
    assert second.snapshot_state(2) == [{"rows": 3 + 2 * len(ROWS)}]
