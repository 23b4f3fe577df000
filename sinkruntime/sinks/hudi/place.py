"""Where a Hudi table lies: the storages of files, and how the one file is written there that makes a commit count.

Used by the writers, the committer and the sink. Locally that file is staged, empty, by the writers, filled and linked
by the committer: a fence takes the staged name away, so that a late commit has nothing to link. On S3 it is put with
`If-None-Match: *`, and a put that is under way cannot be turned down.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.timeline import PRIVATE
from sinkruntime.storage.base import Item, Standing, Storage
from sinkruntime.storage.local import LOOKS_MAX, LocalStorage, fence_of, sync_directory, write_all
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
        """Where a file stands that somebody has created: with these bytes, or others."""
        found = self.read(path)
        if found is None:
            return Standing.GONE
        return Standing.LANDED if found.data == data else Standing.TAKEN


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
            try:
                _fill(found, data)
                os.link(found, final)
            except (FileNotFoundError, FileExistsError):  # it was fenced, or committed, just now
                continue
            sync_directory(final.parent)
            return Standing.PUBLISHED
        raise OSError(f"{path} changed under every look at it")


def _fill(staged: Path, data: bytes) -> None:
    """Never creates the file, and never shortens it: two committers of one checkpoint write the same bytes."""
    handle = os.open(staged, os.O_WRONLY)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)


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
