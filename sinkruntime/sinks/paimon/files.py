"""The files of one table: whole small ones, data files as streams, and one that appears only if it is not there yet.

Used by everything here that touches a table; a local directory here, a prefix in a bucket in `s3`. It knows nothing
of what the files hold.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon.options import Options
from sinkruntime.storage.base import OutputStream
from sinkruntime.storage.local import BUFFER_BYTES, make_directories, sync_directory, translated


class DataFile(ABC):
    """One file being written through `stream`; it ends in `finish` or `discard`."""

    stream: OutputStream

    @property
    def size_bytes(self) -> int:
        return self.stream.size_bytes

    @abstractmethod
    def finish(self) -> None:
        """Make it durable, under its final name. No reader looks at a file that no manifest names."""

    @abstractmethod
    def discard(self) -> None:
        """Take it away, finished or not. Repeatable."""


class Files(ABC):
    """Paths are relative to the table's directory. Raises OSError, `AnswerLost` and `TargetError`, as storages do."""

    @abstractmethod
    def open(self) -> None:
        """Connect; raises `TargetError`."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Repeatable."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The content; None: there is no such file."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a file in one step; False: something has this name, and was not touched."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write or replace a file, in one step."""

    @abstractmethod
    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of the files that are not there."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """The names of the files in a directory; none where there is no such directory."""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Remove files, never directories: another writer may be about to use one. Repeatable."""

    @abstractmethod
    def begin(self, path: str) -> DataFile:
        """Begin a data file."""


def files_of(options: Options) -> Files:
    """The files of the options' table, not yet connected."""
    if options.is_local:
        return LocalFiles(Path(options.table_path))
    from sinkruntime.sinks.paimon.s3 import S3Files

    return S3Files(options)


class LocalFiles(Files):
    """A directory of a local file system. A file appears by a hard link, which never replaces one."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        parent = self._root
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise TargetError("NotADirectory", f"{parent} is not a directory", path="options.catalog.warehouse")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TargetError("PermissionDenied", f"{parent} cannot be written to", path="options.catalog.warehouse")

    def close(self) -> None:
        return

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, data: bytes) -> bool:
        final = self._root / path
        if final.exists():
            return False
        temporary = self._temporary(final, data)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(final.parent)
        return True

    def write(self, path: str, data: bytes) -> None:
        final = self._root / path
        temporary = self._temporary(final, data)
        with translated(final):
            os.replace(temporary, final)
            sync_directory(final.parent)

    def missing(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if not (self._root / path).is_file()]

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / directory) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(NotADirectoryError):
                (self._root / path).unlink(missing_ok=True)

    def begin(self, path: str) -> DataFile:
        return LocalDataFile(self._root / path)

    def _temporary(self, final: Path, data: bytes) -> Path:
        """The content, durable, under a hidden name beside the final one."""
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
        with translated(final):
            make_directories(final.parent)
            with open(temporary, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        return temporary


class LocalDataFile(DataFile):
    """A file under its final name from the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with translated(path):
            make_directories(path.parent)
            self._file = open(path, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115  (closed by `finish` or `discard`)
        self.stream = OutputStream(self._take)

    def _take(self, view: memoryview) -> None:
        with translated(self._path):
            self._file.write(view)

    def finish(self) -> None:
        with translated(self._path), self._file as file:
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._path.parent)

    def discard(self) -> None:
        self.stream.abandon()
        with suppress(OSError):  # a full disk fails the last flush again; the file goes in any case
            self._file.close()
        self._path.unlink(missing_ok=True)
