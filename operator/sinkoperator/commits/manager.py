"""The operator's coordinators: one per job of this replica's shards that owes anything, as a task of its loop.

`coordinators` says which jobs, after the reconciler; who loses a shard says so too. Each task makes a coordinator,
replaces it in order when the manifest or a person's word has changed, and begins another tenure, after a pause, when it
fails. It issues no commit while `holds` says no, and never decides which job is to be coordinated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sinkoperator import names
from sinkoperator.commits.handle import Backing, WorkerHandle
from sinkoperator.commits.opening import Named, Resolver
from sinkoperator.commits.pool import Pool
from sinkoperator.commits.proxies import ProxySink, WorkerRunner
from sinkruntime.api import Sink, SinkIdentity
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import Runner
from sinkruntime.coordinator.settings import Metrics
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.environment import Environment
from sinkruntime.errors import Fenced, SinkjobError
from sinkruntime.job.sinks import commit_settings, warn_sinks
from sinkruntime.kube import Api
from sinkruntime.ledger.change import change, read
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.events import BeginAbort, Event
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger
from sinkruntime.spec.models import SinkJobSpec

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace, name

#: How many coordinators may be in their first steps at once: after a takeover of many jobs the API server is spared.
BEGINNING_MAX = 32
#: After that one goes on beside them: a ledger that takes no write is waited for much longer, by its own job alone.
BEGINNING_SECONDS = 5.0
#: Pauses before another tenure, doubling; one that lasted for `STEADY_SECONDS` begins anew with the first.
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 120.0
#: How long a ledger that cannot be read is waited for before a tenure.
LEDGER_SECONDS = 30.0
#: How long an orderly end may take: what runs is waited for, and told. After that it is in doubt for the next tenure.
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Charge:
    """What a coordinator of a job is run with; see `actions.RunCoordinator`.

    `spec` is the manifest's, whose sinks have the revision `revision`. Another `revision`, `intent` or `driver_sinks`
    replaces the running coordinator; the rest is read as it is at that moment. `retried` is the run in which another
    replica has tried again what is held.
    """

    spec: SinkJobSpec
    revision: str
    intent: str
    driver_sinks: frozenset[str] = frozenset()
    gone_below: int = 0
    retried: str = ""

    def same_tenure(self, other: Charge) -> bool:
        """Whether one coordinator serves both."""
        mine = (self.revision, self.intent, self.driver_sinks)
        return mine == (other.revision, other.intent, other.driver_sinks)


class Outside(Protocol):
    """What the manager asks of the operator around it."""

    def store_of(self, key: Key) -> LedgerStore:
        """The job's ledger."""

    def holds(self, key: Key) -> bool:
        """Whether this replica works on the job at this instant; asked before each call of a target."""

    def observe(self, key: Key, ledger: Ledger) -> None:
        """The ledger as a coordinator has seen it: for the status and for metrics."""

    def changed(self, key: Key) -> None:
        """A coordinator has begun, or has ended: look at the job."""


@dataclass(slots=True)
class _Job:
    """One job's coordinator, and what is known of it."""

    key: Key
    charge: Charge
    metrics: Metrics = field(default_factory=Metrics)
    wanted: bool = True
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    coordinator: Coordinator | None = None
    holder: str = ""
    backing: Backing | None = None
    tried: str = ""  # the run (revision and restart nonce) in which what was held has been tried again
    trouble: SinkjobError | None = None


