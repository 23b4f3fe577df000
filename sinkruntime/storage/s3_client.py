"""The S3 client: one per process and settings, and what its errors mean.

Used by `s3` only. boto3 is imported when the first client is made.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.storage.base import AnswerLost
from sinkruntime.storage.settings import Storage as Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 60
ATTEMPTS_MAX = 4
#: Clients kept open in a process; Python workers live long, and making one takes a tenth of a second.
CLIENTS_MAX = 8
CONNECTIONS_MAX = 32

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_LOST_CONDITION = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
_FINAL = {
    "AccessDenied": "PermissionDenied",
    "403": "PermissionDenied",
    "InvalidAccessKeyId": "PermissionDenied",
    "SignatureDoesNotMatch": "PermissionDenied",
    "NoSuchBucket": "BucketMissing",
}
#: Turned down before anything happened.
_THROTTLED = frozenset({"SlowDown", "503", "ServiceUnavailable", "RequestLimitExceeded", "Throttling"})


class Missing(Exception):
    """There is no such object or upload."""


class ConditionLost(Exception):
    """A condition did not hold: another request was first."""


def client_for(settings: Settings) -> S3Client:
    """The process's client for these settings."""
    secrets = (settings.access_key, settings.secret_key, settings.session_token)
    keys = tuple(None if secret is None else secret.get_secret_value() for secret in secrets)
    return _client(settings.endpoint, settings.region, settings.path_style, keys)


@lru_cache(maxsize=CLIENTS_MAX)
def _client(
    endpoint: str | None, region: str | None, path_style: bool, keys: tuple[str | None, ...]
) -> S3Client:  # fmt: skip
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        message = "S3 paths need boto3"
        advice = "pip install 'sinkjob[file]'"
        raise ConfigurationError("MissingModule", message, path="options.path", advice=advice) from error
    access, secret, token = keys
    # Checksums of requests are sent only where S3 demands them: many services other than AWS refuse them.
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
        max_pool_connections=CONNECTIONS_MAX,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if path_style else "auto"},
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=config,
    )


@contextmanager
def talking(what: str, changes: bool = False) -> Iterator[None]:
    """Translates errors of one request. `changes`: without an answer it may have happened (`AnswerLost`)."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, EndpointConnectionError

    try:
        yield
    except ClientError as error:
        _translate(error, what, changes)
    except (EndpointConnectionError, ConnectTimeoutError) as error:
        if changes:  # only the last attempt is known not to have reached it
            raise AnswerLost(f"{what}: {error}") from error
        raise ConnectionError(f"{what}: {error}") from error
    except BotoCoreError as error:
        if changes:
            raise AnswerLost(f"{what}: {error}") from error
        raise ConnectionError(f"{what}: {error}") from error


def _translate(error: Any, what: str, changes: bool) -> None:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _MISSING or code == "NoSuchUpload":
        raise Missing(what) from error
    if code in _LOST_CONDITION:
        raise ConditionLost(what) from error
    if code in _FINAL:
        raise TargetError(_FINAL[code], f"{what}: {error}", path="options.path") from error
    # Only the last attempt is known to have been turned down: one before it may have happened without an answer.
    again = int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0
    if not changes or (code in _THROTTLED and not again):
        raise ConnectionError(f"{what}: {error}") from error
    if status >= 500 or code in _THROTTLED:
        raise AnswerLost(f"{what}: {error}") from error
    raise TargetError("RequestRefused", f"{what}: {error}", path="options.path") from error


class RangeReader(io.RawIOBase):
    """An object as a file that can be read at any place, a request per read."""

    def __init__(self, client: S3Client, bucket: str, key: str, size_bytes: int) -> None:
        super().__init__()
        self._client = client
        self._bucket, self._key = bucket, key
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size_bytes)
        if end <= self._at:
            return 0
        with talking(f"reading {self._key}"):
            wanted = f"bytes={self._at}-{end - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key, Range=wanted)
            data = answer["Body"].read()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
