"""One operator process: its parts, in the order in which they start, and the order in which they end.

The entry point makes one and runs it. Workers' clean parent comes first, before any secret is read; then the caches,
the Leases, and with them the work. An orderly end is the reverse: no new look, coordinators finish what they have
begun, shards are given back, the own Lease goes, and the process exits. A process that is killed loses nothing: the
next holder goes on from the ledgers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack

from sinkoperator import names, rights
from sinkoperator.assembly import Outside, assemble
from sinkoperator.commits.coordinators import Coordinators
from sinkoperator.commits.egress import Egress, literal
from sinkoperator.commits.manager import Manager
from sinkoperator.commits.nursery import Nursery
from sinkoperator.commits.pool import Pool
from sinkoperator.commits.settings import WorkerSettings
from sinkoperator.duty import Duty
from sinkoperator.events import Events
from sinkoperator.handlers import Hints
from sinkoperator.health import Health
from sinkoperator.leases import Leases
from sinkoperator.membership import LeaseSettings
from sinkoperator.metrics import OperatorMetrics
from sinkoperator.observed import PlanSettings
from sinkoperator.settings import Settings
from sinkoperator.spills import JobSpill
from sinkoperator.telling import Telling
from sinkoperator.web import Answer, serve
from sinkoperator.work_queue import QueueSettings, WorkQueue
from sinkoperator.world import Key, World
from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import LEASE, Api, ApiError, Watch
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.ledger import Ledger

log = logging.getLogger(__name__)

#: After a relist has shown a change that no hint told of, Kopf's watch has so long to tell; then it is begun anew.
HINT_SECONDS = 30.0
#: While a coordinator works it hears the ledger itself; a look at each of its writes would only cost time.
LEDGER_PAUSE_SECONDS = 1.0
#: After an error of a part that runs all the time.
RETRY_SECONDS = 5.0


class Operator:
    """See the module. Implements `commits.manager.Outside`."""

    def __init__(self, api: Api, settings: Settings, environment: Environment) -> None:
        self._api = api
        self._settings = settings
        self._environment = environment
        self._stack = AsyncExitStack()
        self._troubled: set[Key] = set()  # jobs whose coordinator was seen to have a trouble
        self.world = World(api, settings.namespaces, self._hint)
        self.hints = Hints(settings.namespaces, self.world.see, environment)
        self.metrics = OperatorMetrics(environment, per_job=settings.metrics_per_job)
        self.events = Events(api, environment, settings.identity)
        self.telling = Telling(self.metrics, self.events, self.world)
        queue_settings = QueueSettings(settings.concurrency)
        self.queue: WorkQueue[Key] = WorkQueue(self._look, queue_settings, environment, self.metrics)
        self.duty = Duty(settings.shards, self.world.keys, self.queue)
        self.nursery = Nursery(worker_settings(settings))
        self.pool = Pool(self.nursery, worker_settings(settings), environment.clock)
        self.manager = Manager(api, self.pool, self, environment)
        self.coordinators = Coordinators(self.manager)
        self.leases = Leases(api, lease_settings(settings), environment, self.duty)
        outside = Outside(api, self.world, environment, self.coordinators, self.telling, self.duty.begins)
        self.reconciler = assemble(outside, plan_settings(settings))
        self.health = Health(self.leases, environment)
        self._synced = False
        self.health.need("the first lists of SinkJobs and of what was made for them", lambda: self._synced)
        self.duty.join(self.leases.holds, self.manager, self.reconciler.forget)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, then end in order. Raises `ConfigurationError` where rights are missing, and whatever ends a
        part that must not end."""
        try:
            if self._settings.health_port:
                await self._stack.enter_async_context(serve(self.health.pages(), self._settings.health_port))
            await self.nursery.start()
            if not await self._may_begin(stop):
                return
            self._measure()
            await self._stack.enter_async_context(self.events)
            if self._settings.metrics_port:
                await self._stack.enter_async_context(serve({"/metrics": self._page}, self._settings.metrics_port))
            await self._stack.enter_async_context(self.world)
            await self._stack.enter_async_context(self._watch_leases())
            background = [
                asyncio.create_task(self.health.beat(), name="beat"),
                asyncio.create_task(self.hints.run(), name="hints"),
                asyncio.create_task(self._relist(), name="relist"),
            ]
            try:
                await self._work(stop, background)
            finally:
                await _end(background)
        finally:
            await self.queue.stop(0.0)
            await self.manager.close(0.0)
            await self.pool.stop()
            await self.nursery.stop()
            await self._stack.aclose()

    async def _may_begin(self, stop: asyncio.Event) -> bool:
        """Whether all rights are there, once the API server says so; False where it is to stop before that."""

        async def check() -> None:
            await rights.check(self._api, self._settings.namespaces)

        stopped = asyncio.create_task(stop.wait(), name="stop")
        checked = asyncio.create_task(_until_done("asking for rights", check), name="rights")
        try:
            await _first([stopped, checked])
        finally:
            await _end([stopped, checked])
        return not stop.is_set()

    def _measure(self) -> None:
        """Join the metrics with what they measure."""
        self._api.on_request = self.metrics.requested
        self.metrics.coordinators = self.manager.metrics
        self.metrics.shards(lambda: len(self.leases.held))
        self.metrics.workers(lambda: len(self.pool.workers))
        for kind, age_seconds in self.world.ages().items():
            self.metrics.watch(kind, age_seconds)
            self.health.watch(kind, age_seconds)

    def _watch_leases(self) -> Watch:
        """It shows freed shards at once, and proves by our own Lease that watches are told what is written."""
        watch = self._api.watch(LEASE, self._settings.operator_namespace)
        watch.subscribe(self.leases.hint)
        watch.subscribe(self.health.lease_seen)
        return watch

    async def _page(self) -> Answer:
        content_type, text = await self.metrics.page()
        return 200, content_type, text

    async def _work(self, stop: asyncio.Event, background: Iterable[asyncio.Task[None]]) -> None:
        """Hold shards until `stop`; a part that ends by itself ends all."""
        stopped = asyncio.create_task(stop.wait(), name="stop")
        synced = asyncio.create_task(self.world.synced(), name="first lists")
        try:
            await _first([stopped, synced, *background])
            if stop.is_set():
                return
            self._synced = True
            log.info("%d SinkJobs are known; this replica joins", self.world.count())
            leases = asyncio.create_task(self.leases.run(), name="leases")
            try:
                await _first([stopped, leases, *background])
                await self._leave(leases)
            finally:
                await _end([leases])
        finally:
            await _end([stopped, synced])

    async def _leave(self, leases: asyncio.Task[None]) -> None:
        """Stop the work of each shard, give them back, delete the own Lease."""
        log.info("asked to stop: shards are given back")
        self.leases.leave()
        done, _ = await asyncio.wait([leases], timeout=self._settings.shutdown_seconds)
        if not done:
            log.warning("not done within %g s: what is left is cut off", self._settings.shutdown_seconds)

    async def _look(self, key: Key) -> float | None:
        return await self.reconciler.reconcile(key)

    def _hint(self, key: Key, component: str) -> None:
        if not self.duty.begins(key):
            return
        if component == names.LEDGER and self.manager.begun(key):
            self.queue.add_after(key, LEDGER_PAUSE_SECONDS)
        else:
            self.queue.add(key)

    async def _relist(self) -> None:
        """List all SinkJobs now and then; a watch of Kopf's that has told nothing of a change is begun anew."""
        while True:
            await _until_done("listing SinkJobs", self.world.relist)
            await asyncio.sleep(HINT_SECONDS)
            unheard = self.world.unheard()
            if unheard:
                log.warning("Kopf's watch told nothing of %d changed SinkJobs: it is begun anew", len(unheard))
                self.hints.restart()
            await asyncio.sleep(max(1.0, self._settings.resync_seconds - HINT_SECONDS))

    def store_of(self, key: Key) -> LedgerStore:
        """See `commits.manager.Outside`."""
        spill = JobSpill(self._api, self.world, key, self.pool)
        return ConfigMapLedgerStore(self._api, LedgerPlace(*key), self.world.ledger_watch(key[0]), spill)

    def holds(self, key: Key) -> bool:
        """See `commits.manager.Outside`."""
        return self.duty.holds(key)

    def observe(self, key: Key, ledger: Ledger) -> None:
        """See `commits.manager.Outside`."""
        self.telling.observe(key, ledger)
        troubled = self.manager.trouble(key) is not None
        if troubled != (key in self._troubled):
            (self._troubled.add if troubled else self._troubled.discard)(key)
            self.changed(key)  # the status is to tell of it

    def changed(self, key: Key) -> None:
        """See `commits.manager.Outside`."""
        if not self.manager.runs(key):
            self._troubled.discard(key)
        if self.duty.begins(key):
            self.queue.add(key)