class Manager:
    """See the module."""

    def __init__(self, api: Api, pool: Pool, outside: Outside, environment: Environment) -> None:
        self._api = api
        self._pool = pool
        self._outside = outside
        self._environment = environment
        self._jobs: dict[Key, _Job] = {}
        self._beginning = asyncio.Semaphore(BEGINNING_MAX)

    def run(self, key: Key, charge: Charge) -> None:
        """See that a coordinator of the job runs with this; called again and again."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(key, charge)
            job.task = asyncio.create_task(self._serve(job), name=f"coordinator of {key[0]}/{key[1]}")
            return
        before, job.charge = job.charge, charge
        if not job.wanted or not charge.same_tenure(before):
            job.wanted = True
            self._replace(job)

    @staticmethod
    def _replace(job: _Job) -> None:
        """End the present coordinator in order; the task then makes the next one of the present charge."""
        job.begun.clear()
        job.wake.set()
        if job.coordinator is not None:
            job.coordinator.stop()

    def runs(self, key: Key) -> bool:
        """Whether there is a coordinator, or one is being tried."""
        job = self._jobs.get(key)
        return job is not None and job.wanted

    def keys(self) -> list[Key]:
        """The jobs that have a coordinator, wanted or ending."""
        return list(self._jobs)

    def begun(self, key: Key) -> bool:
        """Whether a coordinator works, with what the last charge says. Before that no driver may look at the ledger:
        it would stop for what an earlier tenure was told."""
        job = self._jobs.get(key)
        return job is not None and job.wanted and job.begun.is_set()

    def begun_with(self, key: Key) -> str:
        """The intent with which a coordinator has begun; "": none has."""
        return self._jobs[key].charge.intent if self.begun(key) else ""

    def trouble(self, key: Key) -> SinkjobError | None:
        """Why the coordinator cannot work, or cannot open a sink; None: all is well, or nothing is asked."""
        job = self._jobs.get(key)
        if job is None:
            return None
        sinks = job.backing.troubles if job.backing else {}
        recovery = job.coordinator.trouble if job.coordinator else None
        return job.trouble or next(iter(sinks.values()), None) or (None if recovery is None else _as_ours(recovery))

    def metrics(self) -> Iterator[tuple[Key, Metrics]]:
        """The counters and gauges of each job's coordinator."""
        for key, job in self._jobs.items():
            yield key, job.metrics

    def metrics_of(self, key: Key) -> Metrics:
        """Those of one job; none where no coordinator has worked for it."""
        job = self._jobs.get(key)
        return job.metrics if job else Metrics()

    def release(self, key: Key) -> None:
        """Ask the job's coordinator to end in order, where there is one; it is not waited for."""
        job = self._jobs.get(key)
        if job is not None:
            job.wanted = False
            self._replace(job)

    async def stop(self, key: Key, patience_seconds: float = STOP_SECONDS) -> None:
        """End the job's coordinator, where there is one: in order, or by force after that time."""
        self.release(key)
        job = self._jobs.get(key)
        if job is None or job.task is None:
            return
        done, _ = await asyncio.wait([job.task], timeout=patience_seconds)
        if not done and not job.wanted:
            await self.drop(key)

    async def drop(self, key: Key) -> None:
        """End it at once, as on the loss of a shard: what is under way is killed, and in doubt."""
        job = self._jobs.get(key)
        if job is None or job.task is None:
            return
        job.wanted = False
        job.task.cancel()
        await asyncio.wait([job.task])

    async def close(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End all of them."""
        await asyncio.gather(*(self.stop(key, patience_seconds) for key in list(self._jobs)))

    async def abort(self, key: Key, first: int, who: str, why: str, pods: tuple[str, ...] = ()) -> bool:
        """Put on record the abort of the checkpoints from `first` on; False where neither a coordinator of ours is in
        its tenure nor one whose holder begins as `pods` says: the job's own committer pods, which nobody else tells.
        Raises `Refused`, `InDoubt`."""
        job = self._jobs.get(key)
        holder = job.holder if job is not None and self.begun(key) else ""
        if not holder and not pods:
            return False

        def ours(ledger: Ledger) -> bool:
            return (bool(holder) and ledger.holder == holder) or ledger.holder.startswith(pods)

        def event(ledger: Ledger) -> Event | None:
            record = ledger.record(first)
            begun = record is None or record.state in (CheckpointState.ABORTING, CheckpointState.ABORTED)
            return BeginAbort(ledger.token, first, who, why) if ours(ledger) and not begun else None

        stored = await change(self._outside.store_of(key), event, self._environment, LEDGER_SECONDS)
        return ours(stored.ledger)

    async def _serve(self, job: _Job) -> None:
        """Tenure after tenure, while it is wanted and held."""
        pause = FIRST_PAUSE_SECONDS
        clock = self._environment.clock
        try:
            while job.wanted and self._outside.holds(job.key):
                job.wake.clear()
                began = clock.monotonic()
                failed = await self._tenure(job)
                if not failed:
                    continue
                if clock.monotonic() - began > STEADY_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause * (0.5 + self._environment.random.random())):
                        await job.wake.wait()
                pause = min(2 * pause, LAST_PAUSE_SECONDS)
        finally:
            del self._jobs[job.key]
            self._outside.changed(job.key)

    async def _tenure(self, job: _Job) -> bool:
        """One coordinator, from its first step to its end; whether it failed."""
        where = f"{job.key[0]}/{job.key[1]}"
        try:
            await self._coordinate(job)
        except Fenced as error:
            log.info("the coordinator of %s was overtaken: %s", where, error.message)
            job.trouble = None  # whoever has overtaken it works; where it was a mistake, the next tenure tells
            return True
        except Exception as error:
            job.trouble = _as_ours(error)
            known = isinstance(error, SinkjobError)
            log.warning("the coordinator of %s failed: %s", where, job.trouble, exc_info=not known)
            return True
        finally:
            job.begun.clear()
            job.coordinator = None
            self._outside.changed(job.key)
        job.trouble = None
        return False

    async def _coordinate(self, job: _Job) -> None:
        async with self._beginning:
            store = self._outside.store_of(job.key)
            stored = await read(store, self._environment, LEDGER_SECONDS)
            if not job.wanted:
                return
            charge = job.charge
            coordinator = self._make(job, charge, store, stored.ledger.ledger_id)
            running = asyncio.create_task(coordinator.run())
            beginning = asyncio.create_task(coordinator.begun.wait())
            try:
                await _either(running, beginning, BEGINNING_SECONDS)
            except asyncio.CancelledError:
                beginning.cancel()
                await _end(running)
                raise
        try:
            await _either(running, beginning)
            if coordinator.begun.is_set():
                job.tried, job.trouble = names.run_of(charge.intent), None
                if _serves(job, charge):
                    job.begun.set()
                self._outside.changed(job.key)
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await _end(running)
            raise
        finally:
            beginning.cancel()

    def _make(self, job: _Job, charge: Charge, store: LedgerStore, ledger_id: str) -> Coordinator:
        recovery = charge.spec.recovery
        holds = partial(self._outside.holds, job.key)
        resolver = Resolver(self._api, Named(*job.key, ledger_id), self._pool.settings)
        job.backing = Backing(job.key, resolver.opening, holds, self._environment.clock)
        job.holder = self._environment.identity()
        services = Services(
            store=store,
            environment=self._environment,
            runner=WorkerRunner(holds),
            metrics=job.metrics,
            sinks_of=partial(_sinks_of, job.key, ledger_id, charge),
            revision=charge.revision,
            driver_sinks=charge.driver_sinks,
            older_gone=lambda epoch: epoch <= job.charge.gone_below,
            warn_sinks=warn_sinks(charge.spec),
            wishes=Wishes(
                recovery.nonce,
                frozenset(recovery.accept),
                retry_held=names.run_of(charge.intent) not in (job.tried, charge.retried),
                who=f"SinkJob {job.key[0]}/{job.key[1]}",
            ),
            observe=partial(self._outside.observe, job.key),
            handle_of=partial(_handle, self._pool, job.backing),
        )
        job.coordinator = Coordinator(
            services, commit_settings(charge.spec.commit), Tenure(Authority.TOKEN, job.holder)
        )
        return job.coordinator


def _serves(job: _Job, charge: Charge) -> bool:
    """Whether a coordinator with this charge is still what is asked for."""
    return job.wanted and charge.same_tenure(job.charge)


async def _either(running: asyncio.Task[None], begun: asyncio.Task[object], seconds: float | None = None) -> None:
    """Until it works, or has ended, or the time is over."""
    await asyncio.wait([running, begun], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _end(running: asyncio.Task[None]) -> None:
    """Cancel a coordinator, and wait until it has closed what it had."""
    running.cancel()
    await asyncio.wait([running])
    if not running.cancelled():
        running.exception()


def _as_ours(error: Exception) -> SinkjobError:
    if isinstance(error, SinkjobError):
        return error
    return SinkjobError(type(error).__name__, str(error) or type(error).__name__, "see the operator's log")


def _handle(pool: Pool, backing: Backing, sink: Sink, runner: Runner) -> WorkerHandle:
    return WorkerHandle(sink, runner, pool, backing)


def _sinks_of(key: Key, ledger_id: str, charge: Charge, revision: str) -> Mapping[str, Sink]:
    """The sinks of the present revision; of another one any, because its record names them, and the worker knows."""
    found = _Any(key, ledger_id, revision)
    return {sink.name: found[sink.name] for sink in charge.spec.sinks} if revision == charge.revision else found


class _Any(Mapping[str, Sink]):
    """A proxy for every name."""

    def __init__(self, key: Key, ledger_id: str, revision: str) -> None:
        self._key = key
        self._ledger_id = ledger_id
        self._revision = revision

    def __getitem__(self, name: str) -> Sink:
        return ProxySink(SinkIdentity(self._ledger_id, name, f"{self._key[0]}/{self._key[1]}"), self._revision)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
