"""A ledger store in a folder: for `sinkjob run` and wherever there is no cluster.

`ledger.json` holds a version line and the ledger; it is replaced as a whole (temporary file, fsync, rename, fsync of
the folder) under an exclusive lock, so a killed process leaves the old or the new one, and never a torn one. A ledger
that another process put there is made durable before it is returned: that process may have died before its last
fsync, and what is read here is acted upon. Payload objects are files in `objects/`. It never repairs a file that it
cannot read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sinkruntime.errors import (
    AnswerLost,
    LedgerConflict,
    LedgerCorrupt,
    LedgerError,
    LedgerFormatTooNew,
    LedgerUnavailable,
)
from sinkruntime.ledger.durable import make_folder, sync_folder, write_file
from sinkruntime.ledger.store import ObjectName, Stored
from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger

#: How often a waiter looks for a change by another process; changes by this one wake it at once.
LOOK_SECONDS = 0.5

#: A lock is held for one write; who waits longer has met a stopped process or a broken disk.
LOCK_SECONDS = 10.0
LOCK_LOOK_SECONDS = 0.005


class FileLedgerStore:
    """See `LedgerStore`. Several processes may use one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "ledger.json"
        self._objects = folder / "objects"
        self._changed = asyncio.Event()
        self._durable = ""  # the version whose place in the folder is known to be on disk

    async def load(self) -> Stored | None:
        """See `LedgerStore`."""
        stored = self._read()
        if stored is not None and stored.version != self._durable:
            try:
                sync_folder(self.folder)
            except OSError as error:
                raise self._foreign(error) from error
            self._durable = stored.version
        return stored

    async def create(self, ledger: Ledger) -> Stored:
        """See `LedgerStore`."""
        async with self._locked():
            if self._read() is not None:
                raise LedgerConflict(f"{self._path} is there already")
            return self._write(ledger, 1)

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        """See `LedgerStore`."""
        async with self._locked():
            present = self._read_version()
            if version != present:
                raise LedgerConflict(f"{self._path} is at version {present}, not {version}")
            return self._write(ledger, int(present) + 1)

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        """See `LedgerStore`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while self._is_at(version) and (left := deadline - loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(left, LOOK_SECONDS))
            except TimeoutError:
                continue

    def _is_at(self, version: str) -> bool:
        try:
            return self._read_version() == version
        except LedgerError:
            return False

    def _read(self) -> Stored | None:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._foreign(error) from error
        version, newline, body = text.partition("\n")
        if not newline or not _is_version(version):
            raise LedgerCorrupt(f"{self._path} does not begin with a version line", _RESTORE)
        try:
            return Stored(codec.decode(body), version)
        except codec.NewerFormat as error:
            raise LedgerFormatTooNew(f"{self._path}: {error}", "run it with the newer release of sinkjob") from error
        except codec.BadLedger as error:
            raise LedgerCorrupt(f"{self._path}: {error}", _RESTORE) from error

    def _read_version(self) -> str:
        try:
            with self._path.open(encoding="ascii") as file:
                version = file.readline().strip()
        except FileNotFoundError:
            raise LedgerCorrupt(f"{self._path} is gone", _RESTORE) from None
        except (OSError, UnicodeDecodeError) as error:
            raise self._foreign(error) from error
        if not _is_version(version):
            raise LedgerCorrupt(f"{self._path} does not begin with a version line", _RESTORE)
        return version

    def _write(self, ledger: Ledger, version: int) -> Stored:
        """Replace the file; before the rename a failure changes nothing, after it the outcome is not known."""
        temporary = self._path.with_suffix(".tmp")
        try:
            write_file(temporary, f"{version}\n{codec.encode(ledger)}".encode())
        except OSError as error:
            raise LedgerUnavailable(f"{temporary} cannot be written: {error.strerror}") from error
        try:
            temporary.replace(self._path)
            sync_folder(self.folder)
        except OSError as error:
            raise AnswerLost(f"{self._path} may or may not be replaced: {error.strerror}") from error
        self._durable = str(version)
        self._changed.set()
        return Stored(ledger, str(version))

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the folder's lock, which the kernel releases with the process."""
        try:
            make_folder(self.folder)
            descriptor = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise LedgerUnavailable(f"{self.folder} cannot be locked: {error.strerror}") from error
        try:
            await self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    async def _lock(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if loop.time() >= deadline:
                    message = f"{self.folder} has been locked by another process for {LOCK_SECONDS:.0f} s"
                    raise LedgerUnavailable(message) from error
            except OSError as error:
                raise LedgerUnavailable(f"{self.folder} cannot be locked: {error.strerror}") from error
            await asyncio.sleep(LOCK_LOOK_SECONDS)

    def _foreign(self, error: OSError | UnicodeDecodeError) -> LedgerCorrupt | LedgerUnavailable:
        if isinstance(error, OSError):
            return LedgerUnavailable(f"{self._path} cannot be read: {error.strerror}")
        return LedgerCorrupt(f"{self._path} is not UTF-8", _RESTORE)

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        """See `LedgerStore`."""
        path = self._objects / name
        try:
            make_folder(self._objects)
            # A name of its own: two writers never share a file. The epoch comes first: a left one is an orphan.
            descriptor, temporary = tempfile.mkstemp(".tmp", f"{name}.", self._objects)
            os.close(descriptor)
            write_file(Path(temporary), data)
            Path(temporary).replace(path)
            sync_folder(self._objects)
        except OSError as error:
            raise LedgerUnavailable(f"payload {path} cannot be written: {error.strerror}") from error

    async def get_object(self, name: ObjectName) -> bytes:
        """See `LedgerStore`."""
        try:
            return (self._objects / name).read_bytes()
        except FileNotFoundError:
            raise LedgerCorrupt(f"payload object {self._objects / name} is missing", _RESTORE) from None
        except OSError as error:
            raise LedgerUnavailable(f"payload {name} cannot be read: {error.strerror}") from error

    async def remove_object(self, name: ObjectName) -> None:
        """See `LedgerStore`."""
        try:
            (self._objects / name).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerUnavailable(f"payload {name} cannot be removed: {error.strerror}") from error

    async def list_objects(self) -> list[ObjectName]:
        """See `LedgerStore`; temporary files that a killed process left are listed too, so that they are removed."""
        try:
            return sorted(os.listdir(self._objects))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerUnavailable(f"{self._objects} cannot be listed: {error.strerror}") from error


_RESTORE = "restore it from a backup; or move it away and accept LedgerLost"


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdigit()
