"""Files below the table's directory: written, listed and removed, on a local disk or S3.

Used by the writers and the committer for data files and staged changes; the log is `deltalake`'s alone. Only settings
of the options reach the clients. Never reads a data file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from sinkruntime.errors import ConfigurationError
from sinkruntime.sinks.delta.options import Options

CONNECT_TIMEOUT_SECONDS = 5
REQUEST_TIMEOUT_SECONDS = 60
#: Of one request, by the client; S3's own advice is to repeat throttled ones.
ATTEMPTS_MAX = 5
RETRY_SECONDS_MAX = 30
CREATE_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A file below the table: its path relative to it, and its size in bytes."""

    path: str
    size: int


class Place:
    """The directory of a table. Made from options, connects at the first use."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connected: pafs.FileSystem | None = None
        parts = urlsplit(options.location)
        if options.is_local:
            self.root = os.path.abspath(options.location.removeprefix("file://"))
            self.uri = self.root
        else:
            self.root = f"{parts.netloc}/{parts.path.strip('/')}"
            self.uri = f"s3://{self.root}"

    @property
    def system(self) -> pafs.FileSystem:
        if self._connected is None:
            local = pafs.LocalFileSystem()
            self._connected = local if self._options.is_local else _s3(self._options)
        return self._connected

    def storage_options(self) -> dict[str, str]:
        """What `deltalake` is told. All that it would else look up in the environment is said here; with an endpoint it
        asks no metadata service for a region or keys."""
        if self._options.is_local:
            return {}
        storage = self._options.storage
        access, secret = keys_of(self._options)
        told = {
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
            **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), storage.region),
            **dict.fromkeys(("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), endpoint_of(self._options)),
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if storage.path_style else "true",
            "AWS_ALLOW_HTTP": "true" if endpoint_of(self._options).startswith("http://") else "false",
            "AWS_CONDITIONAL_PUT": "etag",  # a version of the log is written once, by whoever comes first
            "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
            "AWS_SKIP_SIGNATURE": "false",
            "max_retries": str(ATTEMPTS_MAX),
            "retry_timeout": f"{RETRY_SECONDS_MAX}s",
            "timeout": f"{REQUEST_TIMEOUT_SECONDS}s",
            "connect_timeout": f"{CONNECT_TIMEOUT_SECONDS}s",
        }
        if storage.session_token is None:
            _refuse_ambient_token()
        else:
            told["AWS_SESSION_TOKEN"] = storage.session_token.get_secret_value()
        return told

    def create(self, path: str) -> Any:
        """A stream for a new file; the file is there after `close`."""
        if self._options.is_local:
            return _created(os.path.join(self.root, path))
        return self.system.open_output_stream(self._full(path))

    def read(self, path: str) -> bytes | None:
        """A small file; None where there is none."""
        try:
            with self.system.open_input_stream(self._full(path)) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError:
            return None

    def files(self, directory: str) -> Iterator[Found]:
        """All files below a directory; none where it does not exist."""
        selector = pafs.FileSelector(self._full(directory), allow_not_found=True, recursive=True)
        prefix = len(self.root) + 1
        for info in self.system.get_file_info(selector):
            if info.type is pafs.FileType.File:
                yield Found(info.path[prefix:], info.size)

    def directories(self, directory: str) -> list[str]:
        """Names of the directories in a directory, ordered."""
        selector = pafs.FileSelector(self._full(directory), allow_not_found=True)
        found = self.system.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type is pafs.FileType.Directory)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and local directories that are then empty. What is gone already is no error."""
        if not self._options.is_local:
            self._remove_objects(list(paths))
            return
        for path in paths:
            try:
                self.system.delete_file(self._full(path))
            except FileNotFoundError:
                continue
            self._prune(os.path.dirname(path))

    def _remove_objects(self, paths: list[str]) -> None:
        """By the log's own client: Arrow's leaves an object for the directory behind."""
        if not paths:
            return
        from deltalake.fs import DeltaStorageHandler

        store = DeltaStorageHandler(self.uri, self.storage_options())
        for path in paths:
            try:
                store.delete_file(path)
            except FileNotFoundError:
                continue

    def prune(self, directory: str) -> None:
        """Remove a local directory if it is empty; object stores have none."""
        if self._options.is_local:
            self._prune(directory)

    def _prune(self, directory: str) -> None:
        try:
            os.rmdir(os.path.join(self.root, directory))
        except OSError:
            return  # not empty, or gone: both are well

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}"


def _created(path: str) -> _Synced:
    for _ in range(CREATE_ATTEMPTS_MAX - 1):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            return _Synced(path)
        except FileNotFoundError:
            continue  # another task has just removed the directory, which was empty
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return _Synced(path)


class _Synced:
    """A local file that is on disk, with its name, once it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stream = open(path, "xb")  # noqa: SIM115  (closed by `close`)

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, data: Any) -> int:
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        _sync_directory(os.path.dirname(self._path))


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keys_of(options: Options) -> tuple[str, str]:
    """Access key and secret; raises `ConfigurationError` where the options have none."""
    access, secret = options.storage.access_key, options.storage.secret_key
    if access is None or secret is None:
        message = "an S3 table needs `storage.accessKey` and `storage.secretKey`; those of the environment are not used"
        raise ConfigurationError("MissingCredentials", message, path="options.storage", advice="give `optionsFrom`")
    return access.get_secret_value(), secret.get_secret_value()


def _refuse_ambient_token() -> None:
    """The one setting of the environment that `deltalake` cannot be told to leave alone."""
    if os.environ.get("AWS_SESSION_TOKEN"):
        message = "AWS_SESSION_TOKEN is set in this process, and would be sent with keys that it does not belong to"
        advice = "unset it, or give `storage.sessionToken`"
        raise ConfigurationError("AmbientCredentials", message, path="options.storage.sessionToken", advice=advice)


def endpoint_of(options: Options) -> str:
    """The service's URL as `deltalake` wants it: with the bucket, unless that stands in the path. Said always, so that
    no environment says it."""
    base = urlsplit(_service(options))
    bucket = "" if options.storage.path_style else f"{urlsplit(options.location).netloc}."
    return f"{base.scheme}://{bucket}{base.netloc}"


def _service(options: Options) -> str:
    return options.storage.endpoint or f"https://s3.{options.storage.region}.amazonaws.com"


def _s3(options: Options) -> pafs.FileSystem:
    storage = options.storage
    access, secret = keys_of(options)
    endpoint = urlsplit(_service(options))
    token = None if storage.session_token is None else storage.session_token.get_secret_value()
    return pafs.S3FileSystem(
        access_key=access,
        secret_key=secret,
        session_token=token,
        region=storage.region,
        scheme="http" if endpoint.scheme == "http" else "https",
        endpoint_override=endpoint.netloc,
        force_virtual_addressing=not storage.path_style,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        request_timeout=REQUEST_TIMEOUT_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
    )


#: What the clients of both kinds raise where a request failed.
STORE_ERRORS = (OSError, pa.ArrowException)
