"""Which jobs this replica works on: the shards that it holds, the looks under way in each, and how a shard is left.

`Leases` tells it what is taken, to be stopped or lost; the work queue, the reconciler and the coordinators ask it. A
shard that is stopped in order begins no new look, while its coordinators finish what they have begun. It fences nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from sinkoperator.shards import shard_of
from sinkoperator.work_queue import WorkQueue
from sinkoperator.world import Key

log = logging.getLogger(__name__)


class Coordinators(Protocol):
    """What is asked of `sinkoperator.commits.manager.Manager`."""

    def keys(self) -> Iterable[Key]: ...
    async def stop(self, key: Key) -> None: ...
    async def drop(self, key: Key) -> None: ...


class Duty:
    """See the module. Implements `leases.Worker`."""

    def __init__(self, shards: int, jobs: Callable[[], Iterable[Key]], queue: WorkQueue[Key]) -> None:
        self._shards = shards
        self._jobs = jobs
        self._queue = queue
        self._leased: Callable[[int], bool] = lambda shard: False
        self._stopping: set[int] = set()
        self._coordinators: Coordinators | None = None
        self._forget: Callable[[Key], None] = lambda key: None
        self._drops: set[asyncio.Task[None]] = set()

    def join(self, leased: Callable[[int], bool], coordinators: Coordinators, forget: Callable[[Key], None]) -> None:
        """Told once, before anything is taken: whether a shard is held at this instant, who commits, and who is told
        of each job that is left."""
        self._leased = leased
        self._coordinators = coordinators
        self._forget = forget

    def holds(self, key: Key) -> bool:
        """Whether work that was begun may go on: a coordinator's call of a target."""
        return self._leased(self._shard(key))

    def begins(self, key: Key) -> bool:
        """Whether something new may begin: a look at the job, an action of its plan."""
        shard = self._shard(key)
        return shard not in self._stopping and self._leased(shard)

    def taken(self, shard: int) -> None:
        """See `leases.Worker`: every job of the shard is looked at."""
        self._stopping.discard(shard)
        for key in self._of([shard], self._jobs()):
            self._queue.add(key)

    async def stop(self, shard: int) -> None:
        """See `leases.Worker`."""
        self._stopping.add(shard)
        assert self._coordinators is not None, "joined before anything is taken"
        looks = self._of([shard], self._queue.running)
        await asyncio.gather(*(self._queue.finish(key) for key in looks))
        coordinated = self._of([shard], self._coordinators.keys())
        await asyncio.gather(*(self._coordinators.stop(key) for key in coordinated))
        self._leave([shard])

    def lost(self, shards: frozenset[int]) -> None:
        """See `leases.Worker`: what is under way is cut off; the next holder probes what may have happened."""
        self._stopping -= shards
        assert self._coordinators is not None, "joined before anything is taken"
        for key in self._of(shards, self._queue.running):
            self._queue.drop(key)
        for key in self._of(shards, self._coordinators.keys()):
            drop = asyncio.create_task(self._coordinators.drop(key), name=f"drop {key}")
            self._drops.add(drop)
            drop.add_done_callback(self._drops.discard)
        self._leave(shards)

    def _leave(self, shards: Iterable[int]) -> None:
        for key in self._of(shards, self._jobs()):
            self._forget(key)

    def _shard(self, key: Key) -> int:
        return shard_of(*key, self._shards)

    def _of(self, shards: Iterable[int], keys: Iterable[Key]) -> list[Key]:
        wanted = frozenset(shards)
        return [key for key in list(keys) if self._shard(key) in wanted]
