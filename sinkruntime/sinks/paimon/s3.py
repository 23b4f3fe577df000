"""A table in a bucket: snapshots and schemas appear by `If-None-Match: *`, so that two committers never both win.

Used through `files`. boto3 is imported when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon.files import DataFile, Files
from sinkruntime.sinks.paimon.options import Options
from sinkruntime.storage.s3 import PART_BYTES, S3Output
from sinkruntime.storage.s3_client import ConditionLost, Missing, client_for, talking

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

#: S3's own limit of keys in one request.
KEYS_MAX = 1_000
THREADS = 16


class S3Files(Files):
    """A prefix in a bucket."""

    def __init__(self, options: Options) -> None:
        place = urlsplit(options.table_path)
        self._settings = options.storage
        self._bucket, self._prefix = place.netloc, place.path.strip("/")
        self._connected: S3Client | None = None

    def open(self) -> None:
        self._connected = client_for(self._settings)

    def close(self) -> None:
        """The client stays: it is the process's."""
        self._connected = None

    @property
    def client(self) -> S3Client:
        assert self._connected is not None, "open comes first"
        return self._connected

    def read(self, path: str) -> bytes | None:
        try:
            with asking(f"reading {path}"):
                return self.client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"].read()
        except Missing:
            return None

    def create(self, path: str, data: bytes) -> bool:
        try:
            with asking(f"creating {path}", changes=True):
                self.client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data, IfNoneMatch="*")
        except ConditionLost:
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        with asking(f"writing {path}"):
            self.client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data)

    def missing(self, paths: Sequence[str]) -> list[str]:
        if len(paths) < 2:
            return [path for path in paths if self._absent(path)]
        with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
            return [path for path, absent in zip(paths, pool.map(self._absent, paths), strict=True) if absent]

    def names(self, directory: str) -> list[str]:
        prefix = f"{self._key(directory)}/"
        pages = self.client.get_paginator("list_objects_v2")
        with asking(f"listing {directory}"):
            found = pages.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/")
            return [entry["Key"].removeprefix(prefix) for page in found for entry in page.get("Contents", [])]

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), KEYS_MAX):
            keys = [self._key(path) for path in paths[start : start + KEYS_MAX]]
            with asking(f"deleting {len(keys)} files"):
                answer = self.client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
                )
            if errors := answer.get("Errors"):
                raise ConnectionError(f"deleting {errors[0].get('Key')}: {errors[0].get('Code')}")

    def begin(self, path: str) -> DataFile:
        return S3DataFile(self.client, self._bucket, self._key(path), path)

    def _absent(self, path: str) -> bool:
        try:
            with asking(f"looking for {path}"):
                self.client.head_object(Bucket=self._bucket, Key=self._key(path))
        except Missing:
            return True
        return False

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path


class S3DataFile(DataFile):
    """An upload that is completed when the file is whole. Its name is random, so that nothing can be there."""

    def __init__(self, client: S3Client, bucket: str, key: str, path: str) -> None:
        self._client, self._bucket, self._key, self._path = client, bucket, key, path
        self._output = S3Output(client, bucket, key, path, PART_BYTES)
        self._finished = False
        self.stream = self._output.stream

    def finish(self) -> None:
        item = self._output.finish()
        parts: list[CompletedPartTypeDef] = [
            {"PartNumber": number, "ETag": etag} for number, etag in enumerate(item["etags"], start=1)
        ]
        with asking(f"completing {self._path}"):
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=self._key, UploadId=item["upload"], MultipartUpload={"Parts": parts}
            )
        self._finished = True

    def discard(self) -> None:
        self._output.discard()
        if self._finished:
            with asking(f"deleting {self._path}"):
                self._client.delete_object(Bucket=self._bucket, Key=self._key)


@contextmanager
def asking(what: str, changes: bool = False) -> Iterator[None]:
    """As `talking`; errors name the option that says where the table is."""
    try:
        with talking(what, changes):
            yield
    except TargetError as error:
        raise TargetError(error.reason, error.message, path="options.catalog.warehouse") from error