def worker_settings(settings: Settings) -> WorkerSettings:
    """As the workers take them. Raises `ConfigurationError` for a bad `--egress-allow`."""
    limit = settings.namespace_limit_commits or settings.workers
    return WorkerSettings(
        workers=settings.workers,
        workers_per_namespace=limit,
        memory_bytes=settings.worker_memory_bytes,
        egress=egress_of(settings),
        default_service_account=settings.driver_service_account,
    )


def egress_of(settings: Settings) -> Egress:
    """What commits may reach; never this cluster's API server. Raises `ConfigurationError` for a bad rule."""
    server = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    closed = [server] if literal(server) is not None else []
    try:
        return Egress.parse(settings.egress_allow, closed)
    except ValueError as error:
        raise ConfigurationError("InvalidSettings", f"--egress-allow: {error}") from error


def lease_settings(settings: Settings) -> LeaseSettings:
    """As the Leases take them."""
    return LeaseSettings(
        namespace=settings.operator_namespace,
        replica=settings.identity,
        instance=settings.instance,
        shards=settings.shards,
        lease_seconds=settings.lease_seconds,
        renew_deadline_seconds=settings.lease_seconds * 2 / 3,
        retry_seconds=settings.renew_seconds,
        stop_seconds=settings.shutdown_seconds * 0.8,
    )


def plan_settings(settings: Settings) -> PlanSettings:
    """As plans take them."""
    return PlanSettings(
        driver_image=settings.driver_image,
        service_account=settings.driver_service_account,
        drivers_per_namespace_max=settings.namespace_limit_jobs,
    )


async def _until_done(what: str, step: Callable[[], Awaitable[None]]) -> None:
    """Again and again while the API server is away."""
    while True:
        try:
            await step()
            return
        except ApiError as error:
            log.warning("%s: %s", what, error)
            await asyncio.sleep(RETRY_SECONDS)


async def _first(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Wait for the first to end; raises its error."""
    done, _ = await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _end(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Cancel them, and wait until they are over."""
    left = list(tasks)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
