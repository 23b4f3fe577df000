"""One simulated world: everything that a seed's run consists of, and the end that it must come to.

`run` is the simulator: draw a job and its faults, let the real shells work while the faults go on, heal, demand that
all ends well. The result says which invariant was broken first, and how often each fault and transition was hit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sinkruntime.api import Sink, SinkIdentity
from sinkruntime.coordinator.coordinator import Coordinator
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.ledger import payloads
from sinkruntime.protocol.ledger import FINAL_PARTS, Authority, CheckpointState, Ledger, PartState, Position
from sinkruntime.sinks.memory import MemorySink
from sinkruntime.sinks.memory.session import INTERCEPTS, TARGETS, Options, Tier
from sinkruntime.sinks.memory.target import StagedKey
from tests.simulation.actors import Launcher, drive, operate
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Dice, draw_shape
from tests.simulation.lease import Lease
from tests.simulation.ledger import SimStore, at_once
from tests.simulation.loop import ACTOR, NATURE, PROCESS, Process, SimLoop
from tests.simulation.oracle import Oracle
from tests.simulation.person import Person
from tests.simulation.spark import CheckpointLocation, Spark, offsets_at
from tests.simulation.targets import InPlaceSink, SimIntercept, SimTarget

if TYPE_CHECKING:
    import asyncio

#: Bounds of a run: virtual seconds with faults, virtual seconds and steps in all.
FAULTY_SECONDS = 60.0
HEALED_SECONDS = 900.0

#: A job that waits for somebody who never speaks is judged after this.
QUIET_SECONDS = 120.0
STEPS_MAX = 40_000


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.dice = Dice(random.Random(self.rng.getrandbits(64)))
        self.shape = draw_shape(self.rng)
        self.loop = SimLoop(self.rng)
        self.trace: list[tuple[Any, ...]] = []
        self.ledger_id = f"ledger-{seed}"
        self.vanished: set[StagedKey] = set()
        self.lives: dict[StagedKey, float] = {}  # what a writer said of its staged data's life
        self.disturbed: dict[str, float] = {}  # when something was last done to the job from outside
        self.sinks: dict[str, Sink] = {}
        self.targets: dict[str, SimTarget] = {}
        self.intercepts: dict[str, SimIntercept] = {}
        self.authority: dict[str, Authority] = {}
        for name, tier, in_driver, in_place in self.shape.sinks:
            self._add_sink(name, tier, in_driver, in_place)
        self.driver_sinks = frozenset(n for n, a in self.authority.items() if a is Authority.EPOCH)
        self.wishes = Wishes()
        self.oracle = Oracle(self)
        self.store = SimStore(self, self.shape.through_codec)
        self.spark = Spark(self)
        self.lease = Lease(self)
        self.person = Person(self)
        self.chaos = Chaos(self)
        self.tenures: dict[Process, tuple[Coordinator, str]] = {}
        self.drivers: list[Process] = []
        self.executors: dict[Process, Process] = {}
        self.finished = False  # the last driver run came to the end of the source, with nothing pending
        self._given_up: dict[Process, asyncio.Future[None]] = {}
        self._operators = 0
        self._began: dict[Process, float] = {}
        self.healed_at = 0.0

    def _add_sink(self, name: str, tier: str, in_driver: bool, in_place: bool) -> None:
        kind = InPlaceSink if in_place else MemorySink
        self.sinks[name] = kind(Options(target=name, tier=Tier(tier)), SinkIdentity(self.ledger_id, name, "ns/job"))
        self.targets[name] = TARGETS[name] = SimTarget(f"target-{name}", in_place)
        self.intercepts[name] = INTERCEPTS[name] = SimIntercept(self, name)
        self.authority[name] = Authority.EPOCH if in_driver else Authority.TOKEN

    # What happens to processes.

    def note(self, text: str, *values: object) -> None:
        """A line of the trace; it is made into text only if somebody reads it."""
        self.trace.append((self.loop.time(), ACTOR.get(), text, values))

    def note_change(self, before: Ledger, after: Ledger, actor: str) -> None:
        """A line of the trace for a change of the ledger."""
        self.trace.append((self.loop.time(), actor, before, after))

    def context_of(self, process: Process) -> Context:
        """A context in which code runs as this process."""
        context = copy_context()
        context.run(PROCESS.set, process)
        context.run(ACTOR.set, process.name)
        return context

    def kill(self, process: Process, why: str) -> None:
        """End a process; its machine tells nobody at once."""
        if not process.alive or process.kind in ("nature", "launcher"):
            return
        self.note("%s is dead: %s", process, why)
        self.loop.kill(process)
        self.lease.died(process)
        if process.kind == "driver":
            self.loop.nature(self.dice.seconds(2.0), self._reap, process)
        elif process.kind == "operator":
            self.tenures.pop(process, None)
            self.loop.nature(self.dice.seconds(2.0), self.start_operator)

    def _reap(self, driver: Process) -> None:
        """The cluster removes the executors of a dead driver, and the launcher sees that it is dead."""
        self.kill(self.executors[driver], "its driver is dead")
        self._give_up(driver)

    def pause(self, process: Process) -> None:
        """A process hangs for a while; whoever waits for it may lose patience first."""
        if not process.alive or process.paused or process.kind in ("nature", "launcher"):
            return
        self.note("%s hangs", process)
        self.loop.pause(process)
        self.loop.nature(self.dice.seconds(15.0), self.wake, process)
        if process.kind == "driver":
            self.loop.nature(self.dice.seconds(8.0), self._lose_patience, process)
        elif process.kind == "operator":
            self.lease.hangs(process)

    def wake(self, process: Process) -> None:
        """It goes on."""
        if process.paused:
            self.note("%s goes on", process)
            self.loop.wake(process)

    def _lose_patience(self, driver: Process) -> None:
        if driver.paused:
            self._give_up(driver)

    def stumble(self) -> None:
        """Whoever runs now may stop here, for a while or for ever."""
        dice = self.dice
        if dice.hit("step.kill"):
            self.kill(PROCESS.get(), "killed in the middle")
        elif dice.hit("step.pause"):
            self.pause(PROCESS.get())

    def expire(self, sink: str) -> None:
        """The target drops what has outlived its time."""
        self.targets[sink].expire(self.loop.time())
        self.oracle.look(sink)

    # Drivers.

    def start_driver(self, epoch: int, suffix: str) -> Process:
        """Start a driver process and its executors."""
        process = Process(f"driver-{epoch}{suffix}", "driver", epoch)
        executor = Process(f"executors-{epoch}{suffix}", "executors", epoch)
        self._set_clock(process)
        self.loop.processes.append(executor)
        self.executors[process] = executor
        self.drivers.append(process)
        self._given_up[process] = self.loop.create_future()
        self.note("%s starts", process)
        self._began[process] = self.loop.time()
        self.finished = False
        _ = self.loop.start(process, drive(self, process, executor))
        return process

    def _set_clock(self, process: Process) -> None:
        if self.dice.hit_event("clock.skew"):
            process.skew_seconds = self.rng.uniform(-3600, 3600)
            process.drift = self.rng.uniform(0.9, 1.1)

    async def until_given_up(self, process: Process) -> None:
        """Until the launcher believes that this driver is gone."""
        await self._given_up[process]

    def _give_up(self, process: Process) -> None:
        if not self._given_up[process].done():
            self._given_up[process].set_result(None)

    def started(self, process: Process) -> None:
        """A driver passed its start check."""
        self.note("%s passed the start check", process)
        if not self.shape.careless:  # such a one may start beside another
            self.oracle.started(self._began[process])
        self.person.content()

    def driver_ended(self, process: Process, error: BaseException | None) -> None:
        """A driver's main has returned or raised."""
        self.note("%s ends: %s", process, error or "done")
        if error is not None:
            self.person.hear(error)

    def stop_drivers(self) -> None:
        """A new manifest: the running driver is ended, and the next one starts with what it says."""
        for driver in self.drivers:
            self.kill(driver, "a new manifest")

    def drained(self, ledger: Ledger) -> None:
        """A driver came to the end of the source and waited for the commits."""
        self.finished = not ledger.pending

    def running_processes(self) -> Iterator[Process]:
        """Driver and executor processes that may still do something."""
        for driver in self.drivers:
            if driver.alive:
                yield driver
            if self.executors[driver].alive:
                yield self.executors[driver]

    def older_gone(self, epoch: int) -> bool:
        """Whether all processes of epochs below this one are confirmed gone."""
        return all(process.epoch >= epoch for process in self.running_processes())

    def job_done(self) -> bool:
        """Whether there is no driver to start: all is done, or a person has to speak first."""
        return self.finished or self.person.blocked()

    # Operators.

    def start_operator(self) -> None:
        """Start an operator process."""
        self._operators += 1
        process = Process(f"operator-{self._operators}", "operator")
        self._set_clock(process)
        _ = self.loop.start(process, operate(self, process))

    # Rows.

    def row_range(self, position: Position) -> range:
        """The rows of a batch."""
        first, beyond = self.spark.location.planned[position.batch_id]
        return range(first, beyond)

    def rows_of(self, position: Position) -> list[int]:
        """The rows between two offsets, by the offsets alone."""
        first, beyond = self._row_at[position.start.digest], self._row_at[position.end.digest]
        return [self.row_of(row, position.query_id) for row in range(first, beyond)]

    def row_of(self, row: int, query_id: str) -> int:
        """What is written for a row of the source: another query makes something else of it."""
        return row + 1000 * int(query_id.rpartition("-")[2] or 0)

    def disturb(self, what: str) -> None:
        """Something was done from outside; who has begun already need not see it."""
        self.disturbed[what] = self.loop.time()

    def delete_location(self) -> None:
        """Someone deletes the checkpoint location; the next query is another one, and reads other rows."""
        self.spark.location = CheckpointLocation()
        self.disturb("location")
        self.note("the checkpoint location is deleted")

    def restore_one_batch_back(self) -> None:
        """Someone restores the checkpoint location from a backup that lacks the last batch."""
        self.spark.backup = self.spark.backup or self.spark.location
        self.spark.location = self.spark.location.one_batch_back()
        self.disturb("location")
        self.note("the checkpoint location is restored one batch back")

    # The run.

    def begin(self) -> None:
        """Everything starts."""
        payloads.INLINE_BYTES_MAX = self.shape.inline_bytes_max
        at_once(self.store.create(Ledger(self.ledger_id, "ns/job")))
        self.spark.rows_total = self.shape.batches * 3
        self._row_at = {offsets_at(row).digest: row for row in range(self.spark.rows_total + 1)}
        for _ in range(self.shape.operators):
            self.start_operator()
        launcher = Process("launcher", "launcher")
        _ = self.loop.start(launcher, Launcher(self, launcher).run())
        _ = self.loop.start(NATURE, self.chaos.run(), "chaos")
        _ = self.loop.start(NATURE, self.person.run(), "person")

    def broken(self) -> bool:
        """Whether the run must end here."""
        return self.oracle.violation is not None or self.loop.failed is not None

    def settled(self) -> bool:
        """Whether the job has come to its end, and nothing is under way any more."""
        if self.broken():
            return True
        ledger = self.store.ledger
        assert ledger is not None
        if not self.older_gone(ledger.epoch):
            return False
        older = any(record.epoch < ledger.epoch for record in ledger.records)
        if ledger.closed.get(Authority.TOKEN, 0) < ledger.epoch and not older:
            return False
        if self.finished:
            return not ledger.records and not any(True for _ in self.running_processes())
        quiet = self.loop.time() > self.healed_at + QUIET_SECONDS
        return quiet and self.person.stubborn() and self.person.asked(ledger)


