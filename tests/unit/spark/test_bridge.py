"""The bridge between Spark's thread and the driver's loop, with a driver of the test's own."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.errors import Fenced, InDoubt
from sinkruntime.protocol.ledger import Position
from sinkruntime.protocol.position import NOWHERE
from sinkruntime.spark.bridge import Bridge, Stage, Stopped

POSITION = Position("q", 0, NOWHERE, NOWHERE)
STAGING = Staging((), {"a": 0})


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


class FakeDriver:
    """Does what the test says."""

    def __init__(self, passes: int = 1, error: Exception | None = None, wait: asyncio.Event | None = None) -> None:
        self.passes, self.error, self.wait = passes, error, wait
        self.seen: list[Any] = []

    async def checkpoint(self, position: Position, stage: Stage, batch: str = "") -> bool:
        if self.wait is not None:
            await self.wait.wait()
        for number in range(self.passes):
            self.seen.append(await stage(Assignment(number + 1, 1)))
        if self.error is not None:
            raise self.error
        return self.passes > 0


def test_the_pass_runs_in_sparks_thread_as_often_as_the_driver_asks(loop: asyncio.AbstractEventLoop) -> None:
    threads = []

    def stage(assignment: Assignment) -> Staging:
        threads.append(threading.get_ident())
        return STAGING

    driver = FakeDriver(passes=2)
    assert Bridge(driver, loop, threading.Event()).decide(POSITION, stage)
    assert threads == [threading.get_ident()] * 2
    assert driver.seen == [STAGING, STAGING]


def test_a_decided_batch_is_not_staged(loop: asyncio.AbstractEventLoop) -> None:
    def never(assignment: Assignment) -> Staging:
        raise AssertionError

    assert not Bridge(FakeDriver(passes=0), loop, threading.Event()).decide(POSITION, never)


def test_what_the_pass_raises_comes_out_as_it_is(loop: asyncio.AbstractEventLoop) -> None:
    def broken(assignment: Assignment) -> Staging:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Bridge(FakeDriver(), loop, threading.Event()).decide(POSITION, broken)


def test_what_the_driver_raises_comes_out_as_it_is(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(Fenced):
        Bridge(FakeDriver(error=Fenced("a newer one")), loop, threading.Event()).decide(POSITION, lambda _: STAGING)


def test_a_stop_ends_the_wait_for_a_slot(loop: asyncio.AbstractEventLoop) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        Bridge(FakeDriver(wait=asyncio.Event()), loop, stop).decide(POSITION, lambda _: STAGING)
    assert time.monotonic() - begun < 5


def test_a_stop_never_interrupts_what_is_staged(loop: asyncio.AbstractEventLoop) -> None:
    stop = threading.Event()

    def stage(assignment: Assignment) -> Staging:
        stop.set()
        time.sleep(0.5)
        return STAGING

    assert Bridge(FakeDriver(), loop, stop).decide(POSITION, stage)


def test_a_loop_that_drops_the_decision_leaves_it_in_doubt(loop: asyncio.AbstractEventLoop) -> None:
    class Dropped:
        async def checkpoint(self, position: Position, stage: Stage, batch: str = "") -> bool:
            await stage(Assignment(1, 1))
            raise asyncio.CancelledError

    with pytest.raises(InDoubt):
        Bridge(Dropped(), loop, threading.Event()).decide(POSITION, lambda _: STAGING)
