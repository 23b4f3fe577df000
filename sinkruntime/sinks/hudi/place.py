"""Where a Hudi table lies: the storages of files, and how the one file is written there that makes a commit count.

Used by the writers, the committer and the sink. Locally that file is staged, empty, by the writers, filled and linked
by the committer: a fence takes the staged name away, so that a late commit has nothing to link. On S3 it is put with
`If-None-Match: *`, and a put that is under way cannot be turned down.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.hudi.metadata import same_commit
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.timeline import PRIVATE
from sinkruntime.storage.base import Item, Standing, Storage
from sinkruntime.storage.local import LOOKS_MAX, LocalStorage, fence_of, sync_directory, take_lock, write_all
from sinkruntime.storage.s3 import S3Storage


class Table(Storage):
    """A storage that can complete commits."""

    @abstractmethod
    def reserve(self, name: str, path: str) -> Item | None:
        """Stage an empty file for `complete`, whose final path is `path`; None: this place needs none."""

    @abstractmethod
    def complete(self, reserved: Item | None, path: str, data: bytes, order: tuple[int, int]) -> Standing:
        """Create `path` with these bytes, once for all: `PUBLISHED`, or where it stands."""

    def landed(self, path: str, data: bytes) -> Standing:
        """Where a file stands that somebody has created: for the same files of the same checkpoint, or others."""
        found = self.read(path)
        if found is None:
            return Standing.GONE
        return Standing.LANDED if same_commit(found.data, data) else Standing.TAKEN


class LocalTable(LocalStorage, Table):
    """A table in a local directory."""

    def reserve(self, name: str, path: str) -> Item | None:
        output = self.create("", name)
        return {**output.finish(), "staged": name, "path": path}

    def complete(self, reserved: Item | None, path: str, data: bytes, order: tuple[int, int]) -> Standing:
        assert reserved is not None, "a local writer has reserved it"
        final = self.root / path
        for _ in range(LOOKS_MAX):
            found = self._find(reserved)
            if found is None or final.exists():
                return self.landed(path, data)
            if fence_of(found) >= order:
                return Standing.FENCED
            with suppress(FileNotFoundError, FileExistsError):  # it was fenced, or committed, just now
                if _fill_and_link(found, final, data):
                    sync_directory(final.parent)
                    return Standing.PUBLISHED
        raise OSError(f"{path} changed under every look at it")


def _fill_and_link(staged: Path, final: Path, data: bytes) -> bool:
    """Write the staged file, which is never created here, and link it. Alone, by a lock: a committer that wakes up late
    must not write to a file that is linked already. False: it is."""
    handle = os.open(staged, os.O_WRONLY)
    try:
        take_lock(handle, staged)
        if final.exists():
            return False
        os.ftruncate(handle, 0)
        write_all(handle, data)
        os.link(staged, final)
    finally:
        os.close(handle)
    return True


class S3Table(S3Storage, Table):
    """A table below a prefix of a bucket."""

    def reserve(self, name: str, path: str) -> Item | None:
        return None

    def complete(self, reserved: Item | None, path: str, data: bytes, order: tuple[int, int]) -> Standing:
        return Standing.PUBLISHED if self.add(path, data) else self.landed(path, data)


def table_at(options: Options, root: str, identity: SinkIdentity) -> Table:
    """The table that the options name, not yet connected. `root`: the directory or URL."""
    if options.is_local:
        return LocalTable(root, identity, PRIVATE)
    return S3Table(root, options.storage, identity, options.target_file_size.bytes)
