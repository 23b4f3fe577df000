"""Finds the job that a command is about: JOB is a manifest's file, or a name on a cluster.

Every command that takes a JOB calls `opened`. It works in the manifest's folder, because relative paths in a manifest
(also those of sinks) begin there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from sinkruntime.cli.secrecy import conceal
from sinkruntime.errors import ConfigurationError, ManifestError, Problem, TargetError
from sinkruntime.local.inspection import secrets_of
from sinkruntime.local.workspace import Workspace
from sinkruntime.spec.bind import BoundJob, load_job

job_argument = click.argument("job", metavar="JOB")
namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="JOB is a name in this namespace of a cluster. Not in this release: kubectl tells of those.",
)

_SUFFIXES = (".yaml", ".yml")


@contextlib.contextmanager
def opened(job: str, namespace: str | None = None, *, to_run: bool = False) -> Iterator[Workspace]:
    """The job's workspace, with its manifest's folder as the current one; raises `ManifestError` with all problems.

    `to_run`: the files and the code that only a run needs must be there too.
    Errors that name a field of the manifest get its file and line on their way out.
    """
    path = manifest_path(job, namespace)
    if not path.parent.is_dir():
        raise _unreadable(job, f"there is no folder {path.parent}")
    with contextlib.chdir(path.parent):
        bound = _load(path.name, job, to_run)
        workspace = Workspace(bound)
        sinks = [secrets_of(workspace, sink) for sink in bound.sinks]
        conceal([bound.source_secrets, bound.checkpoint_secrets, *sinks])
        try:
            yield workspace
        except (ConfigurationError, TargetError) as error:
            if error.path.startswith("spec"):
                line = bound.manifest.lines.of(error.path)
                error.path = f"{job}:{line}: {error.path}" if line else f"{job}: {error.path}"
            raise


def manifest_path(job: str, namespace: str | None) -> Path:
    """The manifest's file; raises `ConfigurationError` for the name of a job on a cluster."""
    path = Path(job)
    if namespace is None and (path.suffix in _SUFFIXES or path.is_file()):
        return path
    if namespace is None and path.is_dir():
        raise _unreadable(job, "it is a folder; give the manifest in it, such as job.yaml")
    if namespace is None and "/" in job:
        raise _unreadable(job, "there is no such file")
    where = f"{namespace}/{job}" if namespace else job
    raise ConfigurationError(
        "NoCluster",
        f"`{where}` is the name of a job on a cluster, and this command looks at no cluster yet",
        advice="give a manifest's file, such as job.yaml; of a job on a cluster `kubectl describe sinkjob` tells",
    )


def _load(name: str, given: str, to_run: bool) -> BoundJob:
    try:
        bound = load_job(name, to_run=to_run)
    except ManifestError as error:
        raise ManifestError(error.problems, given) from error
    return replace(bound, manifest=replace(bound.manifest, base=Path.cwd()))


def _unreadable(job: str, what: str) -> ManifestError:
    return ManifestError([Problem("", None, f"cannot be read: {what}")], job)
