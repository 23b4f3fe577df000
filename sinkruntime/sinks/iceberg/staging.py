"""Files in the table's own locations: listed and removed by folder.

A file is visible only when a snapshot refers to it, so it is written where it stays. One flat folder per checkpoint and
epoch, so that a look at what is there, or gone, costs one listing. Used by the committer and by maintenance; it removes
only what it is told, and knows nothing of snapshots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pyarrow.fs

LISTED = pyarrow.fs.FileType


class Folders:
    """Folders below one location, by pyarrow's filesystem of the table's own settings."""

    def __init__(self, io: Any, root: str) -> None:
        scheme, place, self._path = io.parse_location(root, io.properties)
        self._files: pyarrow.fs.FileSystem = io.fs_by_scheme(scheme, place)

    def children(self) -> list[str]:
        """Names of the folders directly below."""
        return sorted(item.base_name for item in self._list(self._path) if item.type == LISTED.Directory)

    def files(self, folder: str) -> set[str]:
        """Names of the files in a folder; empty where there is none."""
        return {item.base_name for item in self._list(f"{self._path}/{folder}") if item.type == LISTED.File}

    def look(self, path: str) -> tuple[list[tuple[str, float]], list[str]]:
        """(files with the time of their last change in seconds since 1970, folders) directly in a folder of these."""
        found = self._list(f"{self._path}/{path}".rstrip("/"))
        inside = [(f"{path}/{item.base_name}".lstrip("/"), item) for item in found]
        files = [(name, item.mtime_ns / 1e9) for name, item in inside if item.type == LISTED.File and item.mtime_ns]
        return files, [name for name, item in inside if item.type == LISTED.Directory]

    def delete(self, path: str) -> None:
        """Remove a file that `look` told of, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(f"{self._path}/{path}")

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files, and their folder if it is empty then. Repeatable."""
        for name in names:
            self.delete(f"{folder}/{name}")
        if isinstance(self._files, pyarrow.fs.LocalFileSystem | pyarrow.fs.SubTreeFileSystem):
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Object stores have no folders. On a disk, a writer that comes late makes it again."""
        import os

        try:
            os.rmdir(f"{self._path}/{folder}")
        except OSError:
            return

    def _list(self, path: str) -> list[Any]:
        found: list[Any] = self._files.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
        return found
