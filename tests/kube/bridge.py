"""Runs a ledger store in a loop of its own thread, so that tests may call it from any loop.

Used by the contract tests: they start a loop for each play, and an `Api` belongs to the one that it was used in first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from sinkruntime.ledger.store import LedgerStore, ObjectName, Stored
from sinkruntime.protocol.ledger import Ledger

_Result = TypeVar("_Result")
CALL_SECONDS = 60.0


class LoopThread:
    """A loop that runs in a thread; a context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(asyncio.sleep(0.01))  # aborted connections close their sockets in the loop's next rounds
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it there, and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_SECONDS)

    async def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it there, and await it in the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


class BridgedStore:
    """See `LedgerStore`; every call goes to `store` in its thread."""

    def __init__(self, store: LedgerStore, thread: LoopThread) -> None:
        self.store = store
        self._thread = thread

    async def load(self) -> Stored | None:
        return await self._thread.call(self.store.load())

    async def create(self, ledger: Ledger) -> Stored:
        return await self._thread.call(self.store.create(ledger))

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        return await self._thread.call(self.store.replace(ledger, version))

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        await self._thread.call(self.store.wait_changed(version, timeout_seconds))

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        await self._thread.call(self.store.put_object(name, data))

    async def get_object(self, name: ObjectName) -> bytes:
        return await self._thread.call(self.store.get_object(name))

    async def remove_object(self, name: ObjectName) -> None:
        await self._thread.call(self.store.remove_object(name))

    async def list_objects(self) -> list[ObjectName]:
        return await self._thread.call(self.store.list_objects())
