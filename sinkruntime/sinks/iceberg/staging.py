"""The files of this sink in the table's own data location: staged there, listed and removed by folder.

A file is visible only when a snapshot refers to it, so it is written where it stays. One flat folder per checkpoint and
epoch, so that a look at what is there, or gone, costs one listing. Used by the committer; it removes only what it is
told, and knows nothing of snapshots.
"""

from __future__ import annotations

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

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files, and their folder if it is empty then. Repeatable."""
        for name in names:
            try:
                self._files.delete_file(f"{self._path}/{folder}/{name}")
            except FileNotFoundError:
                continue
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
