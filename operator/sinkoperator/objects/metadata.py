"""Names, labels and owner of an object of a job. Used by the builders of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkoperator.names import REVISION
from sinkoperator.observed import JobObject
from sinkruntime.kube.kinds import SINK_JOB, Object
from sinkruntime.kube.names import labels


def metadata(
    job: JobObject,
    name: str,
    component: str,
    more_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """The metadata of an object that the SinkJob controls; a ControllerRevision is controlled by nobody."""
    made: Object = {
        "name": name,
        "namespace": job.namespace,
        "labels": {**labels(job.name, component), **(more_labels or {})},
    }
    if component != REVISION:  # pending checkpoints need it though the SinkJob is being deleted
        made["ownerReferences"] = [owner(job)]
    return made | ({"annotations": dict(annotations)} if annotations else {})


def owner(job: JobObject) -> dict[str, Any]:
    """The SinkJob as controller. It does not block the owner's deletion: that needs a right on its finalizers."""
    return {
        "apiVersion": SINK_JOB.api_version,
        "kind": SINK_JOB.name,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
    }
