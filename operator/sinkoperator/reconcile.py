"""One look at one job: gather, plan, apply. Level-triggered: what happened before does not matter, only what is.

The work queue calls `reconcile` with a job's key, one look at a time per job. It holds no rule of its own but these:
a plan that starts, ends or tells something for good is made twice, the second time from what the server says at that
moment; and what a later plan reads from the status is written before anything is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sinkoperator import actions
from sinkoperator.actions import Decision
from sinkoperator.apply import Applied, Apply
from sinkoperator.gather import Gather, Gathered, Kept
from sinkoperator.observed import CoordinatorFacts, Observed, Trouble
from sinkoperator.publish import Publisher
from sinkoperator.world import Key
from sinkruntime.kube import Conflict

log = logging.getLogger(__name__)

#: After the job has changed under one's hands.
AT_ONCE_SECONDS = 0.05

#: What may follow from a cache that is late: repeated on every look, and harmless each time.
_HARMLESS = (actions.RunCoordinator, actions.StopCoordinator, actions.Emit)


class Coordinators(Protocol):
    """What is asked of the manager of coordinators."""

    def facts(self, key: Key) -> CoordinatorFacts:
        """How this replica's coordinator of the job is."""

    async def stop(self, key: Key) -> None:
        """End it, where there is one."""


class Watcher(Protocol):
    """Who is told of looks; see `sinkoperator.telling`."""

    def looked(self, key: Key, observed: Observed, decision: Decision) -> None:
        """A look is over, and what it planned is done."""

    def forget(self, key: Key) -> None:
        """The job is gone."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a look is made with. `holds`: whether this replica works on the job at this instant."""

    gather: Gather
    plan: Callable[[Observed], Decision]
    apply: Apply
    publisher: Publisher
    coordinators: Coordinators
    watcher: Watcher
    holds: Callable[[Key], bool]


class Refusals:
    """What the API server turned down when a job's last plan was applied; known in this process only."""

    def __init__(self) -> None:
        self._by_job: dict[Key, Trouble] = {}

    def of(self, key: Key) -> Trouble | None:
        """The refusal, where the last plan met one."""
        return self._by_job.get(key)

    def put(self, key: Key, trouble: Trouble | None) -> bool:
        """Remember it, or that there was none; whether that is news."""
        before = self._by_job.pop(key, None)
        if trouble is not None:
            self._by_job[key] = trouble
        return before != trouble


class Reconciler:
    """See the module."""

    def __init__(self, parts: Parts, refusals: Refusals) -> None:
        self._parts = parts
        self._refusals = refusals

    async def reconcile(self, key: Key) -> float | None:
        """Look at the job; the answer is after how many seconds to look again, None: only when a hint comes.

        Raises `ApiError` where the server could not be reached, and whatever is a bug.
        """
        parts = self._parts
        if not parts.holds(key):
            return None
        gathered = await parts.gather.cached(key)
        if gathered is not None and needs_live(parts.plan(gathered.observed)):
            gathered = await parts.gather.live(key)
        if gathered is None:
            await self._parts.coordinators.stop(key)
            self.forget(key)
            return None
        return await self._do(key, gathered, parts.plan(gathered.observed))

    async def _do(self, key: Key, gathered: Gathered, decision: Decision) -> float | None:
        """Each write is preceded by the question whether this replica still works on the job; see `apply`."""
        parts, body = self._parts, gathered.body
        if not parts.holds(key):
            return None
        try:
            if decision.urgent:
                body, _ = await parts.publisher.publish(body, decision.status, urgent=True)
            applied = await parts.apply.run(key, Gathered(gathered.observed, body), decision.actions)
            if not parts.holds(key):
                return None
            wait = 0.0
            if not decision.urgent and applied.body is not None:
                _, wait = await parts.publisher.publish(applied.body, decision.status, urgent=False)
        except Conflict as conflict:
            log.debug("%s/%s has changed meanwhile: %s", *key, conflict.message)
            return AT_ONCE_SECONDS
        if applied.refused is None:
            parts.watcher.looked(key, gathered.observed, decision)
        news = self._refusals.put(key, applied.refused)
        return self._next(decision, applied, wait, news)

    @staticmethod
    def _next(decision: Decision, applied: Applied, wait: float, news: bool) -> float:
        times = [decision.look_again_seconds]
        if wait:
            times.append(wait)
        if applied.again_seconds is not None:
            times.append(applied.again_seconds)
        if news:
            times.append(AT_ONCE_SECONDS)  # so that the status tells of it
        return min(times)

    def forget(self, key: Key) -> None:
        """The SinkJob is gone, or another replica's: nothing of it is kept in this process."""
        self._parts.publisher.forget(key)
        self._parts.watcher.forget(key)
        self._refusals.put(key, None)


def needs_live(decision: Decision) -> bool:
    """Whether the plan does or tells what must not rest on a cache that may be late."""
    return decision.urgent or any(not isinstance(action, _HARMLESS) for action in decision.actions)


def kept(refusals: Refusals, coordinators: Coordinators) -> Callable[[Key], Kept]:
    """What `Gather` is told of this process."""
    return lambda key: Kept(coordinators.facts(key), refusals.of(key))