@dataclass(slots=True)
class Result:
    """What became of one seed."""

    seed: int
    violation: str | None
    steps: int
    seconds: float
    hits: dict[str, int]
    world: World = field(repr=False)


def run(seed: int) -> Result:
    """Run one seed to its end."""
    world = World(seed)
    try:
        world.begin()
        loop = world.loop
        limit = FAULTY_SECONDS * world.dice.rng.random()
        loop.run(lambda: world.broken() or world.finished or loop.time() > limit, STEPS_MAX)
        world.note("the faults stop")
        world.healed_at = loop.time()
        world.dice.healed = True
        _finish(world)
        verdict = _verdict(world)
    finally:
        world.loop.close()
        TARGETS.clear()
        INTERCEPTS.clear()
    return Result(seed, verdict, world.loop.steps, world.loop.time(), dict(world.dice.hits), world)


def _finish(world: World) -> None:
    """Demand progress, then a clean end; a job with sinks in the driver needs one more driver for that."""
    _until_settled(world)
    if world.broken():
        return
    _no_garbage(world, Authority.TOKEN)
    ledger = world.store.ledger
    if world.driver_sinks and not world.broken() and ledger is not None and not ledger.records:
        world.finished = False
        _until_settled(world)
        if world.finished and not world.broken():
            _no_garbage(world, Authority.EPOCH)


