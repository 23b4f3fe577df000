"""What a live driver pod lacks before it is ready, in words for people; and how long its end may take. Pure."""

from __future__ import annotations

from sinkoperator.facts import Facts
from sinkoperator.observed import DriverPod, Trouble

#: What to do about a container that waits, by the kubelet's reason.
_ADVICE = {
    "ImagePullBackOff": "check spec.image, and spec.imagePullSecrets where the registry asks for a login",
    "ErrImagePull": "check spec.image, and spec.imagePullSecrets where the registry asks for a login",
    "InvalidImageName": "correct spec.image",
    "ErrImageNeverPull": "load the image onto the nodes, or change spec.imagePullPolicy",
    "CreateContainerConfigError": "look at the pod's events: a Secret or ConfigMap that it mounts may be missing",
    "CreateContainerError": "look at the pod's events",
    "RunContainerError": "look at the pod's events; the image must have the command `sinkjob`",
}
#: Reasons of every start; they are no trouble.
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
_UNSCHEDULABLE = "free or add nodes, or ask for less with spec.driver and its podTemplate; it starts by itself then"


def unready(facts: Facts, pod: DriverPod) -> Trouble | None:
    """What is awaited before the driver works; None: it is ready."""
    if pod.unschedulable:
        return Trouble("Unschedulable", pod.unschedulable, _UNSCHEDULABLE)
    if pod.waiting is not None and pod.waiting.reason not in _USUAL:
        advice = pod.waiting.advice or _ADVICE.get(pod.waiting.reason, "")
        return Trouble(pod.waiting.reason, pod.waiting.message, advice)
    claimed = facts.ledger is not None and bool(facts.ledger.claim)
    if pod.phase == "Running" and pod.ready and claimed:
        return None
    what = "has not claimed its epoch yet" if pod.phase == "Running" else "has not started yet"
    return Trouble("DriverStarting", f"the driver's pod {pod.name} {what}")


def grace_of(facts: Facts, pod: DriverPod) -> int:
    """Seconds that a driver gets to end at a checkpoint boundary: what its pod says, at least the operator's."""
    return max(int(pod.grace_seconds), facts.observed.settings.stop_grace_seconds)
