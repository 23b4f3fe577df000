"""The folder of a job's large payloads, by kind of storage: write whole, read bounded, remove.

Made by `spill`, called in threads. Errors are `OSError`s, and those of `sinkruntime.storage.s3_client`; a file that is
missing is `FileNotFoundError`. It checks no content.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sinkruntime.errors import LedgerCorrupt
from sinkruntime.ledger.payloads import UNPACKED_BYTES_MAX
from sinkruntime.storage.s3_client import Missing, client_for, talking

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from sinkruntime.storage.settings import Storage as Settings

#: What a payload may have, and what compression may add where it does not help.
FILE_BYTES_MAX = UNPACKED_BYTES_MAX + 1024 * 1024
RESTORE = "restore it from a backup, or accept CommittableLost"


class PayloadFiles(Protocol):
    """One folder. Writing a name again changes nothing: it stands for its content."""

    def write(self, name: str, data: bytes) -> None: ...
    def read(self, name: str) -> bytes: ...
    def remove(self, name: str) -> None: ...


class LocalFiles:
    """On a disk of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes) -> None:
        """A folder shows a file from its first byte on, so it is written beside its place and then moved there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(".part", name, self._folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(self._folder / name)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """See `PayloadFiles`."""
        file = self._folder / name
        _check_size(name, file.stat().st_size)
        return file.read_bytes()

    def remove(self, name: str) -> None:
        """See `PayloadFiles`."""
        (self._folder / name).unlink()


class BucketFiles:
    """In an S3 bucket, by the client that the sinks have, too."""

    def __init__(self, bucket: str, prefix: str, settings: Settings) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._settings = settings

    def write(self, name: str, data: bytes) -> None:
        """An object is shown, and durable, when the answer comes."""
        client = client_for(self._settings)
        with talking(f"writing {name}"):
            client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=data)

    def read(self, name: str) -> bytes:
        """See `PayloadFiles`."""
        client = client_for(self._settings)
        try:
            with talking(f"reading {name}"):
                answer = client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")
                _check_size(name, answer["ContentLength"])
                return answer["Body"].read()
        except Missing as error:
            raise FileNotFoundError(name) from error

    def remove(self, name: str) -> None:
        """See `PayloadFiles`; a bucket does not tell what was not there."""
        client = client_for(self._settings)
        with talking(f"removing {name}"):
            client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")


class CloudFiles:
    """Where pyarrow has the client: Azure and Google."""

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder

    def write(self, name: str, data: bytes) -> None:
        """Shown, and durable, when it is closed."""
        with self._files.open_output_stream(f"{self._folder}/{name}") as stream:
            stream.write(data)

    def read(self, name: str) -> bytes:
        """See `PayloadFiles`."""
        with self._files.open_input_file(f"{self._folder}/{name}") as file:
            _check_size(name, file.size())
            content: bytes = file.read()
            return content

    def remove(self, name: str) -> None:
        """See `PayloadFiles`."""
        self._files.delete_file(f"{self._folder}/{name}")


def _check_size(name: str, size: int) -> None:
    """Whoever owns the storage can put there what he likes."""
    if size > FILE_BYTES_MAX:
        raise LedgerCorrupt(f"payload {name} has {size} bytes, more than any can have", RESTORE)
