"""A job on this machine for tests: file ledger, real driver and coordinator in a loop's thread, a query in Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.environment import Environment, SystemClock
from sinkruntime.errors import Fenced, LedgerConflict
from sinkruntime.ledger.change import change
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.protocol.events import RaiseEpoch
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.query import BatchDone, Hosts, Query, QueryJob, open_query
from sinkruntime.spec.models import SinkJobSpec
from tests.spark.lines import LEDGER_ID

T = TypeVar("T")

WAIT_SECONDS = 60.0


class World:
    """One job's folder: `ledger`, `checkpoint`. `run` is a whole driver run, in an epoch of its own."""

    def __init__(self, folder: Path, spec: SinkJobSpec, sinks: Sequence[JobSink], base: Path | None = None) -> None:
        self.folder, self.spec, self.sinks = folder, spec, sinks
        self.base = base or folder
        self.batches: list[BatchDone] = []
        self.stop = threading.Event()
        self.stop_after: int | None = None  # ask to stop once this batch is decided
        self.max_pending = 4
        (folder / "ledger").mkdir(parents=True, exist_ok=True)

    def query(self, session: SparkSession, batch: str = "") -> Query:
        """The query, not started."""
        checkpoint = str(self.folder / "checkpoint")
        job = QueryJob(self.spec, self.sinks, checkpoint, SystemClock(), base=self.base, batch=batch)
        return open_query(session, job)

    def run(self, session: SparkSession, batch: str = "") -> bool:
        """Raise the epoch, check, run the query to its end, commit all; what `Query.run` returned."""
        with Loop() as loop:
            query = self.query(session, batch)
            running = loop.call(self._open())
            try:
                loop.call(running.start(query))
                done = query.run(Hosts(running.driver, loop.loop, self.stop, self._on_batch))
                loop.call(running.drain())
            finally:
                loop.call(running.end())
            return done

    async def _open(self) -> _Running:
        store, environment = FileLedgerStore(self.folder / "ledger"), Environment.real()
        with suppress(LedgerConflict):  # an earlier run made it
            await store.create(Ledger(LEDGER_ID, "default/test"))
        stored = await change(store, lambda ledger: RaiseEpoch(ledger.epoch + 1), environment, WAIT_SECONDS)
        epoch = stored.ledger.epoch
        names = {sink.name: Authority.TOKEN for sink in self.sinks}
        settings = DriverSettings(epoch, f"driver-{epoch}", "r1", names, self.max_pending)
        driver = Driver(store, settings, environment)
        await driver.claim()
        services = Services(
            store=store,
            environment=environment,
            runner=ThreadRunner(),
            metrics=Metrics(),
            sinks_of=lambda _: {sink.name: sink.sink for sink in self.sinks},
            revision="r1",
            driver_sinks=frozenset(),
            older_gone=lambda _: True,
        )
        coordinator = Coordinator(services, CommitSettings(), Tenure(Authority.TOKEN, f"holder-{epoch}"))
        return _Running(driver, coordinator, asyncio.create_task(coordinator.run()))

    def _on_batch(self, done: BatchDone) -> None:
        self.batches.append(done)
        if done.batch_id == self.stop_after:
            self.stop.set()

    def ledger(self) -> Ledger:
        """The ledger as it is."""
        stored = asyncio.run(FileLedgerStore(self.folder / "ledger").load())
        assert stored is not None
        return stored.ledger


class _Running:
    """A driver run at work."""

    def __init__(self, driver: Driver, coordinator: Coordinator, work: asyncio.Task[None]) -> None:
        self.driver, self.coordinator, self.work = driver, coordinator, work

    async def start(self, query: Query) -> None:
        """The start check; a new location is marked first."""

        async def views() -> dict[str, Any]:
            return {}

        if not query.files.owner()[0]:
            query.files.mark(LEDGER_ID, "default/test")
        await self.driver.start(query.view(), views)

    async def drain(self) -> None:
        """Commit what is decided."""
        await asyncio.wait_for(self.driver.drained(), WAIT_SECONDS)

    async def end(self) -> None:
        """End the coordinator; one that was fenced has ended."""
        self.coordinator.stop()
        with suppress(Fenced):
            await asyncio.wait_for(self.work, WAIT_SECONDS)


class Loop:
    """An asyncio loop in a thread, as the runner has it."""

    def __enter__(self) -> Loop:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there, wait for it here."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(WAIT_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_SECONDS)
        self.loop.close()
