"""The folder `.sinkjob/<namespace>/<name>` beside a manifest: ledger, default checkpoint location, revisions, lock.

`run`, `status`, `commits` and the other commands find everything of a job here. Revisions are the manifests that
decisions were made under, without any secret: a pending checkpoint is committed with the sinks of its own one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sinkruntime.api import Sink
from sinkruntime.errors import ConfigurationError
from sinkruntime.job.sinks import make_sinks
from sinkruntime.ledger.durable import replace_file
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.spec.bind import BoundJob, bind
from sinkruntime.spec.digest import revision
from sinkruntime.spec.load import Manifest, parse_object
from sinkruntime.spec.options_from import local_places

#: Set in this process and inherited by all that it starts: `<ledger id>:<epoch>`, by which leftovers are recognised.
RUN_VARIABLE = "SINKJOB_RUN"


class Workspace:
    """One job's folder. Paths of a manifest are relative to the manifest, and so is this."""

    def __init__(self, job: BoundJob) -> None:
        self.job = job
        meta = job.manifest.job.metadata
        self.name = f"{meta.namespace}/{meta.name}"
        self.root = job.manifest.base / ".sinkjob" / meta.namespace / meta.name
        self.revision = revision(job.manifest.job.spec)
        self.store = FileLedgerStore(self.root / "ledger")
        self.bound = {bound.spec.name: bound for bound in job.sinks}  # of every revision that was asked for

    @property
    def checkpoint_location(self) -> str:
        """Spark's checkpoint location: the manifest's, or a folder here."""
        return self.job.manifest.job.spec.checkpoint.location or str((self.root / "checkpoint").absolute())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run of a job at a time; the kernel releases it with the process. Raises `ConfigurationError`."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / "run.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                message = f"job {self.name} is being run by process {pid}"
                raise ConfigurationError("AlreadyRunning", message, advice="end that one first") from error
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def save_revision(self) -> None:
        """Keep the present manifest, before any decision names its revision."""
        self.put_revision(self.revision, self.job.manifest.job.model_dump_json(by_alias=True, exclude_defaults=True))

    def put_revision(self, name: str, manifest: str) -> None:
        """Keep a manifest under this revision, as durable as the ledger that names it."""
        replace_file(self.root / "revisions" / f"{name}.json", manifest.encode())

    def sinks_of(self, revision: str, ledger_id: str) -> Mapping[str, Sink]:
        """The sinks of a revision, by name, with secrets resolved now. Raises `ManifestError`, `ConfigurationError`."""
        job = self._job_of(revision)
        self.bound |= {bound.spec.name: bound for bound in job.sinks}
        return make_sinks(job, ledger_id)

    def _job_of(self, revision: str) -> BoundJob:
        if revision == self.revision:
            return self.job
        path = self.root / "revisions" / f"{revision}.json"
        try:
            kept = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            message = f"revision {revision} of {self.name}, which a pending checkpoint needs, cannot be read: {path}"
            raise ConfigurationError("RevisionLost", message, advice="restore that file") from error
        mine = self.job.manifest
        manifest = Manifest(job=parse_object(kept), source=str(path), base=mine.base)
        return bind(manifest, local_places(mine.base))


def older_gone(ledger_id: str, epoch: int) -> bool:
    """Whether no process of an older epoch of this ledger lives on this machine: proof on Linux, elsewhere never."""
    processes = Path("/proc")
    if not processes.is_dir():
        return False
    prefix = f"{RUN_VARIABLE}={ledger_id}:".encode()
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        marks = [mark.removeprefix(prefix) for mark in environment if mark.startswith(prefix)]
        if any(mark.isdigit() and int(mark) < epoch for mark in marks):
            return False
    return True
