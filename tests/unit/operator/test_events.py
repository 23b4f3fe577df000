"""Events in virtual time: how few are written, and what a failing write does (nothing)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from sinkoperator.events import MESSAGE_BYTES_MAX, Events, EventSettings, cut
from sinkruntime.environment import Environment
from sinkruntime.kube import EVENT, AlreadyExists, Forbidden, Kind, NotFound, Object, Unanswered
from tests.simulation.loop import Process, SimLoop


class Clock:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop

    def monotonic(self) -> float:
        return self.loop.time()

    def wall(self) -> float:
        return 1_800_000_000.0 + self.loop.time()


class Server:
    """Keeps Events; may fail."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.writes: list[str] = []
        self.error: Exception | None = None
        self.lost_answers = 0
        self.hangs = False

    async def _fail(self, verb: str) -> None:
        self.writes.append(verb)
        if self.hangs:
            await asyncio.sleep(1e6)
        if self.error is not None:
            raise self.error

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        assert kind is EVENT
        assert namespace == body["involvedObject"]["namespace"]
        await self._fail("create")
        name = body["metadata"]["name"]
        if name in self.objects:
            raise AlreadyExists(name)
        self.objects[name] = dict(body)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unanswered("connection reset")
        return body

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        await self._fail("patch")
        if name not in self.objects:
            raise NotFound(name)
        self.objects[name] |= body
        return self.objects[name]


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.loop = SimLoop(random.Random(0))
        self.server = Server()
        environment = Environment(Clock(self.loop), random.Random(0))
        self.events = Events(self.server, environment, "operator-0", EventSettings(**settings))
        self.process = Process("operator", "operator")
        self.closing = asyncio.Event()

        async def main() -> None:
            async with self.events:
                await self.closing.wait()

        _ = self.loop.start(self.process, main())

    def post(self, reason: str, message: str = "something", job: str = "flights", warning: bool = False) -> None:
        self.events.post(sink_job(job), reason, message, warning=warning)

    def run(self, seconds: float) -> None:
        self.loop.nature(seconds, self.loop.stop)
        self.loop.run(lambda: False, 100_000)
        self.loop.stopping = False
        assert self.loop.failed is None

    def stored(self) -> list[Object]:
        return list(self.server.objects.values())


