"""The few file operations on Spark's checkpoint location: read, list, create if absent.

`checkpoint_files.py` calls them. Local paths go through the operating system; all others (s3a, hdfs, abfs, …) through
Spark's own `CheckpointFileManager` in the JVM, so what Spark can reach with its settings, we can. It replaces
nothing but our own marker, and removes nothing.

Spark's own files: on HDFS and on S3A with conditional writes its create-if-absent is atomic. On a local file system it
is an existence check and then a rename, so of two processes at one instant both may believe that they wrote
`offsets/N`; no decision rests on it, for the ledger's compare-and-swap and the epoch in it name the one driver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sinkruntime.errors import ConfigurationError

_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


class CheckpointStorage(Protocol):
    """Files below one location; names are relative, with `/`."""

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory; none where there is no directory."""

    def create(self, name: str, text: str) -> bool:
        """Write a file that does not exist yet, whole or not at all; False: it exists, and was left alone."""

    def replace(self, name: str, text: str) -> None:
        """Write a file, whole or not at all, whether it exists or not."""


def local_path(location: str) -> Path | None:
    """The path of a location on this machine; None for one that is elsewhere."""
    parts = urlsplit(location)
    if not parts.scheme:
        return Path(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def open_storage(session: SparkSession, location: str) -> CheckpointStorage:
    """The storage of a checkpoint location; nothing is read or made yet."""
    path = local_path(location)
    return HadoopStorage(session, location) if path is None else LocalStorage(path)


class LocalStorage:
    """A directory on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        """See `CheckpointStorage`."""
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(str(self._root), error) from error

    def names(self, directory: str) -> list[str]:
        """See `CheckpointStorage`."""
        try:
            return os.listdir(self._root / directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreachable(str(self._root), error) from error

    def create(self, name: str, text: str) -> bool:
        """See `CheckpointStorage`. Durable on return: the text, then its name, are synced."""
        path = self._root / name
        try:
            part = _write_part(path, text)
            try:
                os.link(part, path)  # unlike rename, it never replaces
            except FileExistsError:
                return False
            finally:
                part.unlink()
            _sync(path.parent)
        except OSError as error:
            raise _unreachable(str(self._root), error) from error
        return True

    def replace(self, name: str, text: str) -> None:
        """See `CheckpointStorage`. Durable on return."""
        path = self._root / name
        try:
            _write_part(path, text).replace(path)
            _sync(path.parent)
        except OSError as error:
            raise _unreachable(str(self._root), error) from error


def _write_part(path: Path, text: str) -> Path:
    """The text, synced, in a file beside `path`."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return part


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopStorage:
    """A location of any Hadoop file system, by Spark's own file manager."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self._location = location.rstrip("/")
        self._jvm: Any = session.sparkContext._jvm
        self._conf = session._jsparkSession.sessionState().newHadoopConf()
        self._opened: JavaObject | None = None

    def read(self, name: str) -> str | None:
        """See `CheckpointStorage`."""
        path = self._path(name)
        try:
            if not self._manager.exists(path):
                return None
            stream = self._manager.open(path)
            try:
                data: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _unreachable(self._location, _cause(error)) from error
        return bytes(data).decode()

    def names(self, directory: str) -> list[str]:
        """See `CheckpointStorage`."""
        path = self._path(directory)
        try:
            if not self._manager.exists(path):
                return []
            return [status.getPath().getName() for status in self._manager.list(path)]
        except Py4JJavaError as error:
            raise _unreachable(self._location, _cause(error)) from error

    def create(self, name: str, text: str) -> bool:
        """See `CheckpointStorage`."""
        path = self._path(name)
        try:
            if self._manager.exists(path):
                return False
            self._write(path, text, overwrite=False)
        except Py4JJavaError as error:
            if _cause(error).startswith("FileAlreadyExists"):
                return False
            raise _unreachable(self._location, _cause(error)) from error
        return True

    def replace(self, name: str, text: str) -> None:
        """See `CheckpointStorage`."""
        try:
            self._write(self._path(name), text, overwrite=True)
        except Py4JJavaError as error:
            raise _unreachable(self._location, _cause(error)) from error

    def _write(self, path: JavaObject, text: str, *, overwrite: bool) -> None:
        self._manager.mkdirs(path.getParent())
        stream = self._manager.createAtomic(path, overwrite)
        stream.write(bytearray(text.encode()))
        stream.close()

    @property
    def _manager(self) -> JavaObject:
        """Opened at first use, so that a location that cannot be reached is an error of its own."""
        if self._opened is None:
            companion = getattr(self._jvm, _MANAGER + "$")
            try:
                self._opened = getattr(companion, "MODULE$").create(self._path(""), self._conf)
            except Py4JJavaError as error:
                raise _unreachable(self._location, _cause(error)) from error
        return self._opened

    def _path(self, name: str) -> JavaObject:
        whole = f"{self._location}/{name}" if name else self._location
        return self._jvm.org.apache.hadoop.fs.Path(whole)


def _cause(error: Py4JJavaError) -> str:
    """`FileNotFoundException: …`: the Java error without its package and trace."""
    text = str(error.java_exception.toString()).splitlines()[0]
    name, _, message = text.partition(": ")
    return f"{name.rpartition('.')[2]}: {message}"


def _unreachable(location: str, error: object) -> ConfigurationError:
    message = f"{location} cannot be used: {error}"
    return ConfigurationError("CheckpointUnreachable", message, path="spec.checkpoint.location")
