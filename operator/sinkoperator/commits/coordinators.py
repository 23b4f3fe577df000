"""The manager of coordinators as the reconciler sees it: a plan's actions in, facts for the next plan out.

`apply` and `gather` call it. It waits for nothing: a look at one job must not wait for another's commit.
"""

from __future__ import annotations

import asyncio
import logging

from pydantic import ValidationError

from sinkoperator.actions import BeginAbort, RunCoordinator
from sinkoperator.commits.manager import Charge, Key, Manager
from sinkoperator.observed import CoordinatorFacts, Observed, PreparedFacts, Trouble
from sinkruntime.coordinator.settings import Metrics
from sinkruntime.errors import SinkjobError
from sinkruntime.kube.names import committer_holder
from sinkruntime.spec.models import SinkJobSpec

log = logging.getLogger(__name__)


class Coordinators:
    """See the module."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._ending: dict[Key, asyncio.Task[None]] = {}

    def facts(self, key: Key) -> CoordinatorFacts:
        """How this replica's coordinator of the job is."""
        trouble = self._manager.trouble(key)
        begun = self._manager.begun_with(key)
        told = None if trouble is None else _told(trouble)
        return CoordinatorFacts(self._manager.runs(key), begun, told, _oldest(self._manager.metrics_of(key)))

    async def run(self, key: Key, observed: Observed, action: RunCoordinator) -> None:
        """See that it runs as the plan says."""
        spec = observed.job.spec
        if spec is None:  # not valid any more; pending checkpoints are committed by what was
            spec = _kept(observed, action.revision)
        if spec is None:
            log.warning("%s/%s has no revision %s that can be read: nobody commits", *key, action.revision)
            return
        charge = Charge(spec, action.revision, action.intent, action.driver_sinks, action.gone_below, action.retried)
        self._manager.run(key, charge)

    async def stop(self, key: Key) -> None:
        """Let it end in order; it is not waited for."""
        if key not in self._ending and self._manager.runs(key):
            self._manager.release(key)
            task = self._ending[key] = asyncio.create_task(self._manager.stop(key), name=f"end of {key}")
            task.add_done_callback(lambda _: self._ending.pop(key, None))

    async def abort(self, key: Key, observed: Observed, action: BeginAbort) -> None:
        """Put an abort on record; where no coordinator, ours or a committer pod's, works yet, a later look does."""
        pods = tuple(f"{committer_holder(pod.name, pod.uid)}/" for pod in observed.committers)
        if not await self._manager.abort(key, action.first, action.who, action.reason, pods):
            log.info("the abort of %s/%s from checkpoint %d waits for its coordinator", *key, action.first)


def _kept(observed: Observed, revision: str) -> SinkJobSpec | None:
    """The spec in a ControllerRevision; None where it is missing, or no spec (any more)."""
    raw = next((dict(found.raw) for found in observed.revisions if found.name == revision), {})
    try:
        return SinkJobSpec.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError:
        return None


def _oldest(metrics: Metrics) -> PreparedFacts | None:
    counts = {sink: int(value) for (name, sink), value in metrics.values.items() if name == "prepared_transactions"}
    found = [PreparedFacts(sink, counts[sink], metrics.get("prepared_oldest_seconds", sink)) for sink in counts]
    return max(found, key=lambda one: one.oldest_seconds, default=None)


def _told(error: SinkjobError) -> Trouble:
    return Trouble(error.reason, error.message, error.advice, getattr(error, "path", ""))
