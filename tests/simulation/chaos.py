"""What goes wrong by itself: processes die or hang, leases are lost, people and disasters interfere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.actors import abort
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Chaos:
    """Draws events until the faults stop."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self) -> None:
        """One event after another."""
        dice = self._world.dice
        mean = dice.rng.choice((1.0, 3.0, 8.0))
        while not dice.healed:
            await asyncio.sleep(dice.seconds(mean))
            kind = dice.event()
            if kind is None:
                return
            handler = getattr(self, "_" + kind.replace(".", "_"), None)
            if handler is not None and handler() is not False:
                dice.hits[kind] += 1

    def _any(self, kind: str) -> Process | None:
        alive = [p for p in self._world.loop.processes if p.kind == kind and p.alive]
        return self._world.dice.rng.choice(alive) if alive else None

    def _kill_driver(self) -> bool:
        process = self._any("driver")
        if process is not None:
            self._world.kill(process, "killed")
        return process is not None

    def _kill_operator(self) -> bool:
        process = self._any("operator")
        if process is not None:
            self._world.kill(process, "killed")
        return process is not None

    def _pause_driver(self) -> bool:
        process = self._any("driver")
        if process is not None:
            self._world.pause(process)
        return process is not None

    def _pause_operator(self) -> bool:
        process = self._any("operator")
        if process is not None:
            self._world.pause(process)
        return process is not None

    def _lease_lost(self) -> None:
        self._world.note("the lease is lost")
        self._world.lease.lose()

    def _lease_split(self) -> None:
        self._world.note("two hold the lease")
        self._world.lease.split()

    def abort(self) -> None:
        """Somebody loses patience with all that is pending."""
        self._abort(0)

    def _person_abort(self) -> bool:
        return self._abort(None)

    def _abort(self, which: int | None) -> bool:
        """Abort from this one of the pending checkpoints on; None: from any."""
        world = self._world
        ledger = world.store.ledger
        if ledger is None or not ledger.pending or not world.tenures:
            return False
        process = world.dice.rng.choice(list(world.tenures))
        holder = world.tenures[process][1]
        if holder != ledger.holder:
            return False
        numbers = [record.number for record in ledger.pending]
        first = world.dice.rng.choice(numbers) if which is None else numbers[which]
        world.note("somebody aborts from %d on", first)
        _ = world.loop.start(process, abort(world, process, ledger.token, first), holder)
        return True

    def _person_abandon(self) -> None:
        self._world.person.speak(frozenset({"AbandonPending"}))

    def _person_retry(self) -> None:
        self._world.person.speak(frozenset(), retry=True)

    def _target_hold(self) -> None:
        world = self._world
        name = world.dice.rng.choice(list(world.intercepts))
        world.intercepts[name].refuses_until = world.loop.time() + world.dice.seconds(6.0)
        world.note("%s refuses everything for a while", name)

    def _target_vanish(self) -> bool:
        """A lifecycle rule of the target removes something staged."""
        world = self._world
        name = world.dice.rng.choice(list(world.targets))
        target = world.targets[name]
        if not target.staged:
            return False
        victim = world.dice.rng.choice(sorted(target.staged))
        target.remove(lambda key: key == victim, "expiry")
        world.oracle.look(name)
        world.note("%s has lost what was staged under %s", name, victim)
        return True

    def _target_rollback(self) -> bool:
        world = self._world
        name = world.dice.rng.choice(list(world.targets))
        owner, ledger = (world.ledger_id, name), world.store.ledger
        last = world.targets[name].evidence.get(owner, 0)
        known = ledger is not None and name in ledger.sinks and last <= ledger.sinks[name].evidence
        if not last or not known:
            return False  # what the ledger does not know yet nobody could miss
        world.targets[name].roll_back(owner)
        world.disturb("evidence")
        world.note("%s is restored from before checkpoint %d", name, last)
        world.oracle.rolled_back(name, last)
        return True

    def _target_ahead(self) -> bool:
        """The ledger was restored from a backup, so to say: the target has evidence that nobody knows."""
        world = self._world
        ledger = world.store.ledger
        busy = ledger is None or ledger.records or any(driver.alive for driver in world.drivers)
        if busy or ledger is None:
            return False
        name = world.dice.rng.choice(list(world.targets))
        known = ledger.sinks[name].evidence if name in ledger.sinks else 0
        if world.targets[name].evidence.get((world.ledger_id, name), 0) != known:
            return False  # one disaster of a target would hide the other
        world.targets[name].evidence[world.ledger_id, name] = ledger.decided + world.dice.rng.randint(1, 3)
        world.store.touch()  # what is restored is a new version: no late decision of a dead driver lands on it
        world.disturb("evidence")
        world.note("%s has evidence of what was never decided", name)
        return True

    def _target_replaced(self) -> bool:
        world = self._world
        name = world.dice.rng.choice(list(world.targets))
        world.targets[name].identity += "'"
        world.disturb("identity")
        world.note("%s is exchanged for another one", name)
        return True

    def _spark_restored(self) -> bool:
        world = self._world
        if not world.spark.location.planned:
            return False
        world.restore_one_batch_back()
        return True

    def _spark_deleted(self) -> bool:
        world = self._world
        if not world.spark.location.query_id:
            return False
        world.delete_location()
        return True