def sink_job(name: str) -> Object:
    metadata = {"name": name, "namespace": "data", "uid": f"uid-{name}"}
    return {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": metadata, "spec": {"secret": "s3cret"}}


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.loop.close()


def test_an_event_names_object_reason_type_and_times(bench: Bench) -> None:
    bench.run(1.0)
    bench.post("DriverOOMKilled", "the driver used more than 1g", warning=True)
    bench.run(1.0)
    (event,) = bench.stored()
    assert event["involvedObject"] == {
        "apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "namespace": "data", "name": "flights",
        "uid": "uid-flights",
    }  # fmt: skip
    assert (event["reason"], event["type"], event["count"]) == ("DriverOOMKilled", "Warning", 1)
    assert event["message"] == "the driver used more than 1g"
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2027-01-15T08:00:01Z"
    assert event["source"] == {"component": "sinkjob-operator"}
    assert "s3cret" not in str(event)


def test_the_same_again_raises_a_count_and_is_written_seldom(bench: Bench) -> None:
    for _ in range(600):
        bench.post("CommitFailed")
        bench.run(1.0)
    (event,) = bench.stored()
    assert event["count"] >= 300
    assert len(bench.server.writes) <= 3
    bench.run(300.0)
    assert bench.stored()[0]["count"] == 600
    assert bench.stored()[0]["lastTimestamp"] == "2027-01-15T08:09:59Z"


def test_another_message_of_the_same_reason_replaces_it(bench: Bench) -> None:
    for text in ("first", "second"):
        bench.post("CommitFailed", text)
        bench.run(1.0)
    (event,) = bench.stored()
    assert (event["message"], event["count"]) == ("second", 2)


def test_reasons_types_and_objects_are_told_apart(bench: Bench) -> None:
    bench.post("Suspended")
    bench.post("Resumed")
    bench.post("Resumed", warning=True)
    bench.post("Suspended", job="other")
    bench.run(1.0)
    assert len(bench.stored()) == 4


def test_a_job_that_changes_its_mind_all_the_time_has_a_bucket_of_writes(bench: Bench) -> None:
    for number in range(600):
        bench.post("DriverFailed", f"exit code {number}")
        bench.run(1.0)
    assert len(bench.server.writes) <= 10 + 600 / 30 + 1
    bench.run(60.0)
    (event,) = bench.stored()
    assert (event["count"], event["message"]) == (600, "exit code 599")


def test_one_loud_job_takes_nothing_from_another(bench: Bench) -> None:
    for number in range(100):
        bench.post("DriverFailed", f"exit code {number}")
        bench.run(0.1)
    bench.post("Completed", job="quiet")
    bench.run(0.1)
    assert "Completed" in {event["reason"] for event in bench.stored()}


@pytest.mark.parametrize(
    "error", [Forbidden("cannot create events"), Unanswered("no answer"), NotFound("no namespace")]
)
def test_a_write_that_fails_is_left_out_and_the_next_tells_all(
    bench: Bench, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.error = error
    bench.post("Suspended", "one")
    bench.run(1.0)
    assert bench.stored() == []
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
    bench.server.error = None
    bench.post("Suspended", "two")
    bench.run(1.0)
    assert [(event["message"], event["count"]) for event in bench.stored()] == [("two", 2)]


def test_a_server_that_hangs_stops_neither_posting_nor_the_next_write(bench: Bench) -> None:
    bench.server.hangs = True
    bench.post("Suspended")
    bench.run(1.0)
    bench.post("Resumed")
    bench.server.hangs = False
    bench.run(5.0)
    assert [event["reason"] for event in bench.stored()] == ["Resumed"]


def test_an_event_whose_answer_was_lost_is_found_again(bench: Bench) -> None:
    bench.server.lost_answers = 1
    bench.post("Suspended", "one")
    bench.run(1.0)
    bench.post("Suspended", "two")
    bench.run(1.0)
    assert [(event["message"], event["count"]) for event in bench.stored()] == [("two", 2)]


def test_an_event_that_the_server_has_forgotten_is_made_again(bench: Bench) -> None:
    bench.post("Suspended", "one")
    bench.run(1.0)
    bench.server.objects.clear()
    bench.post("Suspended", "two")
    bench.run(1.0)
    assert [(event["message"], event["count"]) for event in bench.stored()] == [("two", 2)]


def test_what_is_remembered_is_bounded() -> None:
    bench = Bench(series_max=10)
    for number in range(200):
        bench.post("Suspended", job=f"job-{number}")
    assert len(bench.events._series) == len(bench.events._dirty) == 10
    bench.run(1.0)
    assert {event["involvedObject"]["name"] for event in bench.stored()} == {f"job-{n}" for n in range(190, 200)}
    assert len(bench.events._buckets) <= 10
    bench.loop.close()


def test_the_end_writes_what_waits_for_the_writer_but_not_for_long() -> None:
    bench = Bench()
    bench.run(1.0)
    bench.post("Suspended")
    bench.closing.set()
    bench.run(1.0)
    assert len(bench.stored()) == 1
    bench.loop.close()
    hanging = Bench(close_seconds=2.0)
    hanging.server.hangs = True
    hanging.post("Suspended")
    hanging.closing.set()
    hanging.run(2.1)
    assert hanging.events._task is not None
    assert hanging.events._task.done()
    hanging.loop.close()


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "€" * 700])
def test_a_long_message_is_cut_between_characters(text: str) -> None:
    short = cut(text)
    assert MESSAGE_BYTES_MAX - 4 < len(short.encode()) <= MESSAGE_BYTES_MAX
    assert short.endswith("…")
    assert text.startswith(short[:-1])
    assert cut("short") == "short"
