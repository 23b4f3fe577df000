"""The work queue, in virtual time: what runs when, what is never run twice at a time, and who waits for whom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise

import pytest

from sinkoperator.work_queue import QueueSettings, WorkQueue
from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError, TargetError
from tests.simulation.loop import Process, SimLoop


class Clock:
    def __init__(self, loop: SimLoop) -> None:
        self.monotonic = loop.time
        self.wall = loop.time


class Bench:
    """One queue, what it ran and when, and what it told."""

    def __init__(self, seed: int = 0, **settings: float) -> None:
        self.loop = SimLoop(random.Random(seed))
        self.process = Process("operator", "operator")
        self.story: list[tuple[float, str]] = []
        self.ended: list[tuple[float, str]] = []
        self.told: list[tuple[str, object]] = []
        self.seconds: dict[str, float] = {}
        self.look_again: dict[str, float] = {}
        self.errors: dict[str, list[Exception]] = {}
        self.busy: set[str] = set()
        self.busiest = 0
        environment = Environment(Clock(self.loop), random.Random(seed))
        self.queue = WorkQueue[str](self._handle, QueueSettings(**settings), environment, self)  # type: ignore[arg-type]

    async def _handle(self, key: str) -> float | None:
        assert key not in self.busy, "never two at a time"
        self.story.append((self.loop.time(), key))
        self.busy.add(key)
        self.busiest = max(self.busiest, len(self.busy))
        try:
            await asyncio.sleep(self.seconds.get(key, 0.0))
            if self.errors.get(key):
                raise self.errors[key].pop(0)
            return self.look_again.get(key)
        finally:
            self.busy.discard(key)
            self.ended.append((self.loop.time(), key))

    def queue_depth(self, keys: int) -> None:
        self.told.append(("depth", keys))

    def queue_waited(self, seconds: float) -> None:
        self.told.append(("waited", round(seconds, 3)))

    def queue_ran(self, seconds: float, outcome: str) -> None:
        self.told.append((outcome, round(seconds, 3)))

    def queue_retried(self) -> None:
        self.told.append(("retried", None))

    def add(self, *keys: str) -> None:
        """Add them, in this order."""
        for key in keys:
            self.queue.add(key)

    def call(self, *calls: Callable[[str], None]) -> None:
        """Do each with the key `a`."""
        for call in calls:
            call("a")

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Do it then, in the operator's process."""

        async def act() -> None:
            await asyncio.sleep(seconds)
            result = call()
            if isinstance(result, Awaitable):
                await result
                self.told.append(("awaited", round(self.loop.time(), 3)))

        _ = self.loop.start(self.process, act())

    def run(self, seconds: float) -> None:
        self.loop.nature(seconds, self.loop.stop)
        self.loop.run(lambda: False, 100_000)
        self.loop.stopping = False
        if self.loop.failed is not None:
            raise self.loop.failed

    def times(self, key: str) -> list[float]:
        return [round(when, 3) for when, ran in self.story if ran == key]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.loop.close()


def test_a_key_added_often_before_its_run_runs_once(bench: Bench) -> None:
    bench.at(1.0, lambda: bench.add(*["a"] * 5))
    bench.run(5.0)
    assert bench.times("a") == [1.0]
    assert len(bench.queue) == 0, "nothing is remembered of a quiet key"


def test_a_key_added_while_it_runs_runs_once_more_afterwards(bench: Bench) -> None:
    bench.seconds["a"] = 2.0
    for when in (0.0, 0.5, 1.0, 1.5):
        bench.at(when, lambda: bench.queue.add("a"))
    bench.run(10.0)
    assert bench.times("a") == [0.0, 2.0]


def test_a_run_says_when_to_look_again(bench: Bench) -> None:
    bench.look_again["a"] = 3.0
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.run(10.0)
    assert bench.times("a") == [0.0, 3.0, 6.0, 9.0]


def test_of_two_later_times_the_earlier_counts(bench: Bench) -> None:
    bench.at(0.0, lambda: bench.queue.add_after("a", 5.0))
    bench.at(1.0, lambda: bench.queue.add_after("a", 1.0))
    bench.at(1.5, lambda: bench.queue.add_after("a", 9.0))
    bench.run(20.0)
    assert bench.times("a") == [2.0]


def test_a_later_time_in_the_past_is_now(bench: Bench) -> None:
    bench.at(1.0, lambda: bench.queue.add_after("a", -1.0))
    bench.run(2.0)
    assert bench.times("a") == [1.0]


