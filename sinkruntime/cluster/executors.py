"""Watches that a job has executors at all, and says why it has none, where Spark would wait for ever and say nothing.

Spawned beside the query on a cluster. After `QUICK_SECONDS` without any it looks for the cause and logs it; a cause
that no waiting mends, or a wait longer than the bound, ends the run with that cause in the API server's own words. How
many executors there are is not its affair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sinkruntime.api import Clock
from sinkruntime.cluster.pods import Ailment, JobPods
from sinkruntime.errors import SinkjobError
from sinkruntime.kube import POD, Api, ApiError, Forbidden, Invalid, Object

log = logging.getLogger(__name__)

#: How often Spark is asked, and after which time without executors the cause is looked for.
LOOK_SECONDS = 5.0
QUICK_SECONDS = 30.0
#: Jobs that are cancelled may be followed by others that were just being planned: so often, each after `LOOK_SECONDS`.
CANCELS_MAX = 12

#: What the API server says of a quota that is used up; room may come.
_QUOTA = "exceeded quota"
_REFUSED = "let spec.executor.podTemplate meet the namespace's rules (its Pod Security level, limits, admission)"
_NO_ROOM = "raise the namespace's ResourceQuota, or ask for less with spec.executor"


class NoExecutors(SinkjobError):
    """The job cannot get any executor; reason and advice are the ailment's."""


class Counted(Protocol):
    """What is asked of Spark (`sinkruntime.spark.executors`); each call may block."""

    def registered(self) -> int: ...
    def wanted(self) -> bool: ...
    def give_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the cause is looked for; `probe` is a pod such as Spark asks for."""

    api: Api
    pods: JobPods
    namespace: str
    probe: Object


class ExecutorWatch:
    """See the module; `run` ends only by raising. `give_up` is told before it does."""

    def __init__(self, counted: Counted, cluster: Cluster, clock: Clock, bound_seconds: float) -> None:
        self.error: NoExecutors | None = None
        self._counted = counted
        self._cluster = cluster
        self._clock = clock
        self._bound_seconds = bound_seconds

    async def run(self, give_up: Callable[[], None]) -> None:
        """Look until there is no hope; then raises `NoExecutors`, which is in `error` from then on."""
        since = self._clock.monotonic()
        told: Ailment | None = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await asyncio.to_thread(self._served):
                since, told = self._clock.monotonic(), None
                self._cluster.pods.well()
                continue
            waited = self._clock.monotonic() - since
            if waited < min(QUICK_SECONDS, self._bound_seconds):
                continue
            found = await self._diagnose()
            if found.lasting or waited >= self._bound_seconds:
                break
            if found != told:
                log.warning("no executor for %.0f s: %s: %s", waited, found.reason, found.message)
                told = found
        self.error = NoExecutors(found.reason, f"no executor for {waited:.0f} s: {found.message}", found.advice)
        give_up()
        for _ in range(CANCELS_MAX):  # whoever runs the query sees `error`, ends, and with it this
            await asyncio.to_thread(self._counted.give_up)
            await asyncio.sleep(LOOK_SECONDS)
        raise self.error

    def _served(self) -> bool:
        return self._counted.registered() > 0 or not self._counted.wanted()

    async def _diagnose(self) -> Ailment:
        found = self._cluster.pods.ailment()
        if found is not None:
            return found
        if self._cluster.pods.executors():
            message = "their pods run or are being made, and none has come to the driver"
            return Ailment("ExecutorsMissing", message, "look at the executors' logs, and at NetworkPolicies")
        return await self._refusal() or Ailment(
            "ExecutorsMissing", "Spark has made no pod for them", "the driver's log says more"
        )

    async def _refusal(self) -> Ailment | None:
        """What the API server says to such a pod; None: it would take it, or it cannot be asked."""
        cluster = self._cluster
        try:
            await cluster.api.create(POD, cluster.namespace, cluster.probe, dry_run=True)
        except (Forbidden, Invalid) as error:
            room = _QUOTA in error.message
            return Ailment("ExecutorsRefused", error.message, _NO_ROOM if room else _REFUSED, lasting=not room)
        except ApiError as error:
            log.info("no dry run of an executor: %s", error.message)
        return None
