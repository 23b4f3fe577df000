"""Turns objects of the API server into what a plan reads: plain functions of one object, nothing asked, nothing kept.

Called by `gather`. Fields that are missing or odd become the defaults of `observed`: a pod is never refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sinkoperator import names
from sinkoperator.manifests import Read
from sinkoperator.observed import CommitterPod, DriverPod, Executors, JobObject, LedgerObject, Revision, Trouble
from sinkruntime.errors import LedgerError
from sinkruntime.kube import Object
from sinkruntime.ledger.configmap import decode
from sinkruntime.spec.models import SinkJobSpec

#: What a pod says of itself is shown to people; a longer text is cut.
TEXT_CHARS_MAX = 1000


def seconds(text: str | None) -> float | None:
    """Wall seconds of a time as the API server writes it."""
    return datetime.fromisoformat(text).timestamp() if text else None


def job_object(body: Object, read: Read) -> JobObject:
    """The SinkJob."""
    metadata = body["metadata"]
    return JobObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        raw=body.get("spec") or {},
        spec=read.spec,
        problems=read.problems,
        deleting_since=seconds(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        annotations=metadata.get("annotations") or {},
        status=body.get("status") or {},
    )


def driver_pod(body: Object, job_uid: str, log_tail: str = "") -> DriverPod:
    """A driver pod; `job_uid` is that of the SinkJob which it should belong to."""
    metadata, status = body["metadata"], body.get("status") or {}
    container, ended = _container(status, "driver")
    notes = metadata.get("annotations") or {}
    return DriverPod(
        name=metadata["name"],
        uid=metadata["uid"],
        epoch=_number(label(body, names.EPOCH_LABEL)),
        revision=label(body, names.REVISION_LABEL),
        intent=notes.get(names.INTENT_ANNOTATION, ""),
        commit_only=notes.get(names.COMMIT_ONLY_ANNOTATION) == "true",
        ours=controller(body) == job_uid,
        phase=status.get("phase", "Pending"),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        started=seconds(_deep(container, "state", "running").get("startedAt") or ended.get("startedAt")),
        finished=seconds(ended.get("finishedAt")),
        ready=bool(container.get("ready")),
        deleting_since=_deleting_since(metadata),
        grace_seconds=_grace(body),
        exit_code=ended.get("exitCode"),
        oom_killed=ended.get("reason") == "OOMKilled",
        pod_reason=_pod_reason(status),
        termination=termination(ended.get("message", "")),
        waiting=_waiting(container),
        unschedulable=_unschedulable(status),
        log_tail=log_tail,
    )


def committer_pod(body: Object) -> CommitterPod:
    """A committer pod."""
    metadata, status = body["metadata"], body.get("status") or {}
    container, ended = _container(status, "committer")
    return CommitterPod(
        name=metadata["name"],
        uid=metadata["uid"],
        number=committer_number(body),
        revision=label(body, names.REVISION_LABEL),
        intent=(metadata.get("annotations") or {}).get(names.INTENT_ANNOTATION, ""),
        phase=status.get("phase", "Pending"),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        deleting_since=_deleting_since(metadata),
        finished=seconds(ended.get("finishedAt")),
        exit_code=ended.get("exitCode"),
        termination=termination(ended.get("message", "")),
        waiting=_waiting(container),
    )


def committer_number(body: Object) -> int:
    """Of a committer's Pod or ConfigMap: the last part of its name."""
    return _number(body["metadata"]["name"].rpartition("-")[2])


def executors(pods: Iterable[Object], epoch: int, spec: SinkJobSpec | None) -> Executors:
    """Counts of the executors of this epoch."""
    phases = [
        (pod.get("status") or {}).get("phase", "Pending")
        for pod in pods
        if label(pod, names.COMPONENT_LABEL) == names.EXECUTOR and _number(label(pod, names.EPOCH_LABEL)) == epoch
    ]
    return Executors(
        desired=spec.executor.instances if spec is not None else 0,
        running=phases.count("Running"),
        pending=phases.count("Pending"),
        failed=phases.count("Failed"),
    )


def ledger_object(body: Object) -> LedgerObject:
    """A ledger's ConfigMap; one that cannot be used is told as trouble."""
    metadata = body["metadata"]
    try:
        ledger, trouble = decode(body).ledger, None
    except LedgerError as error:
        ledger, trouble = None, Trouble(error.reason, error.message, error.advice)
    return LedgerObject(
        uid=metadata["uid"],
        ledger=ledger,
        trouble=trouble,
        owner_uid=str((metadata.get("annotations") or {}).get(names.OWNER_ANNOTATION, "")),
        finalizer=names.LEDGER_FINALIZER in (metadata.get("finalizers") or ()),
        deleting="deletionTimestamp" in metadata,
    )


def revision(body: Object) -> Revision:
    """A ControllerRevision."""
    notes = body["metadata"].get("annotations") or {}
    data = body.get("data") or {}
    return Revision(
        name=label(body, names.REVISION_LABEL),
        number=body.get("revision", 0),
        sinks=notes.get(names.SINKS_ANNOTATION, ""),
        raw=data.get("spec") or {},
    )


def termination(text: str) -> Trouble | None:
    """What the process wrote as its last word: JSON with a reason; any other text is shown as it is."""
    if not text.strip():
        return None
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not said.get("reason"):
        return Trouble("", text.strip()[:TEXT_CHARS_MAX])
    reason, message, advice, path = (str(said.get(field) or "") for field in ("reason", "message", "advice", "path"))
    return Trouble(reason, message[:TEXT_CHARS_MAX], advice[:TEXT_CHARS_MAX], path)


def controller(body: Object) -> str:
    """The uid of the object's controller, "" where it has none."""
    owners = body["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def label(body: Object, name: str) -> str:
    """A label's value, "" where it is not there."""
    return str((body["metadata"].get("labels") or {}).get(name, ""))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _deep(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name) or {}
    return value


def _container(status: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The status of the container, and how it ended ({}: it has not)."""
    statuses: list[Mapping[str, Any]] = status.get("containerStatuses") or []
    found = next((each for each in statuses if each.get("name") == name), {})
    return found, _deep(found, "state", "terminated")


def _deleting_since(metadata: Mapping[str, Any]) -> float | None:
    """When the deletion was asked for: the API server writes when the grace is over."""
    until = seconds(metadata.get("deletionTimestamp"))
    return None if until is None else until - float(metadata.get("deletionGracePeriodSeconds") or 0)


def _grace(body: Object) -> float:
    asked = body["metadata"].get("deletionGracePeriodSeconds")
    own = (body.get("spec") or {}).get("terminationGracePeriodSeconds")
    return float(next((value for value in (asked, own) if value is not None), 30.0))


def _pod_reason(status: Mapping[str, Any]) -> str:
    """Evicted, NodeLost, Preempted… : why it was not the process's own doing."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(status.get("reason") or condition.get("reason") or "")
    return str(status.get("reason") or "")


def _waiting(container: Mapping[str, Any]) -> Trouble | None:
    waiting = _deep(container, "state", "waiting")
    if not waiting:
        return None
    return Trouble(str(waiting.get("reason") or "Waiting"), str(waiting.get("message") or "")[:TEXT_CHARS_MAX])


def _unschedulable(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")[:TEXT_CHARS_MAX]
    return ""
