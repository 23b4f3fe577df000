"""Who takes part: the launcher, driver processes, operators. The real shells run inside them.

`world` starts them. What they do beside calling the shells is what the real entry points do: start processes, hold a
lease, stop the one half when the other half ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import OutOfTime
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.driver.driver import Driver, DriverSettings, Views
from sinkruntime.driver.staging import Assignment, LineageIncomplete, Staging
from sinkruntime.environment import Environment
from sinkruntime.errors import SinkjobError
from sinkruntime.ledger.change import change
from sinkruntime.protocol.events import BeginAbort, Decide, Event, RaiseEpoch, Refused, TargetView
from sinkruntime.protocol.ledger import Authority, Ledger, Position
from tests.simulation.ledger import Connection
from tests.simulation.loop import Process
from tests.simulation.spark import SparkStopped, Tasks
from tests.simulation.targets import SimRunner

if TYPE_CHECKING:
    from sinkruntime.ledger.store import Stored
    from tests.simulation.world import World

PATIENCE_SECONDS = 60.0


class SimClock:
    """A process's clock, wrong in its own way."""

    def __init__(self, world: World, process: Process) -> None:
        self._loop = world.loop
        self._process = process

    def wall(self) -> float:
        """See `Clock`."""
        return 1.8e9 + self._loop.time() + self._process.skew_seconds

    def monotonic(self) -> float:
        """See `Clock`."""
        return 1000.0 + self._loop.time() * self._process.drift


def environment_of(world: World, process: Process) -> Environment:
    """Time and randomness of one process."""
    return Environment(SimClock(world, process), random.Random(world.rng.getrandbits(64)))


def services_of(world: World, environment: Environment) -> Services:
    """What a coordinator works with, in any process."""
    return Services(
        store=Connection(world),
        environment=environment,
        runner=SimRunner(world),
        metrics=Metrics(),
        sinks_of=lambda revision: world.sinks,
        revision="r1",
        driver_sinks=world.driver_sinks,
        older_gone=world.older_gone,
        wishes=world.wishes,
    )


def commit_settings(world: World) -> CommitSettings:
    """Short times, so that a run stays short."""
    timeout = world.shape.commit_timeout_seconds
    return CommitSettings(timeout, 4 * timeout, backoff_max_seconds=5.0, chunk_size=world.shape.chunk_size)


class CarelessDriver(Driver):
    """One that does not look at the ledger before it stages and decides: the ledger must refuse by itself."""

    async def claim(self) -> None:
        """Forgotten now and then; not where a coordinator of its own would speak under an unclaimed epoch."""
        alone = Authority.EPOCH not in self._settings.authority.values()
        if not alone or self._environment.random.random() < 0.8:
            await super().claim()

    async def _settled(self, views: Views) -> None:
        if self._environment.random.random() < 0.5:
            await super()._settled(views)

    async def _slot(self, stored: Stored, position: Position, batch: str) -> Stored | None:
        last = stored.ledger.last
        return None if last is not None and last.position.same_rows(position) and not batch else stored

    async def _prepare(self, assignment: Assignment, staging: Staging, position: Position, batch: str) -> Decide:
        event = await super()._prepare(assignment, staging, position, batch)
        if self._environment.random.random() < 0.1:  # it counts by itself, and wrongly
            wrong = event.record.number + self._environment.random.choice((-1, 1))
            event = replace(event, record=replace(event.record, number=max(1, wrong)))
        return event


async def drive(world: World, process: Process, executor: Process) -> None:
    """The main of a driver process; it ends with the process."""
    try:
        await _drive(world, process, executor)
        world.driver_ended(process, None)
    except (SinkjobError, SparkStopped, LineageIncomplete, ConnectionError, OutOfTime) as error:
        world.driver_ended(process, error)
    except Exception as error:
        world.loop.failed = error
        raise
    world.kill(process, "ended")


async def _drive(world: World, process: Process, executor: Process) -> None:
    environment = environment_of(world, process)
    settings = DriverSettings(
        epoch=process.epoch,
        claimant=process.name,
        revision="r1",
        authority=world.authority,
        max_pending=world.shape.max_pending,
        commit_timeout_seconds=world.shape.commit_timeout_seconds,
        patience_seconds=PATIENCE_SECONDS,
        nonce=world.wishes.nonce,
        accept=world.wishes.accept,
    )
    careless = world.shape.careless and not world.dice.healed
    driver = (CarelessDriver if careless else Driver)(Connection(world), settings, environment)
    await driver.claim()
    coordinator: Coordinator | None = None
    if world.driver_sinks:
        tenure = Tenure(Authority.EPOCH, process.name, process.epoch)
        coordinator = Coordinator(services_of(world, environment), commit_settings(world), tenure)
        running = asyncio.create_task(coordinator.run())
        running.add_done_callback(lambda task: _died_with(world, process, task))
    await driver.start(world.spark.location.view(), lambda: _views(world))
    world.started(process)
    await (_batch_job if world.shape.batch_job else _batches)(world, driver, executor)
    ledger = await driver.drained()
    if coordinator is not None:
        coordinator.stop()
        await running
    world.drained(ledger)


def _died_with(world: World, process: Process, task: asyncio.Task[None]) -> None:
    """A driver process ends when its coordinator does."""
    error = None if task.cancelled() else task.exception()
    if error is None or not process.alive:
        return
    if not isinstance(error, (SinkjobError, Refused)):
        world.loop.failed = error
    world.driver_ended(process, error)
    world.kill(process, f"its coordinator ended: {error}")


async def _views(world: World) -> Mapping[str, TargetView]:
    """What the targets say."""
    runner, views = SimRunner(world), {}
    for name, sink in world.sinks.items():
        evidence = await runner.call(sink.evidence, 10.0)
        assert evidence is not None
        views[name] = TargetView(evidence.checkpoint, evidence.target)
    return views


async def _batches(world: World, driver: Driver, executor: Process) -> None:
    """Spark's micro-batch loop."""
    spark = world.spark
    spark.mark(world.ledger_id)
    if world.dice.hit_event("spark.restored_late"):
        world.restore_one_batch_back()
    if world.dice.hit_event("spark.deleted_late"):
        world.delete_location()
    await asyncio.sleep(0)
    spark.start_query()
    query_id, last = spark.location.query_id, None
    while (batch := spark.next_batch(last)) is not None:
        position = spark.location.position(batch)
        tasks = Tasks(world, executor, position)
        await driver.checkpoint(position, tasks.stage)
        await asyncio.sleep(0)
        world.stumble()
        await asyncio.sleep(0)
        spark.finish(query_id, batch)
        world.oracle.acknowledged(position)
        last = batch
        if world.dice.rng.random() < 0.4:
            await asyncio.sleep(world.dice.seconds(1.0))


async def _batch_job(world: World, driver: Driver, executor: Process) -> None:
    """A batch job: all rows are one checkpoint, decided once."""
    spark = world.spark
    spark.mark(world.ledger_id)
    spark.start_query()
    if not spark.location.planned:
        spark.plan_all()
    position = spark.location.position(0)
    tasks = Tasks(world, executor, position)
    await driver.checkpoint(position, tasks.stage, "r1/0")


async def operate(world: World, process: Process) -> None:
    """The main of an operator process: coordinate while the lease is ours, as far as we know."""
    tenures = 0
    while True:
        await world.lease.acquire(process)
        tenures += 1
        holder = f"{process.name}/{tenures}"
        environment = environment_of(world, process)
        coordinator = Coordinator(
            services_of(world, environment), commit_settings(world), Tenure(Authority.TOKEN, holder)
        )
        running = world.loop.start(process, _coordinate(world, coordinator), holder)
        world.tenures[process] = (coordinator, holder)
        poke = world.lease.poke(process)
        await asyncio.wait([running, poke], return_when=asyncio.FIRST_COMPLETED)
        coordinator.stop()
        await running
        world.tenures.pop(process, None)
        world.note("tenure of %s ends", holder)
        world.lease.leave(process)
        await asyncio.sleep(world.dice.seconds(0.5))


async def _coordinate(world: World, coordinator: Coordinator) -> None:
    """One tenure; that it is fenced is what it ends with, not an error of the process."""
    try:
        await coordinator.run()
    except SinkjobError:
        return
    except Exception as error:
        world.loop.failed = world.loop.failed or error
        raise


async def abort(world: World, process: Process, token: int, first: int) -> None:
    """`deletionPolicy: Abort`, through the coordinator's process and under its token."""
    environment = environment_of(world, process)

    def begin(ledger: Ledger) -> Event | None:
        return BeginAbort(token, first, "somebody", "for the test")

    try:
        await change(Connection(world), begin, environment, PATIENCE_SECONDS)
    except (Refused, SinkjobError) as error:
        world.note("an abort from %d on is refused: %s", first, error)


class Launcher:
    """Starts driver processes, one after another, each under an epoch of its own."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._environment = environment_of(world, process)

    async def run(self) -> None:
        """Keep a driver running until the job has nothing left to do."""
        world = self._world
        while True:
            if world.job_done():
                await asyncio.sleep(1.0)
                continue
            epoch = await self._raise()
            if world.dice.hit_event("driver.epoch_skipped"):
                epoch = await self._raise()
            process = world.start_driver(epoch, "")
            if world.dice.hit_event("driver.twin"):
                world.start_driver(epoch, "b")
            await world.until_given_up(process)
            await asyncio.sleep(world.dice.seconds(1.0))

    async def _raise(self) -> int:
        """Raise the epoch by one, whatever became of earlier answers."""
        wanted: list[int] = []

        def event(ledger: Ledger) -> Event | None:
            if not wanted:
                wanted.append(ledger.epoch + 1)
            return RaiseEpoch(wanted[0]) if ledger.epoch < wanted[0] else None

        while True:
            try:
                stored = await change(Connection(self._world), event, self._environment, PATIENCE_SECONDS)
            except SinkjobError:
                continue
            return stored.ledger.epoch
