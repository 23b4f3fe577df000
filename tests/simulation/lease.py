"""A simulated Lease: it says who works, it may be lost, late or held by two, and it fences nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

EXPIRY_SECONDS = 3.0


class Lease:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holder: Process | None = None
        self._waiting: dict[Process, asyncio.Future[None]] = {}
        self._pokes: dict[Process, asyncio.Future[None]] = {}

    async def acquire(self, process: Process) -> None:
        """Until this process may believe that it holds the lease."""
        if self.holder is None:
            self.holder = process
            return
        self._waiting[process] = self._world.loop.create_future()
        await self._waiting[process]

    def poke(self, process: Process) -> asyncio.Future[None]:
        """Done when this process shall end its tenure."""
        self._pokes[process] = self._world.loop.create_future()
        return self._pokes[process]

    def tell(self, process: Process) -> None:
        """Its tenure shall end."""
        future = self._pokes.get(process)
        if future is not None and not future.done():
            future.set_result(None)

    def tell_all(self) -> None:
        """Something that a coordinator is told at its start has changed."""
        for process in list(self._pokes):
            self.tell(process)

    def leave(self, process: Process) -> None:
        """It gives the lease back."""
        if self.holder is process:
            self._grant()

    def died(self, process: Process) -> None:
        """Nobody renews it any more."""
        self._waiting.pop(process, None)
        self._pokes.pop(process, None)
        if self.holder is process:
            self._world.loop.nature(EXPIRY_SECONDS, self._expire, process)

    def hangs(self, process: Process) -> None:
        """Nobody renews it for now."""
        if self.holder is process:
            self._world.loop.nature(EXPIRY_SECONDS, self._expire, process)

    def lose(self) -> None:
        """Another one takes it; the holder hears of it soon, or not so soon."""
        loser = self.holder
        if loser is not None:
            self._grant()
            self._world.loop.nature(self._world.dice.seconds(1.0), self.tell, loser)

    def split(self) -> None:
        """Another one believes that it holds it, too."""
        if self._waiting:
            self._grant()

    def _expire(self, process: Process) -> None:
        if self.holder is process and (process.paused or not process.alive):
            self._grant()
            self.tell(process)

    def _grant(self) -> None:
        self.holder = None
        while self._waiting and self.holder is None:
            process = next(iter(self._waiting))
            future = self._waiting.pop(process)
            if process.alive and not future.done():
                self.holder = process
                future.set_result(None)
