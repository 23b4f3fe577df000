"""A driver on a real ledger that a test can disturb, with staging passes that need no Spark."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sinkruntime.api import Lineage
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.driver.staging import Assignment, Staging, TaskResult, Written
from sinkruntime.environment import Environment
from sinkruntime.errors import AnswerLost, LedgerUnavailable
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import Stored
from sinkruntime.protocol.events import Event, TargetView
from sinkruntime.protocol.ledger import Ledger
from tests.protocol.build import (
    TOKEN,
    after,
    running,
)


class HandClock:
    """Moves when it is told to."""

    now = 1000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Store(MemoryLedgerStore):
    """A memory store that loses answers on demand, and remembers what was removed."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.removed: list[str] = []
        self.waits = 0

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "unavailable":
            raise LedgerUnavailable("no route")
        if fault == "lost":
            raise AnswerLost("no answer")
        written = await super().replace(ledger, version)
        if fault == "lost-applied":
            raise AnswerLost("no answer")
        return written

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        self.waits += 1
        await super().wait_changed(version, timeout_seconds)

    async def remove_object(self, name: str) -> None:
        self.removed.append(name)
        await super().remove_object(name)


@dataclass
class World:
    """A ledger, a driver of its epoch 1, and a coordinator that is played by hand."""

    store: Store = field(default_factory=Store)
    clock: HandClock = field(default_factory=HandClock)
    settings: DriverSettings = field(
        default_factory=lambda: DriverSettings(1, "driver-1", "rev-1", {"a": TOKEN, "b": TOKEN}, max_pending=2)
    )
    staged: list[Assignment] = field(default_factory=list)

    @property
    def environment(self) -> Environment:
        return Environment(self.clock, random.Random(5))

    def driver(self, **changed: Any) -> Driver:
        return Driver(self.store, replace(self.settings, **changed), self.environment)

    async def put(self, ledger: Ledger) -> None:
        """Make it the present ledger, whatever was there."""
        present = await self.store.load()
        await (self.store.replace(ledger, present.version) if present else self.store.create(ledger))

    async def ledger(self) -> Ledger:
        present = await self.store.load()
        assert present is not None
        return present.ledger

    async def happen(self, *events: Event) -> None:
        await self.put(after(await self.ledger(), *events))

    async def stage(self, assignment: Assignment) -> Staging:
        self.staged.append(assignment)
        return whole(assignment)


def result(assignment: Assignment, sink: str, subtask: int, subtasks: int = 2, **fields: Any) -> TaskResult:
    lineage = Lineage(assignment.checkpoint, assignment.epoch, subtask, subtasks, 0)
    made = TaskResult(sink, lineage, Written(1, f"{sink}{subtask}".encode()), rows=3)
    return replace(made, **fields)


def whole(assignment: Assignment, **fields: Any) -> Staging:
    results = [result(assignment, sink, index, **fields) for sink in "ba" for index in (1, 0)]
    return Staging(results, {"a": 2, "b": 2})


def play(scene: Callable[[World], Coroutine[Any, Any, None]], ledger: Ledger | None = None) -> World:
    world = World()

    async def run() -> None:
        await world.put(running() if ledger is None else ledger)
        await scene(world)

    asyncio.run(run())
    return world


async def nothing() -> Mapping[str, TargetView]:
    return {}


async def soon(predicate: Callable[[], bool]) -> None:
    for _ in range(200):
        if predicate():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to pass")