def test_never_more_than_the_concurrency_at_a_time_and_first_come_first_served() -> None:
    bench = Bench(concurrency=3)
    keys = [f"k{number:02}" for number in range(12)]
    for key in keys:
        bench.seconds[key] = 1.0
    bench.at(0.0, lambda: bench.add(*keys))
    bench.run(10.0)
    assert bench.busiest == 3
    assert sorted(bench.story) == [(float(number // 3), key) for number, key in enumerate(keys)]
    assert ("depth", 9) in bench.told
    assert ("waited", 3.0) in bench.told
    bench.loop.close()


def test_a_hung_key_delays_the_others_only_by_its_place_and_is_ended() -> None:
    bench = Bench(concurrency=2, run_seconds=10.0)
    bench.seconds["hung"] = 1e6
    for key in ("a", "b", "c"):
        bench.look_again[key] = 1.0
    bench.at(0.0, lambda: bench.add(*("hung", "a", "b", "c")))
    bench.run(9.5)
    for key in ("a", "b", "c"):
        assert bench.times(key) == [float(second) for second in range(10)]
    bench.run(2.0)
    assert (10.0, "hung") in bench.ended
    assert ("timeout", 10.0) in bench.told
    bench.loop.close()


def test_a_busy_key_does_not_starve_a_quiet_one() -> None:
    bench = Bench(concurrency=1)
    bench.seconds["busy"] = 1.0
    for when in range(20):
        bench.at(float(when), lambda: bench.queue.add("busy"))
    bench.at(5.5, lambda: bench.queue.add("quiet"))
    bench.run(30.0)
    assert bench.times("quiet") in ([6.0], [7.0])
    bench.loop.close()


def test_errors_are_tried_again_ever_later_and_success_resets() -> None:
    bench = Bench(backoff_first_seconds=1.0, backoff_max_seconds=8.0)
    bench.errors["a"] = [RuntimeError("down")] * 6
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.run(100.0)
    times = bench.times("a")
    waits = [round(after - before, 6) for before, after in pairwise(times)]
    assert len(waits) == 6
    for wait, full in zip(waits, (1.0, 2.0, 4.0, 8.0, 8.0, 8.0), strict=True):
        assert max(1.0, full / 2) <= wait <= full
    assert len(set(waits[3:])) > 1, "jitter"
    assert len(bench.queue) == 0
    bench.errors["a"] = [RuntimeError("down")]
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.run(3.0)
    assert bench.times("a")[-1] - bench.times("a")[-2] == pytest.approx(1.0)
    assert [what for what, _ in bench.told].count("retried") == 7
    bench.loop.close()


def test_a_key_added_during_its_backoff_runs_soon_but_not_in_a_tight_loop() -> None:
    bench = Bench(backoff_first_seconds=1.0, backoff_max_seconds=100.0)
    bench.errors["a"] = [RuntimeError("down")] * 100
    for tenth in range(100):
        bench.at(tenth / 10, lambda: bench.queue.add("a"))
    bench.run(10.5)
    assert 9 <= len(bench.times("a")) <= 11
    bench.loop.close()


def test_our_errors_are_told_in_a_sentence_others_with_their_trace(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.errors = {"ours": [TargetError("Refused", "no such table")], "theirs": [KeyError("x")]}
    bench.at(0.0, lambda: bench.add(*("ours", "theirs")))
    bench.run(0.1)
    assert {record.message.partition(":")[0]: record.exc_info is not None for record in caplog.records} == {
        "ours": False, "theirs": True,
    }  # fmt: skip
    assert "ours: Refused: no such table" in caplog.text


def test_a_dropped_key_is_forgotten_and_its_run_cancelled(bench: Bench) -> None:
    bench.seconds["a"] = 5.0
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.at(0.5, lambda: bench.queue.add("a"))
    bench.at(0.6, lambda: bench.queue.add_after("a", 3.0))
    bench.at(1.0, lambda: bench.queue.drop("a"))
    bench.at(1.0, lambda: bench.queue.drop("never seen"))
    bench.run(20.0)
    assert bench.times("a") == [0.0]
    assert (1.0, "a") in bench.ended
    assert ("cancelled", 1.0) in bench.told
    assert len(bench.queue) == 0


def test_a_key_dropped_and_added_while_its_run_ends_never_runs_twice_at_a_time(bench: Bench) -> None:
    bench.seconds["a"] = 5.0
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.at(1.0, lambda: bench.call(bench.queue.drop, bench.queue.add))
    bench.run(20.0)
    assert bench.times("a") == [0.0, 1.0]


def test_a_key_dropped_before_its_run_began_can_come_back(bench: Bench) -> None:
    bench.at(0.0, lambda: bench.call(bench.queue.add, bench.queue.drop))
    bench.run(1.0)
    assert bench.times("a") == []
    assert (len(bench.queue), bench.queue.running) == (0, frozenset())
    bench.at(0.0, lambda: bench.call(bench.queue.add, bench.queue.drop, bench.queue.add))
    bench.run(1.0)
    assert bench.times("a") == [1.0]


def test_a_dropped_key_takes_its_backoff_with_it(bench: Bench) -> None:
    bench.errors["a"] = [RuntimeError("down")] * 2
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.at(0.1, lambda: bench.queue.drop("a"))
    bench.at(0.2, lambda: bench.queue.add("a"))
    bench.run(0.3)
    assert bench.times("a") == [0.0, 0.2]


def test_finish_waits_for_the_run_and_lets_no_other_begin(bench: Bench) -> None:
    bench.seconds["a"] = 4.0
    bench.look_again["a"] = 1.0
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.at(1.0, lambda: bench.queue.finish("a"))
    bench.at(2.0, lambda: bench.queue.add("a"))
    bench.at(2.0, lambda: bench.queue.add_after("a", 1.0))
    bench.run(20.0)
    assert ("awaited", 4.0) in bench.told
    assert bench.times("a") == [0.0]
    assert len(bench.queue) == 0
    bench.at(0.0, lambda: bench.queue.add("a"))
    bench.run(0.1)
    assert bench.times("a") == [0.0, 20.0], "it may come back"


def test_finish_of_a_waiting_key_returns_at_once(bench: Bench) -> None:
    bench.at(0.0, lambda: bench.queue.add_after("a", 5.0))
    bench.at(1.0, lambda: bench.queue.finish("a"))
    bench.run(20.0)
    assert ("awaited", 1.0) in bench.told
    assert bench.times("a") == []


def test_an_orderly_stop_waits_for_runs_then_cancels_them() -> None:
    bench = Bench(concurrency=2)
    bench.seconds = {"short": 2.0, "long": 100.0}
    bench.at(0.0, lambda: bench.add(*("short", "long", "waiting")))
    bench.at(1.0, lambda: bench.queue.stop(5.0))
    bench.at(3.0, lambda: bench.call(bench.queue.add, lambda key: bench.queue.add_after(key, 1.0)))
    bench.run(200.0)
    assert {key for _, key in bench.story} == {"short", "long"}
    assert (2.0, "short") in bench.ended
    assert (6.0, "long") in bench.ended
    assert ("awaited", 6.0) in bench.told
    assert len(bench.queue) == 0
    bench.loop.close()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_done_to_it_every_key_is_looked_at_after_its_last_add(seed: int) -> None:
    bench = Bench(seed, concurrency=2, run_seconds=3.0, backoff_first_seconds=0.2, backoff_max_seconds=2.0)
    dice = random.Random(seed)
    keys = [f"k{number}" for number in range(5)]
    last: dict[str, float] = {}
    for key in keys:
        bench.seconds[key] = dice.choice([0.0, 0.3, 1.0, 5.0])
        bench.errors[key] = [RuntimeError("down")] * dice.randrange(3)
    for _ in range(60):
        key, when = dice.choice(keys), dice.uniform(0.0, 20.0)
        act = dice.choice([bench.queue.add, lambda key: bench.queue.add_after(key, 1.0), bench.queue.drop])
        bench.at(when, lambda key=key, act=act: act(key))  # type: ignore[misc]
    for key in keys:
        last[key] = dice.uniform(21.0, 25.0)
        bench.at(last[key], lambda key=key: bench.queue.add(key))  # type: ignore[misc]
    bench.run(80.0)
    for key in keys:
        assert max(bench.times(key)) >= last[key] - 0.001
    assert bench.busiest <= 2
    bench.loop.close()


@pytest.mark.parametrize("bad", [{"concurrency": 0}, {"run_seconds": 0.0}, {"backoff_first_seconds": 200.0}])
def test_settings_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="work queue"):
        QueueSettings(**bad)  # type: ignore[arg-type]
