"""The people around a job: they read why it does not go on, and say a word, or do not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.errors import StartRefused
from sinkruntime.protocol.ledger import Ledger, PartState

if TYPE_CHECKING:
    from tests.simulation.world import World


class Person:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stopped_by: str | None = None  # the reason of the last start that was refused
        self.heard: set[str] = set()

    def hear(self, error: BaseException) -> None:
        """A driver ended with an error."""
        if isinstance(error, StartRefused):
            self._stopped_by = error.reason
            self.heard.add(error.reason)

    def content(self) -> None:
        """A driver has started."""
        self._stopped_by = None

    def blocked(self) -> bool:
        """Whether nothing starts before somebody speaks."""
        return self._stopped_by is not None

    def asked(self, ledger: Ledger) -> bool:
        """Whether the job waits for a word."""
        return self.blocked() or any(p.state is PartState.HELD for r in ledger.pending for p in r.parts.values())

    def stubborn(self) -> bool:
        """Whether nobody will ever speak."""
        return self._world.shape.stubborn and self._world.dice.healed

    async def run(self) -> None:
        """Look now and then."""
        rng = self._world.dice.rng
        while True:
            await asyncio.sleep(rng.uniform(2.0, 6.0))
            if not self.stubborn():
                self._look()

    def _look(self) -> None:
        world = self._world
        ledger = world.store.ledger
        assert ledger is not None
        held = {p.reason for r in ledger.pending for p in r.parts.values() if p.state is PartState.HELD}
        wanted = set(held)
        if self._stopped_by is not None:
            wanted.add(self._stopped_by)
        if not wanted:
            return
        if world.spark.backup is not None and world.dice.rng.random() < 0.5:
            world.spark.location, world.spark.backup = world.spark.backup, None
            world.disturb("location")
            world.note("the newer checkpoint location is restored")
            self._stopped_by = None
            return
        self.speak(frozenset(wanted), retry=bool(held))

    def speak(self, accept: frozenset[str], retry: bool = False) -> None:
        """Write a new `recovery` into the manifest; the coordinators start again with it."""
        world = self._world
        world.wishes = Wishes(world.wishes.nonce + 1, accept, retry, "somebody")
        world.note("somebody accepts %s%s", ", ".join(sorted(accept)) or "nothing", ", and lets it try again" * retry)
        self._stopped_by = None
        world.lease.tell_all()
        world.stop_drivers()
