"""The job that a pod's process works for: its manifest, with the code and the secrets that are mounted beside it.

Both entry points load it before anything else. The manifests of other revisions lie beside `job.json` as
`<revision>.json`, as far as pending checkpoints name them: each is committed with the sinks of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkruntime.api import Sink
from sinkruntime.cli.secrecy import conceal
from sinkruntime.cluster.surroundings import APPLICATION, JOB_FILE, Surroundings
from sinkruntime.errors import ConfigurationError, ManifestError, Problem
from sinkruntime.job.sinks import make_sinks
from sinkruntime.spec.bind import BoundJob, bind
from sinkruntime.spec.digest import revision
from sinkruntime.spec.imports import add_import_path
from sinkruntime.spec.load import Manifest, parse_object
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.options_from import Secrets, read_options_from


@dataclass(frozen=True, slots=True)
class PodJob:
    """`folder` holds the manifests, `name` is namespace/name."""

    bound: BoundJob
    surroundings: Surroundings
    revision: str
    folder: Path

    @property
    def spec(self) -> SinkJobSpec:
        """The job's spec."""
        return self.bound.manifest.job.spec

    @property
    def name(self) -> str:
        """The job for people, and in the checkpoint location's marker."""
        return self.surroundings.name

    @property
    def code(self) -> list[str]:
        """The folders of `deps.configMaps`."""
        return _code(self.spec, self.surroundings)

    def sinks_of(self, wanted: str, ledger_id: str) -> Mapping[str, Sink]:
        """The sinks of a revision, with secrets as they are mounted now; nothing is connected.

        Raises `ConfigurationError` for a revision that is not there, `ManifestError` for one that cannot be used.
        """
        path = self.folder / (JOB_FILE if wanted == self.revision else f"{wanted}.json")
        if not path.is_file():
            message = f"revision {wanted} of {self.name}, which a pending checkpoint needs, is not mounted: {path}"
            raise ConfigurationError("RevisionLost", message, advice="restore the ControllerRevision of that name")
        return make_sinks(_bound(path, self.surroundings, sinks_only=True), ledger_id)


def load_pod_job(path: Path, surroundings: Surroundings) -> PodJob:
    """Read the manifest with all that it names; ManifestError with everything that is wrong."""
    bound = _bound(path, surroundings)
    meta, spec = bound.manifest.job.metadata, bound.manifest.job.spec
    if (meta.namespace, meta.name) != (surroundings.namespace, surroundings.job):
        message = f"{path} is job {meta.namespace}/{meta.name}, this pod is of {surroundings.name}"
        raise ConfigurationError("WrongJob", message)
    conceal([bound.source_secrets, bound.checkpoint_secrets, *_sink_secrets(spec, surroundings)])
    return PodJob(bound, surroundings, revision(spec), path.parent)


def _bound(path: Path, surroundings: Surroundings, *, sinks_only: bool = False) -> BoundJob:
    """`sinks_only`: without the secrets of the source, which may be gone by the time that an old revision commits."""
    job = parse_object(_read(path))
    if sinks_only:
        source = job.spec.source.model_copy(update={"options_from": ()})
        checkpoint = job.spec.checkpoint.model_copy(update={"options_from": ()})
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"source": source, "checkpoint": checkpoint})})
    manifest = Manifest(job, APPLICATION, str(path))
    for folder in _code(manifest.job.spec, surroundings):
        add_import_path(Path(folder), ())
    return bind(manifest, surroundings.places)


def _code(spec: SinkJobSpec, surroundings: Surroundings) -> list[str]:
    return [str(surroundings.mounts / "configmaps" / name) for name in spec.deps.config_maps]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError([Problem("", None, f"cannot be read: {error.strerror}")], str(path)) from error
    except ValueError as error:
        raise ManifestError([Problem("", None, f"is not JSON: {error}")], str(path)) from error
    if not isinstance(value, dict):
        raise ManifestError([Problem("", None, "is not an object")], str(path))
    return value


def _sink_secrets(spec: SinkJobSpec, surroundings: Surroundings) -> list[Secrets]:
    return [
        read_options_from(sink.options_from, surroundings.places, ("spec", "sinks", index, "optionsFrom"))
        for index, sink in enumerate(spec.sinks)
    ]
