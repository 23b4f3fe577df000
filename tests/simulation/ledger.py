"""The simulated ledger: the real in-memory store, and each process's own bad connection to it.

`world` makes one `SimStore` per seed and hands `Connection`s to the shells. Reads are never stale, as Kubernetes'
quorum reads are not; everything else may go wrong. It never judges: each accepted version goes to the oracle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sinkruntime.errors import AnswerLost, LedgerConflict, LedgerUnavailable
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import ObjectName, Stored
from sinkruntime.protocol.ledger import Ledger
from tests.simulation.loop import ACTOR

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")


class SimStore(MemoryLedgerStore):
    """The store itself, on the far side of the network. It keeps the value, and its written form in some seeds."""

    def __init__(self, world: World, through_codec: bool) -> None:
        super().__init__()
        self._world = world
        self._through_codec = through_codec
        self.ledger: Ledger | None = None
        self.unavailable_until = 0.0

    async def load(self) -> Stored | None:
        """See `LedgerStore`."""
        if self._through_codec:
            return await super().load()
        return None if self.ledger is None else Stored(self.ledger, str(self.version))

    def _write(self, ledger: Ledger) -> Stored:
        before, self.ledger = self.ledger, ledger
        if self._through_codec:
            stored = super()._write(ledger)
        else:
            self.text = "kept as a value"
            self.version += 1
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
            stored = Stored(ledger, str(self.version))
        self._world.oracle.accepted(before, ledger, ACTOR.get())
        return stored

    def touch(self) -> None:
        """Someone changes the object's metadata: another version of the same ledger."""
        self.version += 1

    def remove(self, name: ObjectName) -> None:
        """Remove a payload object."""
        self.objects.pop(name, None)
        self._world.oracle.object_removed(name)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it awaited something")


class Connection:
    """A `LedgerStore` as one process sees it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store

    async def load(self) -> Stored | None:
        """See `LedgerStore`."""
        await self._pass()
        return await self._store.load()

    async def create(self, ledger: Ledger) -> Stored:
        """See `LedgerStore`."""
        await self._pass()
        return await self._store.create(ledger)

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        """See `LedgerStore`."""
        world, dice = self._world, self._world.dice
        await self._pass()
        if dice.hit("store.conflict"):
            self._store.touch()

        def send() -> Stored:
            return at_once(self._store.replace(ledger, version))

        if dice.hit("store.lost_before"):
            await asyncio.sleep(dice.seconds(1.0))
            raise AnswerLost("the request was lost")
        if dice.hit("store.late"):
            world.loop.nature(dice.seconds(6.0), _quietly, send)
            await asyncio.sleep(dice.seconds(1.0))
            raise AnswerLost("the request is late")
        if dice.hit("store.duplicated"):
            world.loop.nature(dice.seconds(3.0), _quietly, send)
        stored = send()
        await self._linger()
        if dice.hit("store.lost_after"):
            await asyncio.sleep(dice.seconds(1.0))
            raise AnswerLost("the answer was lost")
        return stored

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        """See `LedgerStore`."""
        dice = self._world.dice
        if dice.hit("store.no_hint"):
            await asyncio.sleep(timeout_seconds)
        elif dice.hit("store.false_hint"):
            await asyncio.sleep(dice.seconds(0.1))
        else:
            await self._store.wait_changed(version, timeout_seconds)

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        """See `LedgerStore`."""
        await self._pass()
        await self._store.put_object(name, data)
        await self._linger()

    async def get_object(self, name: ObjectName) -> bytes:
        """See `LedgerStore`."""
        await self._pass()
        return await self._store.get_object(name)

    async def remove_object(self, name: ObjectName) -> None:
        """See `LedgerStore`."""
        await self._pass()
        self._store.remove(name)
        await self._linger()

    async def list_objects(self) -> list[ObjectName]:
        """See `LedgerStore`."""
        await self._pass()
        return await self._store.list_objects()

    async def _pass(self) -> None:
        """On the way there."""
        world, dice = self._world, self._world.dice
        world.stumble()
        if dice.hit("store.slow"):
            await asyncio.sleep(dice.seconds(0.3))
        else:
            await asyncio.sleep(0)
        if dice.hit("store.unavailable"):
            self._store.unavailable_until = world.loop.time() + dice.seconds(5.0)
        if world.loop.time() < self._store.unavailable_until and not dice.healed:
            raise LedgerUnavailable("the ledger is not reachable")

    async def _linger(self) -> None:
        """On the way back: whoever dies here has done it without knowing."""
        self._world.stumble()
        await asyncio.sleep(0)


def _quietly(send: Callable[[], Stored]) -> None:
    """A request that nobody waits for any more."""
    try:
        send()
    except LedgerConflict:
        return