def _until_settled(world: World) -> None:
    limit = world.loop.time() + HEALED_SECONDS
    loop = world.loop
    loop.run(lambda: world.settled() or loop.time() > limit, loop.steps + STEPS_MAX)
    if not world.settled():
        world.oracle.fail("I6", f"no end within {HEALED_SECONDS:.0f} s and {STEPS_MAX} steps after the faults stopped")


def _no_garbage(world: World, authority: Authority) -> None:
    ledger, oracle = world.store.ledger, world.oracle
    assert ledger is not None
    _all_wait_with_reason(world, ledger)
    unsettled = {(record.number, record.epoch) for record in ledger.records}
    for name, target in world.targets.items():
        if world.authority[name] is authority:
            older = [key for key in target.staged if key.epoch < ledger.epoch]
            left = [key for key in older if (key.checkpoint, key.epoch) not in unsettled]
            oracle.demand(not left, "I7", f"still staged in {name} at the end: {left[:2]}")
    named = {part.payload.pointer for record in ledger.records for part in record.parts.values() if part.payload}
    named |= {pointer for record in ledger.records for pointer in record.superseded}
    named |= {payload.pointer for payload in ledger.last.states.values()} if ledger.last else set()
    named |= oracle.dropped
    kept = {str(record.epoch) for record in ledger.records} | {str(ledger.epoch)}
    orphans = [n for n in world.store.objects if n not in named and n.partition("-")[0] not in kept]
    oracle.demand(not orphans, "I7", f"payload objects are left: {orphans}")


def _all_wait_with_reason(world: World, ledger: Ledger) -> None:
    """Each pending checkpoint is held with a reason, or comes after one, or waits for the driver that waits."""
    busy: set[str] = set()
    for record in ledger.pending:
        for sink, part in record.parts.items():
            first = sink not in busy and part.state not in FINAL_PARTS
            if part.state not in FINAL_PARTS:
                busy.add(sink)
            aborting = record.state is CheckpointState.ABORTING and bool(world.driver_sinks)
            driverless = world.person.blocked() and (aborting or part.authority is Authority.EPOCH)
            waits = not first or driverless or (part.state is PartState.HELD and bool(part.reason))
            world.oracle.demand(waits, "I6", f"checkpoint {record.number} of {sink} is {part.state}, nobody knows why")


def _verdict(world: World) -> str | None:
    if world.loop.failed is not None and world.oracle.violation is None:
        error = world.loop.failed
        return f"a process ended with an error that is not ours: {type(error).__name__}: {error}"
    return world.oracle.violation
