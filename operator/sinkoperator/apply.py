"""Does what a plan asks for, action by action, in order; stops at the first that is not definitely done.

`reconcile` calls it. Each action may be repeated: after a crash, after a lost answer, by the next holder of the shard,
and each is preceded by the question whether this replica still works on the job. That question is a hint; what keeps
two replicas from doing harm are names that hold the epoch, and compare-and-swaps. It decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sinkoperator import actions, names, objects
from sinkoperator.actions import Action
from sinkoperator.apply_ledger import LedgerActions
from sinkoperator.gather import Gathered
from sinkoperator.observed import Observed, Trouble
from sinkoperator.reading import label
from sinkoperator.world import Key, World
from sinkoperator.writes import NameTaken, Writes
from sinkruntime.environment import Environment
from sinkruntime.kube import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    POD,
    SINK_JOB,
    AlreadyExists,
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Object,
)
from sinkruntime.protocol.events import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it: the SinkJob after it (None: it is gone), and what the API server turned down for good."""

    body: Object | None
    refused: Trouble | None = None
    again_seconds: float | None = None


class Coordinators(Protocol):
    """What is asked of the manager of coordinators; see `sinkoperator.commits.manager`."""

    async def run(self, key: Key, observed: Observed, action: actions.RunCoordinator) -> None: ...
    async def stop(self, key: Key) -> None: ...
    async def abort(self, key: Key, observed: Observed, action: actions.BeginAbort) -> None: ...


