"""The worker processes: so many at most, shared fairly between jobs and namespaces, closed when idle.

`handle` asks for an opened worker. A slot that is free is given to the job that was served longest ago; where none is
free, the idle worker that was used longest ago is closed for it. It knows nothing of commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

from sinkoperator.commits.frames import Json
from sinkoperator.commits.nursery import Nursery
from sinkoperator.commits.process import Owner, Worker
from sinkoperator.commits.settings import WorkerSettings
from sinkruntime.api import Clock
from sinkruntime.coordinator.runner import NotStarted, OutOfTime

log = logging.getLogger(__name__)

#: How long a sink may take to close its connections before its idle worker is killed.
CLOSE_SECONDS = 5.0

#: What opens a sink: manifest, secrets and identity, resolved at that moment.
Resolve = Callable[[], Awaitable[Json]]
Key = tuple[str, str]  # namespace and job


class Pool:
    """See the module."""

    def __init__(self, nursery: Nursery, settings: WorkerSettings, clock: Clock) -> None:
        self.settings = settings
        self._nursery = nursery
        self._clock = clock
        self._workers: set[Worker] = set()
        self._starting: dict[str, int] = {}  # slots by namespace that are given and have no worker yet
        self._waiting: OrderedDict[Key, deque[asyncio.Future[None]]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self.opened = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those that live."""
        return tuple(self._workers)

    @property
    def waiting(self) -> int:
        """How many sinks wait for a slot."""
        return sum(len(futures) for futures in self._waiting.values())

    async def open(self, owner: Owner, resolve: Resolve, timeout_seconds: float) -> Worker:
        """A worker with the sink opened, in use by the caller until `rest`. Raises `NotStarted` or `SinkjobError`; then
        no commit had begun."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._slot(owner)
        except TimeoutError:
            raise NotStarted(f"no worker process was free within {timeout_seconds:.1f} s") from None
        try:
            child = await self._nursery.fork()
            worker = Worker(owner, child, self._nursery, self._forget)
            worker.users = 1  # nobody may close it while it opens
            self._workers.add(worker)
        finally:
            self._starting[owner.namespace] -= 1
            self._turn()
        try:
            await worker.connect()
            worker.facts = await worker.call("open", await resolve(), timeout_seconds)
        except BaseException as error:
            worker.kill("it could not be opened")
            if isinstance(error, OutOfTime):
                raise NotStarted(f"opening the sink had {error}") from error
            raise
        self.opened += 1
        self._sweep()
        return worker

    def rest(self, worker: Worker) -> None:
        """A round that used it is over."""
        worker.users -= 1
        worker.used_at = self._clock.monotonic()
        if self._waiting:
            self._turn()

    async def stop(self) -> None:
        """End all of them."""
        for task in self._tasks | ({self._sweeper} if self._sweeper else set()):
            task.cancel()
        workers = list(self._workers)
        for worker in workers:
            worker.kill("the operator ends")
        await asyncio.gather(*(worker.finish() for worker in workers))

    async def _slot(self, owner: Owner) -> None:
        """Wait for a slot; it is then counted as starting."""
        key = (owner.namespace, owner.job)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._turn()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._starting[owner.namespace] -= 1  # it was given in the same instant
                self._turn()
            raise
        finally:
            queue = self._waiting.get(key)
            if queue is not None and turn in queue:
                queue.remove(turn)
            if queue is not None and not queue:
                self._waiting.pop(key, None)

    def _turn(self) -> None:
        """Give free slots to those who wait; make room where there is none."""
        for key in list(self._waiting):
            queue = self._waiting[key]
            while queue and queue[0].done():
                del queue[0]
            if not queue:
                continue
            namespace = key[0]
            if self._count(namespace) >= self.settings.namespace_share:
                self._make_room(namespace)
            elif self._count() >= self.settings.workers:
                self._make_room("")
                return
            else:
                self._starting[namespace] = self._starting.get(namespace, 0) + 1
                queue.popleft().set_result(None)
                self._waiting.move_to_end(key)

    def _count(self, namespace: str = "") -> int:
        given = sum(self._starting.values()) if not namespace else self._starting.get(namespace, 0)
        return given + sum(worker.owner.namespace == namespace or not namespace for worker in self._workers)

    def _make_room(self, namespace: str) -> None:
        """Close the idle worker that was used longest ago, unless enough are being closed already."""
        mine = [worker for worker in self._workers if not namespace or worker.owner.namespace == namespace]
        closing = sum(worker.closing for worker in mine)
        idle = [worker for worker in mine if not worker.users and not worker.closing]
        if idle and closing < self.waiting:
            self._close(min(idle, key=lambda worker: worker.used_at))

    def _close(self, worker: Worker) -> None:
        worker.closing = True
        task = asyncio.create_task(worker.close(CLOSE_SECONDS))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, worker: Worker) -> None:
        self._workers.discard(worker)
        self._turn()

    def _sweep(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._close_idle(), name="idle workers")

    async def _close_idle(self) -> None:
        """While there are workers, close those that nobody has used for a while."""
        while self._workers:
            await asyncio.sleep(self.settings.idle_seconds / 4)
            long_ago = self._clock.monotonic() - self.settings.idle_seconds
            for worker in list(self._workers):
                if not worker.users and not worker.closing and worker.used_at < long_ago:
                    self._close(worker)
