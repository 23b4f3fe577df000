"""A ledger store in one process's memory, for tests and the simulator; it forgets everything with the process.

It stores the written form, so whatever passes through it passes through the codec.
"""

from __future__ import annotations

import asyncio

from sinkruntime.errors import LedgerConflict, LedgerCorrupt
from sinkruntime.ledger.store import ObjectName, Stored
from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger


class MemoryLedgerStore:
    """See `LedgerStore`."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.version = 0
        self.objects: dict[ObjectName, bytes] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order, so that a simulation repeats itself

    async def load(self) -> Stored | None:
        """See `LedgerStore`."""
        return None if self.text is None else Stored(codec.decode(self.text), str(self.version))

    async def create(self, ledger: Ledger) -> Stored:
        """See `LedgerStore`."""
        if self.text is not None:
            raise LedgerConflict("there is a ledger already")
        return self._write(ledger)

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        """See `LedgerStore`."""
        if self.text is None or version != str(self.version):
            raise LedgerConflict(f"the ledger is at version {self.version}, not {version}")
        return self._write(ledger)

    def _write(self, ledger: Ledger) -> Stored:
        self.text = codec.encode(ledger)
        self.version += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        return Stored(ledger, str(self.version))

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        """See `LedgerStore`."""
        if version != str(self.version):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=timeout_seconds)
        finally:
            self._waiters.pop(waiter, None)

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        """See `LedgerStore`."""
        self.objects.setdefault(name, data)

    async def get_object(self, name: ObjectName) -> bytes:
        """See `LedgerStore`."""
        try:
            return self.objects[name]
        except KeyError:
            raise LedgerCorrupt(f"payload object {name} is missing") from None

    async def remove_object(self, name: ObjectName) -> None:
        """See `LedgerStore`."""
        self.objects.pop(name, None)

    async def list_objects(self) -> list[ObjectName]:
        """See `LedgerStore`."""
        return sorted(self.objects)