class Events(Protocol):
    """What is asked of whoever posts events; see `sinkoperator.events`."""

    def post(self, job: Object, reason: str, message: str, *, warning: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What actions are done with. `holds`: whether this replica works on the job at this instant."""

    api: Api
    world: World
    environment: Environment
    coordinators: Coordinators
    events: Events
    holds: Callable[[Key], bool]


class Apply:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, key: Key, gathered: Gathered, wanted: Sequence[Action]) -> Applied:
        """Do these actions. Raises `Conflict` where something has changed since it was gathered, and other `ApiError`
        and `LedgerError` where an action may or may not be done: gather again then."""
        work = _Work(self._services, key, gathered)
        for action in wanted:
            if not self._services.holds(key):
                log.info("%s/%s is another replica's by now", *key)
                return Applied(work.body)
            try:
                await work.do(action)
            except NameTaken as taken:
                return Applied(work.body, taken.trouble)
            except (Forbidden, Invalid) as error:
                trouble = trouble_of(error, action)
                log.warning("%s/%s: %s was turned down: %s", *key, type(action).__name__, error.message)
                return Applied(work.body, trouble)
            except Refused as refused:
                raise Conflict(f"the ledger has moved on: {refused}") from refused
        return Applied(work.body)


Step = Callable[[Any], Awaitable[None]]


class _Work:
    """The actions of one plan."""

    def __init__(self, services: Services, key: Key, gathered: Gathered) -> None:
        self._services = services
        self._key = key
        self._namespace, self._name = key
        self._observed = gathered.observed
        self.body: Object | None = gathered.body
        self._writes = Writes(services.api, self._namespace, gathered.observed.job.uid)
        self._ledger = LedgerActions(services.api, services.environment, key, gathered.observed)
        ledger = self._ledger
        self._steps: Mapping[type[Any], Step] = {
            actions.AddFinalizer: self._add_finalizer,
            actions.RemoveFinalizer: self._remove_finalizer,
            actions.EnsureRevision: self._ensure_revision,
            actions.PruneRevisions: self._prune_revisions,
            actions.CreateLedger: ledger.create,
            actions.AdoptLedger: ledger.adopt,
            actions.OrphanLedger: ledger.orphan,
            actions.ReleaseLedger: ledger.release,
            actions.RaiseEpoch: ledger.raise_epoch,
            actions.EnsureAccess: self._ensure_access,
            actions.CreateDriver: self._create_driver,
            actions.StopDriver: self._delete_pod,
            actions.DeletePod: self._delete_pod,
            actions.PruneDriverObjects: self._prune_driver_objects,
            actions.PruneCommitterObjects: self._prune_committer_objects,
            actions.EnsureCommitter: self._ensure_committer,
            actions.StopCommitter: self._delete_pod,
            actions.RunCoordinator: self._run_coordinator,
            actions.StopCoordinator: self._stop_coordinator,
            actions.BeginAbort: self._begin_abort,
            actions.DeleteJob: self._delete_job,
            actions.Emit: self._emit,
        }

    async def do(self, action: Action) -> None:
        """One action."""
        if not isinstance(action, actions.RunCoordinator | actions.Emit):
            log.info("%s/%s: %s: %s", *self._key, type(action).__name__, action.why)
        await self._steps[type(action)](action)

    async def _change_finalizers(self, change: Callable[[list[str]], list[str]]) -> None:
        assert self.body is not None, "nothing follows the end of a SinkJob"
        before = list(self.body["metadata"].get("finalizers") or [])
        after = change(before)
        if after != before:
            self.body = await self._writes.patch_metadata(SINK_JOB, self.body, {"finalizers": after})
            self._services.world.keep(self.body)

    async def _add_finalizer(self, _: actions.AddFinalizer) -> None:
        await self._change_finalizers(lambda present: list(dict.fromkeys([*present, names.JOB_FINALIZER])))

    async def _remove_finalizer(self, _: actions.RemoveFinalizer) -> None:
        await self._change_finalizers(lambda present: [each for each in present if each != names.JOB_FINALIZER])
        self.body = None

    async def _delete_job(self, _: actions.DeleteJob) -> None:
        await self._writes.delete(SINK_JOB, self._name, self._observed.job.uid)
        self.body = None

    async def _ensure_revision(self, action: actions.EnsureRevision) -> None:
        """Its name is the digest of what it holds: one that is there, from whatever time, is as good."""
        body = objects.revision(self._observed, action.revision)
        with contextlib.suppress(AlreadyExists):
            await self._services.api.create(CONTROLLER_REVISION, self._namespace, body)

    async def _prune_revisions(self, action: actions.PruneRevisions) -> None:
        for revision in action.revisions:
            await self._writes.delete(CONTROLLER_REVISION, names.revision_name(self._name, revision))

    async def _ensure_access(self, _: actions.EnsureAccess) -> None:
        for kind, body, fields in objects.access(self._observed):
            await self._writes.correct(kind, body, *fields)

    async def _create_driver(self, action: actions.CreateDriver) -> None:
        config, pod = objects.driver(self._observed, action)
        await self._config(config, pod)
        await self._writes.adopt(POD, pod, labels=(names.EPOCH_LABEL, names.REVISION_LABEL))

    async def _config(self, config: Object, pod: Object) -> None:
        """One of this name that was made before the manifest changed is made anew, unless a pod has it already."""
        present = await self._writes.adopt(CONFIG_MAP, config)
        if present.get("data") == config.get("data"):
            return
        name = pod["metadata"]["name"]
        if await self._services.api.get(POD, self._namespace, name) is not None:
            return  # `adopt` tells whether that pod is the one that is wanted
        await self._writes.delete(CONFIG_MAP, config["metadata"]["name"], present["metadata"]["uid"])
        await self._writes.adopt(CONFIG_MAP, config)

    async def _delete_pod(self, action: actions.StopDriver | actions.DeletePod | actions.StopCommitter) -> None:
        grace = None if isinstance(action, actions.DeletePod) else action.grace_seconds
        await self._writes.delete(POD, action.name, action.uid, grace)

    async def _prune_driver_objects(self, action: actions.PruneDriverObjects) -> None:
        await self._prune_configs(names.driver_name(self._name, epoch) for epoch in action.epochs)

    async def _prune_committer_objects(self, action: actions.PruneCommitterObjects) -> None:
        await self._prune_configs(names.committer_name(self._name, number) for number in action.numbers)

    async def _prune_configs(self, found: Iterable[str]) -> None:
        for name in found:
            present = await self._services.api.get(CONFIG_MAP, self._namespace, name)
            if present is not None and label(present, names.JOB_LABEL) == self._name:
                await self._writes.delete(CONFIG_MAP, name, present["metadata"]["uid"])

    async def _ensure_committer(self, action: actions.EnsureCommitter) -> None:
        for kind, body, fields in objects.access(self._observed):
            await self._writes.correct(kind, body, *fields)
        config, pod = objects.committer(self._observed, action)
        await self._config(config, pod)
        await self._writes.adopt(POD, pod, labels=(names.REVISION_LABEL,))

    async def _run_coordinator(self, action: actions.RunCoordinator) -> None:
        await self._services.coordinators.run(self._key, self._observed, action)

    async def _stop_coordinator(self, _: actions.StopCoordinator) -> None:
        await self._services.coordinators.stop(self._key)

    async def _begin_abort(self, action: actions.BeginAbort) -> None:
        await self._services.coordinators.abort(self._key, self._observed, action)

    async def _emit(self, action: actions.Emit) -> None:
        if self.body is not None:
            self._services.events.post(self.body, action.reason, action.message, warning=action.warning)


def trouble_of(error: ApiError, action: Action) -> Trouble:
    """What the API server turned down, as people read it. Reasons are shared with conditions and events."""
    said, low = error.message, error.message.lower()
    if "exceeded quota" in low or "limitrange" in low or "must specify limits" in low:
        return Trouble("QuotaExceeded", said, "ask for less, stop something else, or have the quota raised")
    if "violates podsecurity" in low:
        advice = "the pod template asks for more than the namespace's Pod Security allows"
        return Trouble("PodSecurityRefused", said, advice, "spec.driver.podTemplate")
    if "being terminated" in low:
        return Trouble("NamespaceTerminating", said)
    if isinstance(error, Forbidden):
        return Trouble("RightMissing", said, "give the operator the rights that its chart lists")
    pod = isinstance(action, actions.CreateDriver | actions.EnsureCommitter)
    path = "spec.driver.podTemplate" if pod else ""
    return Trouble("ObjectRefused", said, "correct what the API server names", path)
