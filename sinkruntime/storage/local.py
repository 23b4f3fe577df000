"""Local directories: files are staged below `_sinkjob/staging` (or another hidden place), and committed by a hard link.

`os.link` never replaces anything and is one step, so a reader sees a whole file or none, and a second commit of the
same file finds it there. A staged file that is fenced gets another name: a late commit's link then finds nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.storage.base import Document, Item, Output, OutputStream, StagedEntry, Standing, Storage
from sinkruntime.storage.names import PRIVATE, local_path

LOCK_WAIT_SECONDS = 30.0
LOCK_POLL_SECONDS = 0.01
BUFFER_BYTES = 1024**2
#: A file may be fenced or committed by another process between two looks at it.
LOOKS_MAX = 5
#: How many directories `sample` looks into for a file.
SAMPLE_DIRECTORIES_MAX = 1_000
_FENCED = ".fenced-"


class LocalStorage(Storage):
    """A directory of a local file system, `root`."""

    def __init__(self, root: str, identity: SinkIdentity, private: str = PRIVATE) -> None:
        self.root = Path(root)
        self._private = private  # the sink's own directory, which readers of the target do not look into
        self.staging = self.root / private / "staging" / identity.ledger_id / identity.sink

    def open(self) -> None:
        parent = self.root
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise TargetError("NotADirectory", f"{parent} is not a directory", path="options.path")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TargetError("PermissionDenied", f"{parent} cannot be written to", path="options.path")

    def close(self) -> None:
        return

    # --- the writer's side

    def create(self, directory: str, name: str) -> Output:
        with translated(self.staging):
            make_directories(self.staging)
            path = local_path(str(self.root), f"{directory}/{name}" if directory else name)
            return LocalOutput(self.staging / name, path)

    def prepared(self) -> None:
        with translated(self.staging):
            sync_directory(self.staging)

    # --- the committers' side

    def standing(self, item: Item, order: tuple[int, int]) -> Standing:
        found = self._find(item)
        final = self.root / item["path"]
        if final.exists():
            return Standing.LANDED if same_content(final, item) else Standing.TAKEN
        if found is None:
            return Standing.GONE
        return Standing.FENCED if fence_of(found) >= order else Standing.STAGED

    def publish(self, item: Item, order: tuple[int, int]) -> Standing:
        final = self.root / item["path"]
        for _ in range(LOOKS_MAX):
            found = self._find(item)
            if found is None or fence_of(found) >= order:
                return self.standing(item, order)
            try:
                os.link(found, final)
            except FileExistsError:
                return self.standing(item, order)
            except FileNotFoundError:  # no such directory yet, or the staged file was fenced or committed just now
                with translated(final):
                    make_directories(final.parent)
            except OSError as error:
                raise translation(error, final) from error
            else:
                return Standing.PUBLISHED
        raise OSError(errno.EBUSY, "changed under every look at it", str(final))

    def settle(self, items: Sequence[Item]) -> None:
        for directory in {(self.root / item["path"]).parent for item in items}:
            sync_directory(directory)
        for item in items:
            self.discard(item)

    def fence(self, item: Item, order: tuple[int, int], may_have_landed: bool) -> bool:
        for _ in range(LOOKS_MAX):
            found = self._find(item)
            if found is None or fence_of(found) >= order:
                break
            with suppress(FileNotFoundError):
                os.rename(found, self._staged(item, f"{_FENCED}{order[0]}-{order[1]}"))
                break
        return True

    def discard(self, item: Item) -> None:
        for _ in range(LOOKS_MAX):
            found = self._find(item)
            if found is None:
                return
            found.unlink(missing_ok=True)
            remove_empty(found.parent, self.staging)

    def staged(self) -> Iterator[StagedEntry]:
        with suppress(FileNotFoundError):
            for entry in sorted(os.listdir(self.staging)):
                yield StagedEntry(entry, self.staging / entry)

    def remove(self, entries: Sequence[StagedEntry]) -> None:
        for entry in entries:
            remove_tree(entry.handle)

    def _staged(self, item: Item, suffix: str = "") -> Path:
        name = item.get("staged") or item["path"].rpartition("/")[2]
        return self.staging / f"{name}{suffix}"

    def _find(self, item: Item) -> Path | None:
        """Where it is staged: under its own name, or that of the latest fence."""
        staged = self._staged(item)
        if staged.exists():
            return staged
        prefix = staged.name + _FENCED
        with suppress(FileNotFoundError, NotADirectoryError):
            fenced = [staged.parent / name for name in os.listdir(staged.parent) if name.startswith(prefix)]
            return max(fenced, key=fence_of, default=None)
        return None

    # --- small documents

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        path = self.root / self._private / "lock"
        with translated(path):
            make_directories(path.parent)
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            take_lock(handle, path)
            yield
        finally:
            os.close(handle)

    def read(self, path: str) -> Document | None:
        try:
            return Document((self.root / path).read_bytes(), "")
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes, expected: Document | None) -> bool:
        """Call it under `exclusive`."""
        final = self.root / path
        if self.read(path) != expected:
            return False
        with translated(final):
            make_directories(final.parent)
            temporary = final.with_name(f".{final.name}.tmp")  # always the same: what a kill leaves is written over
            with open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, final)
            sync_directory(final.parent)
        return True

    def add(self, path: str, data: bytes) -> bool:
        final = self.root / path
        with translated(final):
            make_directories(final.parent)
            try:
                with unnamed(final) as (handle, source):
                    write_all(handle, data)
                    # Without a directory's handle Python calls link(2), which links the symbolic link itself.
                    os.link(source, final, src_dir_fd=handle, follow_symlinks=True)
            except FileExistsError:
                return False
            sync_directory(final.parent)
        return True

    def names(self, directory: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self.root / directory))
        except FileNotFoundError:
            return ()

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def reader(self, path: str) -> IO[bytes]:
        return open(self.root / path, "rb")

    def sample(self, extension: str) -> IO[bytes] | None:
        for _, (where, directories, names) in zip(range(SAMPLE_DIRECTORIES_MAX), os.walk(self.root), strict=False):
            directories[:] = sorted(name for name in directories if name[0] not in "_.")
            for name in sorted(names):
                if name.endswith(extension) and name[0] not in "_.":
                    return open(Path(where, name), "rb")
        return None

    def modified_ms(self, path: str) -> int:
        return (self.root / path).stat().st_mtime_ns // 1_000_000

    def uri(self, path: str) -> str:
        return (self.root / path).as_uri()


class LocalOutput(Output):
    """A staged file, and the CRC-32 of what went into it."""

    def __init__(self, staged: Path, path: str) -> None:
        self._staged = staged
        self._path = path
        self._file = open(staged, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115  (closed by `finish` or `discard`)
        self._crc32 = 0
        self.stream = OutputStream(self._take)

    def _take(self, view: memoryview) -> None:
        with translated(self._staged):
            self._file.write(view)
        self._crc32 = zlib.crc32(view, self._crc32)

    def finish(self) -> Item:
        with translated(self._staged), self._file as file:
            file.flush()
            os.fsync(file.fileno())
        return {"path": self._path, "size": self.size_bytes, "crc32": self._crc32}

    def discard(self) -> None:
        self.stream.abandon()
        with suppress(OSError):  # a full disk fails the last flush again; the file goes in any case
            self._file.close()
        self._staged.unlink(missing_ok=True)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """A full disk and the like become `TargetError`s that name the place."""
    try:
        yield
    except OSError as error:
        raise translation(error, path) from error


def translation(error: OSError, path: Path) -> Exception:
    """The `TargetError` of an error that will not pass by itself; else the error."""
    reason = _REASONS.get(error.errno or 0)
    if reason is None:
        return error
    return TargetError(reason, f"{path}: {os.strerror(error.errno or 0)}", path="options.path")


_REASONS = {
    errno.ENOSPC: "DiskFull",
    errno.EDQUOT: "DiskFull",
    errno.EFBIG: "DiskFull",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
    errno.EXDEV: "NotOneFileSystem",
    errno.ENOTDIR: "NotADirectory",
}


_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


def fence_of(staged: Path) -> tuple[int, int]:
    """The order of the fence in a staged file's name; below all orders where there is none."""
    _, mark, order = staged.name.rpartition(_FENCED)
    if not mark:
        return (-1, -1)
    token, _, number = order.partition("-")
    return int(token), int(number)


