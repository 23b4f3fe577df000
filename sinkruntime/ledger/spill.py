"""Payload objects in the checkpoint storage: those that are too large for ConfigMaps.

Used by the ConfigMap store. Files lie below `<location>/_sinkjob/payloads/`, are written whole and are named for their
content, so writing one again changes nothing. Credentials come from the Hadoop settings of the job alone; those of the
process (its environment, its machine's identity) are used only where the process is the job's own. It checks no
content: the store does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerUnavailable, TargetError
from sinkruntime.ledger.spill_files import RESTORE, BucketFiles, CloudFiles, LocalFiles, PayloadFiles
from sinkruntime.storage.base import AnswerLost
from sinkruntime.storage.settings import Storage as Settings

FOLDER = "_sinkjob/payloads"

#: Of one file, which has some megabytes at most.
FILE_SECONDS = 120.0

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
        self._opened: PayloadFiles | None = None

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
        self._files()

    async def write(self, name: str, data: bytes) -> None:
        """Whole or not at all. Raises `LedgerUnavailable` and `ConfigurationError`."""
        files = self._files()
        await self._run(lambda: files.write(name, data), f"payload {name} cannot be written to {self._location}")

    async def read(self, name: str) -> bytes:
        """Raises `LedgerCorrupt` where it is missing, or larger than any can be."""
        files = self._files()
        try:
            return await self._run(lambda: files.read(name), f"payload {name} cannot be read from {self._location}")
        except FileNotFoundError as error:
            message = f"payload {name} is missing in {self._location}/{FOLDER}"
            raise LedgerCorrupt(message, RESTORE) from error

    async def remove(self, name: str) -> None:
        """Missing is no error."""
        files = self._files()
        try:
            await self._run(lambda: files.remove(name), f"payload {name} cannot be removed from {self._location}")
        except FileNotFoundError:
            return

    async def _run(self, work: Callable[[], _Result], what: str) -> _Result:
        """In a thread: these clients block. One that hangs ends by its own time limits."""
        try:
            async with asyncio.timeout(FILE_SECONDS):
                return await asyncio.to_thread(work)
        except FileNotFoundError:
            raise
        except (OSError, TargetError, AnswerLost) as error:  # a time limit too
            raise LedgerUnavailable(f"{what}: {str(error) or 'no answer in time'}") from error

    def _files(self) -> PayloadFiles:
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

    def _open_local(self, host: str, path: str) -> PayloadFiles:
        if not self._own:
            advice = "use a storage that both reach, such as s3a://; or commit.runOn: Driver"
            message = "the operator cannot reach a path of the driver's machine"
            raise ConfigurationError("PayloadStorageUnknown", message, path=_PATH, advice=advice)
        return LocalFiles(Path(path))

    def _s3(self, bucket: str, key: str) -> str:
        """A setting of S3A; the bucket's own comes first, as in Hadoop."""
        return self._options.get(f"{_S3}bucket.{bucket}.{key}", self._options.get(_S3 + key, ""))

    def _open_s3(self, bucket: str, path: str) -> PayloadFiles:
        access, secret = self._s3(bucket, "access.key"), self._s3(bucket, "secret.key")
        if not (access and secret):
            self._need_own("fs.s3a.access.key and fs.s3a.secret.key")
        endpoint = self._s3(bucket, "endpoint")
        if endpoint and "://" not in endpoint:
            secure = self._s3(bucket, "connection.ssl.enabled").lower() != "false"
            endpoint = f"{'https' if secure else 'http'}://{endpoint}"
        told = {
            "endpoint": endpoint or None,
            "region": self._s3(bucket, "endpoint.region") or ("us-east-1" if endpoint else None),
            "accessKey": access or None,
            "secretKey": secret or None,
            "sessionToken": self._s3(bucket, "session.token") or None,
            "pathStyle": bool(endpoint) and self._s3(bucket, "path.style.access").lower() != "false",
        }
        return BucketFiles(bucket, path.lstrip("/"), Settings.model_validate(told))

    def _open_azure(self, host: str, path: str) -> PayloadFiles:
        from pyarrow.fs import AzureFileSystem

        container, _, account_host = host.rpartition("@")
        key = self._options.get(f"fs.azure.account.key.{account_host}", self._options.get("fs.azure.account.key", ""))
        if not key:
            self._need_own(f"fs.azure.account.key.{account_host}")
        account = account_host.partition(".")[0]
        return CloudFiles(AzureFileSystem(account, account_key=key or None), container + path)

    def _open_google(self, host: str, path: str) -> PayloadFiles:
        from pyarrow.fs import GcsFileSystem

        # Its client takes a key file from the process's environment only.
        self._need_own("")
        return CloudFiles(GcsFileSystem(), host + path)

    def _need_own(self, keys: str) -> None:
        """The operator's own credentials are never used for a job."""
        if self._own:
            return
        what = f"{keys} are not set" if keys else "there is no way to give it the job's credentials"
        scheme = urlsplit(self._location).scheme
        message = f"a payload beyond 4 MiB lies in {scheme}:, which the operator cannot reach: {what}"
        advice = "set them there, or use commit.runOn: Driver"
        raise ConfigurationError("PayloadStorageCredentials", message, path=_OPTIONS, advice=advice)
