"""The only meeting of Spark's callback thread with the driver's asyncio loop.

`query.py` calls `decide` in the thread in which Spark called back. The driver runs in its loop; when it asks for the
staging pass, the pass runs here, in Spark's thread, because its jobs must carry that thread's properties (the query's
run, scheduler pool, cancellation group). It never leaves before the driver has said what became of the checkpoint.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from threading import Event
from typing import Protocol

from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.errors import InDoubt
from sinkruntime.protocol.ledger import Position

Stage = Callable[[Assignment], Awaitable[Staging]]

#: How often a driver that waits for a free slot is asked whether the job is to stop.
POLL_SECONDS = 0.2


class DriverPort(Protocol):
    """What a query needs of the driver (`sinkruntime.driver`)."""

    async def checkpoint(self, position: Position, stage: Stage, batch: str = "") -> bool:
        """Stage and decide a batch: True; False: it was decided already. Raises `Fenced`, `InDoubt`, …"""


class Stopped(Exception):
    """The job was asked to stop before anything of the batch was staged; Spark plans the same batch again."""


class _Pass:
    """One staging pass that the loop asked for, on its way to Spark's thread and back."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Staging] = self.loop.create_future()

    def run(self, stage: Callable[[Assignment], Staging]) -> None:
        """In Spark's thread: run it, and tell the loop."""
        try:
            staging = stage(self.assignment)
        except BaseException as error:  # noqa: BLE001  (the driver's coroutine raises it, and `decide` with it)
            self.loop.call_soon_threadsafe(self._fail, error)
        else:
            self.loop.call_soon_threadsafe(self._succeed, staging)

    def _succeed(self, staging: Staging) -> None:
        if not self.done.done():
            self.done.set_result(staging)

    def _fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Bridge:
    """Spark's thread on one side, the driver in `loop` on the other."""

    def __init__(self, driver: DriverPort, loop: asyncio.AbstractEventLoop, stop: Event) -> None:
        self._driver = driver
        self._loop = loop
        self._stop = stop

    def decide(self, position: Position, stage: Callable[[Assignment], Staging], batch: str = "") -> bool:
        """What `DriverPort.checkpoint` answers; raises what it raises, or `Stopped`."""
        passes: queue.SimpleQueue[_Pass | None] = queue.SimpleQueue()
        staging = False

        async def ask(assignment: Assignment) -> Staging:
            nonlocal staging
            staging = True
            item = _Pass(assignment)
            passes.put(item)
            return await item.done

        async def checkpoint() -> bool:
            return await self._driver.checkpoint(position, ask, batch)

        answer: Future[bool] = asyncio.run_coroutine_threadsafe(checkpoint(), self._loop)
        answer.add_done_callback(lambda _: passes.put(None))

        def give_up() -> None:  # in the loop, so `staging` cannot change meanwhile
            if not staging:
                answer.cancel()

        while not answer.done():
            try:
                item = passes.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._stop.is_set() and not staging:
                    self._loop.call_soon_threadsafe(give_up)
                continue
            if item is not None:
                item.run(stage)
        try:
            return answer.result()
        except CancelledError as error:
            if staging:
                raise InDoubt("the driver's loop ended while a checkpoint was being decided") from error
            raise Stopped from error