def same_content(final: Path, item: Item) -> bool:
    """Whether a visible file is the one that was staged: size, and checksum or time of its last change."""
    try:
        status = final.stat()
        if status.st_size != item["size"]:
            return False
        if "crc32" in item:
            return checksum(final) == int(item["crc32"])
        return status.st_mtime_ns == int(item["mtime_ns"])
    except FileNotFoundError:
        return False


@contextmanager
def unnamed(final: Path) -> Iterator[tuple[int, str]]:
    """A new file beside `final` that has no name, so that a kill leaves nothing: its handle, and a path to link it
    from. Where a file system has no such files it has a hidden name."""
    try:
        handle = os.open(final.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
        source = f"/proc/self/fd/{handle}"
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
        source = str(final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp"))
        handle = os.open(source, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        yield handle, source
    finally:
        os.close(handle)
        if not source.startswith("/proc/"):
            os.unlink(source)


def write_all(handle: int, data: bytes) -> None:
    """Write `data` at the beginning of an open file, and make it survive a power cut."""
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], done)
    os.fsync(handle)


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    crc32 = 0
    with open(path, "rb") as stream:
        while chunk := stream.read(BUFFER_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def make_directories(directory: Path) -> None:
    """Make what is missing of a path, each new entry surviving a power cut."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make a directory's entries survive a power cut."""
    with suppress(FileNotFoundError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def take_lock(handle: int, path: Path) -> None:
    """Lock an open file, waiting for it at most `LOCK_WAIT_SECONDS`; raises TimeoutError."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was locked for {LOCK_WAIT_SECONDS:.0f} s") from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def remove_empty(directory: Path, top: Path) -> None:
    """Remove a directory and its parents up to `top` (excluded), as far as they are empty."""
    while directory != top and top in directory.parents:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent


def remove_tree(path: Path) -> None:
    """Remove a file, or a directory with what is in it. No error where parts are gone already."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for where, directories, names in os.walk(path, topdown=False):
        _each(Path(where), names, os.unlink)
        _each(Path(where), directories, os.rmdir)
    with suppress(FileNotFoundError):
        path.rmdir()


def _each(where: Path, names: Iterable[str], remove: Any) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            remove(where / name)
