"""The asyncio loop of a run, in a thread of its own: coordinators and driver live there, Spark does not.

A local run and the pods' processes start it. When something that was spawned there fails, every call that waits fails
with the same error, so a driver never waits for a coordinator that is gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from types import TracebackType
from typing import Any, TypeVar

from sinkruntime.errors import InDoubt

T = TypeVar("T")

#: How long the thread may take to end after everything in it was cancelled.
JOIN_SECONDS = 30.0
#: Connections that were aborted close their sockets in the loop's next rounds.
LAST_ROUNDS_SECONDS = 0.01
#: How often a call that waits looks whether it is to stop.
POLL_SECONDS = 0.2


class Cancelled(Exception):
    """What was waited for is no longer wanted; what it had begun is as after a crash."""


class Backstage:
    """A running loop; a context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sinkjob-backstage", daemon=True)
        self._spawned: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[Any]] = set()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def __enter__(self) -> Backstage:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result(JOIN_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_SECONDS)
        self.loop.close()

    async def _cancel(self) -> None:
        for task in self._spawned:
            task.cancel()
        await asyncio.gather(*self._spawned, return_exceptions=True)
        await asyncio.sleep(LAST_ROUNDS_SECONDS)

    def spawn(self, work: Coroutine[Any, Any, None], *, endless: bool = False) -> None:
        """Start something that runs until it is asked to stop, or else (`endless`) until the end."""

        async def start() -> None:
            task = asyncio.create_task(work)
            self._spawned.add(task)
            if not endless:
                self._ending.add(task)

        asyncio.run_coroutine_threadsafe(start(), self.loop).result()

    def call(self, work: Coroutine[Any, Any, T], stop: threading.Event | None = None) -> T:
        """Run it there and wait for it, here; see `guard`. Cancels it and raises `Cancelled` once `stop` is set."""
        answer = asyncio.run_coroutine_threadsafe(self.guard(work), self.loop)
        while stop is not None and not wait([answer], POLL_SECONDS).done:
            if stop.is_set():
                answer.cancel()
                raise Cancelled
        return answer.result()

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; if something that was spawned ends first, cancel it and raise that one's error."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, *self._spawned}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            for ended in self._spawned:
                if ended.done() and not ended.cancelled():
                    ended.result()
            raise InDoubt("the coordinator has ended, and nobody commits", "start the job again")
        finally:
            if not task.done():
                task.cancel()

    def finish(self, work: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Run it there and wait for it, whatever else has ended; raises TimeoutError. For what closes things."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_seconds)

    def joined(self) -> None:
        """Wait until everything that was spawned and is to end has ended by itself; raises the first error."""

        async def ended() -> None:
            await asyncio.gather(*self._ending)

        asyncio.run_coroutine_threadsafe(ended(), self.loop).result()
