"""Runs committers' blocking calls within a time limit.

The coordinator calls `Runner.call`; here it is threads of this process, in the operator worker processes, in the
simulator a virtual scheduler. A call that runs out of time goes on unobserved: its outcome is unknown, and its
committer is not used again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

#: More abandoned calls than this, and nothing new is started until one of them returns.
ABANDONED_MAX = 8


class OutOfTime(Exception):
    """The call did not return within its limit; whether it had an effect is not known."""


class NotStarted(Exception):
    """The call was not begun, and had no effect; it may be tried again."""


class TooManyAbandoned(NotStarted):
    """So many calls hang that no other is started."""


class Runner(Protocol):
    """Runs `function` elsewhere and awaits its result."""

    async def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """Its result or its exception; raises `OutOfTime` or `NotStarted`."""


class ThreadRunner:
    """A daemon thread per call: a hung target can neither block another sink nor keep the process from ending."""

    def __init__(self) -> None:
        self._abandoned = 0

    async def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """See `Runner`."""
        if self._abandoned >= ABANDONED_MAX:
            raise TooManyAbandoned(f"{self._abandoned} calls have not returned")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        gone = threading.Event()

        def settle(value: T | None, error: BaseException | None) -> None:
            if gone.is_set():
                self._abandoned -= 1
            elif not result.cancelled():
                result.set_exception(error) if error else result.set_result(value)  # type: ignore[arg-type]

        def run() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as caught:  # noqa: BLE001  (whatever it is goes to the awaiting coordinator)
                error = caught
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError:
                return  # the loop is closed: the process is ending, and the outcome is unknown to it

        threading.Thread(target=run, name="commit", daemon=True).start()
        try:
            await asyncio.wait([result], timeout=timeout_seconds)
        finally:
            if not result.done():
                gone.set()
                self._abandoned += 1
        if gone.is_set():
            raise OutOfTime(f"no answer within {timeout_seconds:.1f} s")
        return result.result()
