"""The manifests that a job's pods read, and the ControllerRevision that keeps one. Used by the builders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinkoperator import names
from sinkoperator.objects.metadata import metadata
from sinkoperator.observed import Observed
from sinkruntime.errors import ManifestError
from sinkruntime.kube.kinds import CONTROLLER_REVISION, Object
from sinkruntime.spec.digest import NOT_OF_A_REVISION, sinks_revision
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.load import parse_object
from sinkruntime.spec.models import API_VERSION, KIND, SinkJobSpec

#: The fields of a manifest that a person's present word counts of, whatever revision runs.
PRESENT_FIELDS = frozenset(str(SinkJobSpec.model_fields[name].alias or name) for name in NOT_OF_A_REVISION)

JOB_FILE = "job.json"


def revision(observed: Observed, name: str) -> Object:
    """The ControllerRevision that keeps the present manifest under this revision's name."""
    spec = observed.job.spec
    assert spec is not None, "an invalid manifest is not kept"
    assert revision_of(spec) == name, "only the present manifest is kept"
    job = observed.job
    number = max((known.number for known in observed.revisions), default=0) + 1
    notes = {names.SINKS_ANNOTATION: sinks_revision(spec)}
    more = {names.REVISION_LABEL: name}
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.name,
        "metadata": metadata(job, names.revision_name(job.name, name), names.REVISION, more, notes),
        "revision": number,
        "data": {"spec": dict(job.raw)},
    }


def raw_of(observed: Observed, name: str) -> Mapping[str, Any] | None:
    """The `spec` of a revision with a person's present words; None where it is not kept."""
    job = observed.job
    if job.spec is not None and revision_of(job.spec) == name:
        return job.raw
    kept = next((known.raw for known in observed.revisions if known.name == name), None)
    if kept is None:
        return None
    own = {field: value for field, value in kept.items() if field not in PRESENT_FIELDS}
    return own | {field: value for field, value in job.raw.items() if field in PRESENT_FIELDS}


def manifest(observed: Observed, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A whole SinkJob with this `spec`."""
    job = observed.job
    about = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "generation": job.generation}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": about, "spec": dict(raw)}


def others(observed: Observed, name: str) -> dict[str, Mapping[str, Any]]:
    """The specs of the other revisions that checkpoints on record were decided under, as far as they are kept."""
    ledger = observed.ledger.ledger if observed.ledger else None
    named = {record.revision for record in ledger.records} - {name} if ledger else set()
    found = {other: raw_of(observed, other) for other in sorted(named)}
    return {other: raw for other, raw in found.items() if raw is not None}


def files(observed: Observed, name: str) -> dict[str, str]:
    """`job.json`, and beside it the manifests of `others` by the revision's name."""
    raw = raw_of(observed, name)
    assert raw is not None, "a plan starts only revisions that are kept"
    texts = {JOB_FILE: _text(observed, raw)}
    return texts | {f"{other}.json": _text(observed, spec) for other, spec in others(observed, name).items()}


def spec_of(observed: Observed, raw: Mapping[str, Any]) -> SinkJobSpec | None:
    """The spec as it is read; None where a later release does not take it any more."""
    try:
        return parse_object(manifest(observed, raw)).spec
    except ManifestError:
        return None


def _text(observed: Observed, raw: Mapping[str, Any]) -> str:
    return json.dumps(manifest(observed, raw), sort_keys=True)
