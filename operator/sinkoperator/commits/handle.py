"""How a coordinator of the operator holds a sink: opened in a worker process for a round, given back after it.

`manager` gives it to the coordinator in place of the runtime's `SinkHandle`. Secrets and identity are resolved on every
opening; after an answer that a fresh opening may mend, the next round gets a fresh process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from sinkoperator.commits.frames import Json
from sinkoperator.commits.pool import CLOSE_SECONDS, Pool
from sinkoperator.commits.process import Owner, Worker
from sinkoperator.commits.proxies import ProxyAggregated, ProxyCommitter, ProxySink
from sinkruntime.api import Clock, Sink
from sinkruntime.coordinator.handle import SinkHandle
from sinkruntime.coordinator.runner import NotStarted, Runner
from sinkruntime.errors import SinkjobError

#: Resolves what a revision's sink is opened with.
Resolve = Callable[[str, str], Awaitable[Json]]
#: Told why a sink could not be opened, and by None that it is open.
Tell = Callable[[str, SinkjobError | None], None]


class WorkerHandle(SinkHandle):
    """See the module."""

    def __init__(self, sink: Sink, runner: Runner, pool: Pool, backing: Backing) -> None:
        super().__init__(sink, runner)
        assert isinstance(sink, ProxySink), "made by the manager"
        self._proxy = sink
        self._pool = pool
        self._backing = backing
        self._renew_at = 0.0

    @asynccontextmanager
    async def used(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Open for one round; afterwards the pool may close it for others."""
        async with self._opening:
            worker = await self._worker(timeout_seconds)
            self._committer = ProxyCommitter(worker) if worker.facts["committer"] else None
            self._aggregated = ProxyAggregated(worker) if worker.facts["aggregated"] else None
        try:
            yield
        finally:
            self._pool.rest(worker)

    async def _worker(self, timeout_seconds: float) -> Worker:
        """The worker that has it open, in use by one more round."""
        worker = self._proxy.worker
        if worker is None or worker.gone or worker.closing or (worker.suspect and not worker.users):
            return await self._fresh(worker, timeout_seconds)
        worker.users += 1
        try:
            await self._renew(worker, timeout_seconds)
        except BaseException:
            self._pool.rest(worker)
            raise
        return worker

    async def _fresh(self, old: Worker | None, timeout_seconds: float) -> Worker:
        if old is not None:
            await old.close(CLOSE_SECONDS)
        self._proxy.worker = None
        backing, sink = self._backing, self.sink.identity.sink
        if not backing.holds():
            raise NotStarted("this replica does not work on the job any more")
        owner = Owner(backing.namespace, backing.job, self._proxy.revision, sink)
        try:
            resolve = partial(self._resolve, self._proxy.revision, sink)
            worker = await self._pool.open(owner, resolve, timeout_seconds)
        except SinkjobError as error:
            backing.tell(sink, error)
            raise
        backing.tell(sink, None)
        self._proxy.worker = worker
        return worker

    async def _resolve(self, revision: str, sink: str) -> Json:
        opening = await self._backing.opening(revision, sink)
        self._plan_renewal(opening["identity"])
        return opening

    async def _renew(self, worker: Worker, timeout_seconds: float) -> None:
        """Give it a fresh token of the job's own identity when half of the life of the last one is over."""
        if self._renew_at and self._backing.clock.monotonic() >= self._renew_at:
            opening = await self._backing.opening(self._proxy.revision, self.sink.identity.sink)
            await worker.call("identity", opening["identity"], timeout_seconds)
            self._plan_renewal(opening["identity"])

    def _plan_renewal(self, identity: Json) -> None:
        seconds = identity["renew_seconds"]
        self._renew_at = self._backing.clock.monotonic() + seconds if seconds else 0.0

    async def close(self, timeout_seconds: float) -> None:
        """Close the sink, and end its process: at once where the shard is lost. An error is logged there."""
        worker, self._proxy.worker = self._proxy.worker, None
        self._committer = self._aggregated = None
        if worker is None:
            return
        if self._backing.holds():
            await worker.close(min(timeout_seconds, CLOSE_SECONDS))
        else:
            worker.kill("this replica does not work on the job any more")


class Backing:
    """What a handle needs of its job."""

    def __init__(self, job: tuple[str, str], opening: Resolve, holds: Callable[[], bool], clock: Clock) -> None:
        self.namespace, self.job = job
        self.opening = opening
        self.holds = holds
        self.clock = clock
        self.troubles: dict[str, SinkjobError] = {}

    def tell(self, sink: str, trouble: SinkjobError | None) -> None:
        """Keep why a sink cannot be opened, for the status."""
        if trouble is None:
            self.troubles.pop(sink, None)
        else:
            self.troubles[sink] = trouble
