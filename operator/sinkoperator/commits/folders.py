"""The folder in which a zygote's workers live: their tokens, what a library writes to its home.

The zygote makes it when it starts. It is locked as long as that process lives, however it ends, so the next one removes
what others that were killed have left, tokens of jobs among it. It never touches the folder of one that lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "sinkjob-workers-"
#: Somebody who tidies up may take a folder that was made just now for one that is left.
TRIES_MAX = 10


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder that only this user may enter; it goes at the end, and what others have left goes at once."""
    parent = Path(tempfile.gettempdir())
    _remove_left(parent)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(parent: Path) -> tuple[Path, int]:
    for _ in range(TRIES_MAX):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)
    raise OSError(f"no folder of this process stays in {parent}")


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """The lock on it, as an open file; None where another process has it, or it is gone, or another user's."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened
    os.close(opened)
    return None
