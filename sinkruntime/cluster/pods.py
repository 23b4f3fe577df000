"""The pods of the job, as the API server tells of them: whether those of older epochs are gone, what ails executors.

Both entry points enter a `JobPods`; it watches by label and changes nothing. What it says is for people and for the
last clean-up: nothing here fences anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sinkruntime.errors import LedgerUnavailable
from sinkruntime.kube import Object, Watch
from sinkruntime.kube.names import COMPONENT_LABEL
from sinkruntime.spark.kubernetes import EPOCH_LABEL, EXECUTOR

#: A watch that was not heard for longer says nothing of what is gone: bookmarks come about each minute.
FRESH_SECONDS = 90.0
SYNC_SECONDS = 120.0
#: Phases in which no process of the pod lives.
ENDED = frozenset({"Succeeded", "Failed"})

#: Why a container waits, where waiting longer may not help.
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Ailment:
    """What keeps executors from working: a reason for status and events, the cluster's own words, what to do."""

    reason: str
    message: str
    advice: str
    lasting: bool = False  # waiting does not help


def ailment_of(pod: Object) -> Ailment | None:
    """What ails an executor's pod; None: nothing that can be seen."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        if ended := state.get("terminated") or (container.get("lastState") or {}).get("terminated"):
            return _ended(name, ended)
        if (waiting := state.get("waiting")) and (found := _waits(name, waiting)):
            return found
    for condition in status.get("conditions") or []:
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            message = f"{name} cannot be scheduled: {condition.get('message', '')}"
            advice = "free or add nodes, or ask for less with spec.executor and its podTemplate"
            return Ailment("ExecutorsUnschedulable", message, advice)
    return None


def _ended(name: str, ended: Object) -> Ailment | None:
    if ended.get("reason") == "OOMKilled":
        advice = "raise spec.executor.memoryOverhead (Python, off-heap) or spec.executor.memory (the JVM's heap)"
        return Ailment("ExecutorsOutOfMemory", f"{name} used more memory than it may", advice)
    if ended.get("exitCode") in (0, 143):  # asked to end
        return None
    said = ended.get("message") or ended.get("reason") or ""
    advice = "the log of an executor says more: set spark.kubernetes.executor.deleteOnTermination to false to keep it"
    return Ailment("ExecutorsCrashed", f"{name} ended with exit code {ended.get('exitCode')}: {said}", advice)


def _waits(name: str, waiting: Object) -> Ailment | None:
    reason, said = waiting.get("reason", ""), waiting.get("message", "")
    message = f"{name} does not start: {reason}: {said}"
    if reason in _IMAGE:
        return Ailment("ExecutorsWithoutImage", message, "check spec.image and spec.imagePullSecrets")
    if reason in _CONFIG:
        return Ailment("ExecutorsNotCreated", message, "check spec.executor.podTemplate, and what the pod mounts")
    return None


class JobPods:
    """See the module. `watch` is over all pods of the job; `epoch` is this process's, 0 for a committer."""

    def __init__(self, watch: Watch, epoch: int) -> None:
        self._watch = watch
        self._epoch = epoch
        self._last: Ailment | None = None
        self._heard = False  # `_last`, since executors were last seen to work
        watch.subscribe(self._hear)

    def older_gone(self, epoch: int) -> bool:
        """Whether no pod of an epoch below this one has a process: not before the watch knows them all.

        A pod that was deleted by force counts as gone: whoever did that has said so.
        """
        watch = self._watch
        if not watch.synced.is_set() or watch.problem is not None or watch.age_seconds() > FRESH_SECONDS:
            return False
        return not any(_epoch(pod) < epoch for pod in watch.all() if _epoch(pod) and not _ended_pod(pod))

    async def own(self, namespace: str, name: str) -> Object | None:
        """This process's pod; None where it has none (a test). Raises `LedgerUnavailable` where nobody answers."""
        try:
            await asyncio.wait_for(self._watch.synced.wait(), SYNC_SECONDS)
        except TimeoutError as error:
            message = f"the API server has listed no pods for {SYNC_SECONDS:.0f} s"
            raise LedgerUnavailable(message, "it is tried again; see the right to list and watch pods") from error
        return self._watch.get(namespace, name)

    def executors(self) -> list[Object]:
        """The pods of this epoch's executors that have not ended."""
        return [pod for pod in self._watch.all() if self._mine(pod) and not _ended_pod(pod)]

    def ailment(self) -> Ailment | None:
        """What ails them now, else what the last one died of (Spark removes its pod)."""
        return next(_ailments(self.executors()), None) or self._last

    def well(self) -> None:
        """Executors work: what an older one died of is no reason any more. What was heard since the last call stays:
        its executor may be one that Spark still counts."""
        if not self._heard:
            self._last = None
        self._heard = False

    def _mine(self, pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return labels.get(COMPONENT_LABEL) == EXECUTOR and _epoch(pod) == self._epoch

    def _hear(self, event: str, pod: Object) -> None:
        if self._mine(pod) and (found := ailment_of(pod)) is not None:
            self._last, self._heard = found, True


def _ailments(pods: Iterable[Object]) -> Iterator[Ailment]:
    return (found for pod in pods if (found := ailment_of(pod)) is not None)


def _epoch(pod: Object) -> int:
    text = (pod["metadata"].get("labels") or {}).get(EPOCH_LABEL, "")
    return int(text) if text.isdigit() else 0


def _ended_pod(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED
