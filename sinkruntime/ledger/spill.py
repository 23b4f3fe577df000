"""Payload objects in the checkpoint storage: those that are too large for ConfigMaps.

Used by the ConfigMap store. Files lie below `<location>/_sinkjob/payloads/`, are written whole and are named for their
content, so writing one again changes nothing. Credentials come from the Hadoop settings of the job alone; those of the
process (its environment, its machine's identity) are used only where the process is the job's own. It checks no
content: the store does.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from sinkruntime.ledger.payloads import UNPACKED_BYTES_MAX

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FOLDER = "_sinkjob/payloads"

#: What a payload may have, and what compression may add where it does not help.
FILE_BYTES_MAX = UNPACKED_BYTES_MAX + 1024 * 1024
#: Of one file, which has some megabytes at most.
FILE_SECONDS = 120.0
CONNECT_SECONDS = 10.0

_RESTORE = "restore it from a backup, or accept CommittableLost"
_PATH = "spec.checkpoint.location"
_OPTIONS = "spec.checkpoint.optionsFrom"
_S3 = "fs.s3a."
_Result = TypeVar("_Result")


class Spill:
    """The storage of one job. `own` says that this process is the job's own (its driver, its committer pod): then a
    path on this machine and the process's own credentials may be used."""

    def __init__(self, location: str, options: Mapping[str, str], *, own: bool) -> None:
        self._location = location.rstrip("/")
        self._options = {key.removeprefix("spark.hadoop."): value for key, value in options.items()}
        self._own = own
        self._opened: tuple[FileSystem, str] | None = None

    @property
    def _is_local(self) -> bool:
        return urlsplit(self._location).scheme in ("", "file")

    @property
    def host(self) -> str:
        """The host that would be called, for a list of allowed ones; "" for none or the scheme's usual ones."""
        parts = urlsplit(self._location)
        if parts.scheme in ("s3", "s3a"):
            endpoint = self._s3(parts.netloc, "endpoint")
            return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or ""
        return parts.netloc.rpartition("@")[2] if parts.scheme in ("abfs", "abfss") else ""

    def check(self) -> None:
        """Raises `ConfigurationError` where the location cannot be reached from here; connects to nothing."""
        self._storage()

    async def write(self, name: str, data: bytes) -> None:
        """Whole or not at all. Raises `LedgerUnavailable` and `ConfigurationError`."""
        storage, folder = self._storage()

        def write() -> None:
            if self._is_local:
                _write_durably(Path(folder), name, data)
                return
            with storage.open_output_stream(f"{folder}/{name}") as stream:  # shown, and durable, when it is closed
                stream.write(data)

        await self._run(write, f"payload {name} cannot be written to {self._location}")

    async def read(self, name: str) -> bytes:
        """Raises `LedgerCorrupt` where it is missing, or larger than any can be: whoever owns the storage can put there
        what he likes."""
        storage, folder = self._storage()

        def read() -> bytes:
            with storage.open_input_file(f"{folder}/{name}") as file:
                if (size := file.size()) > FILE_BYTES_MAX:
                    raise LedgerCorrupt(f"payload {name} has {size} bytes, more than any can have", _RESTORE)
                try:
                    content: bytes = file.read()
                except OSError as error:
                    if "checksum" not in str(error).lower():
                        raise
                    raise LedgerCorrupt(f"payload {name} does not have its digest: {error}", _RESTORE) from error
                return content

        try:
            return await self._run(read, f"payload {name} cannot be read from {self._location}")
        except FileNotFoundError as error:
            message = f"payload {name} is missing in {self._location}/{FOLDER}"
            raise LedgerCorrupt(message, _RESTORE) from error

    async def remove(self, name: str) -> None:
        """Missing is no error."""
        storage, folder = self._storage()
        try:
            await self._run(
                lambda: storage.delete_file(f"{folder}/{name}"),
                f"payload {name} cannot be removed from {self._location}",
            )
        except FileNotFoundError:
            return

    async def _run(self, work: Callable[[], _Result], what: str) -> _Result:
        """In a thread: these clients block. One that hangs ends by its own time limits."""
        try:
            async with asyncio.timeout(FILE_SECONDS):
                return await asyncio.to_thread(work)
        except FileNotFoundError:
            raise
        except OSError as error:  # a time limit too
            raise LedgerUnavailable(f"{what}: {str(error) or 'no answer in time'}") from error

    def _storage(self) -> tuple[FileSystem, str]:
        """Opened at first use: most jobs never have a payload of this size."""
        if self._opened is None:
            parts = urlsplit(self._location)
            known = {"": self._open_local, "file": self._open_local, "s3": self._open_s3, "s3a": self._open_s3}
            known |= {"abfs": self._open_azure, "abfss": self._open_azure, "gs": self._open_google}
            if parts.scheme not in known:
                message = f"a payload beyond 4 MiB cannot be kept at `{parts.scheme}:`"
                advice = f"use one of {', '.join(sorted(filter(None, known)))}; or fewer writers, for smaller payloads"
                raise ConfigurationError("PayloadStorageUnknown", message, path=_PATH, advice=advice)
            root = unquote(parts.path) if self._is_local else parts.path
            self._opened = known[parts.scheme](parts.netloc, root.rstrip("/") + "/" + FOLDER)
        return self._opened

    def _open_local(self, host: str, path: str) -> tuple[FileSystem, str]:
        from pyarrow.fs import LocalFileSystem

        if not self._own:
            advice = "use a storage that both reach, such as s3a://; or commit.runOn: Driver"
            message = "the operator cannot reach a path of the driver's machine"
            raise ConfigurationError("PayloadStorageUnknown", message, path=_PATH, advice=advice)
        return LocalFileSystem(), path

    def _s3(self, bucket: str, key: str) -> str:
        """A setting of S3A; the bucket's own comes first, as in Hadoop."""
        return self._options.get(f"{_S3}bucket.{bucket}.{key}", self._options.get(_S3 + key, ""))

    def _open_s3(self, bucket: str, path: str) -> tuple[FileSystem, str]:
        from pyarrow.fs import S3FileSystem

        access, secret = self._s3(bucket, "access.key"), self._s3(bucket, "secret.key")
        if not (access and secret):
            self._need_own("fs.s3a.access.key and fs.s3a.secret.key")
        endpoint = self._s3(bucket, "endpoint")
        secure = endpoint.partition("://")[0] if "://" in endpoint else ""
        if not secure:
            secure = "http" if self._s3(bucket, "connection.ssl.enabled").lower() == "false" else "https"
        storage = S3FileSystem(
            access_key=access or None,
            secret_key=secret or None,
            session_token=self._s3(bucket, "session.token") or None,
            endpoint_override=endpoint.rpartition("://")[2].rstrip("/") or None,
            region=self._s3(bucket, "endpoint.region") or ("us-east-1" if endpoint else None),
            scheme="http" if secure == "http" else "https",
            force_virtual_addressing=bool(endpoint) and self._s3(bucket, "path.style.access").lower() == "false",
            connect_timeout=CONNECT_SECONDS,
            request_timeout=FILE_SECONDS,
        )
        return storage, bucket + path

    def _open_azure(self, host: str, path: str) -> tuple[FileSystem, str]:
        from pyarrow.fs import AzureFileSystem

        container, _, account_host = host.rpartition("@")
        key = self._options.get(f"fs.azure.account.key.{account_host}", self._options.get("fs.azure.account.key", ""))
        if not key:
            self._need_own(f"fs.azure.account.key.{account_host}")
        account = account_host.partition(".")[0]
        return AzureFileSystem(account, account_key=key or None), container + path

    def _open_google(self, host: str, path: str) -> tuple[FileSystem, str]:
        from pyarrow.fs import GcsFileSystem

        # Its client takes a key file from the process's environment only.
        self._need_own("")
        return GcsFileSystem(), host + path

    def _need_own(self, keys: str) -> None:
        """The operator's own credentials are never used for a job."""
        if self._own:
            return
        what = f"{keys} are not set" if keys else "there is no way to give it the job's credentials"
        scheme = urlsplit(self._location).scheme
        message = f"a payload beyond 4 MiB lies in {scheme}:, which the operator cannot reach: {what}"
        advice = "set them there, or use commit.runOn: Driver"
        raise ConfigurationError("PayloadStorageCredentials", message, path=_OPTIONS, advice=advice)


def _write_durably(folder: Path, name: str, data: bytes) -> None:
    """A folder shows a file from its first byte on, so it is written beside its place and then moved there."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(".part", name, folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    Path(part).replace(folder / name)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
