"""Files that outlive a power cut. The file ledger uses it, and who keeps what the ledger names."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """With its parents, and durable: a ledger in a folder that a power cut takes away is lost."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """The content is durable; the file's place in its folder is with the next `sync_folder`."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """The file is as it was or as it is to be, whenever one looks; afterwards it is durable, with its folders."""
    make_folder(path.parent)
    temporary = path.with_suffix(".tmp")
    write_file(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
