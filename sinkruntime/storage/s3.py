"""S3: files are staged as multipart uploads that are left open, and committed by completing them.

An open upload shows no object; completing it with `If-None-Match: *` never replaces one. The uploads, not objects,
are the staging place, so their keys are the final ones and hold the ids that `recover` needs. A completion that is
under way cannot be turned down by S3, so a commit that may have been sent cannot be fenced here.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from sinkruntime.api import SinkIdentity
from sinkruntime.storage.base import Document, Item, Output, OutputStream, StagedEntry, Standing, Storage
from sinkruntime.storage.names import owner_digest
from sinkruntime.storage.s3_client import ConditionLost, Missing, RangeReader, client_for, talking
from sinkruntime.storage.settings import Storage as Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

#: S3's own limits: parts but the last have 5 MiB or more, and an upload has 10,000 parts at most.
PART_BYTES = 8 * 1024**2
#: An object may outgrow `targetFileSize` by what one row group adds.
PARTS_PLANNED = 5_000
#: Names the very upload that an object was made of; kept as the object's metadata.
UPLOAD_MARK = "sinkjob-id"
SAMPLE_KEYS_MAX = 10_000
#: One request reads so much ahead.
READ_BYTES = 1024**2
#: Beside letters and digits: what stands in the path of a URI as it is.
URI_CHARACTERS = "/-._~!$&'()*+,;=:@"


class S3Storage(Storage):
    """A prefix in a bucket."""

    def __init__(self, path: str, settings: Settings, identity: SinkIdentity, target_file_bytes: int) -> None:
        place = urlsplit(path)
        self._settings = settings
        self._bucket = place.netloc
        self._prefix = f"{place.path.strip('/')}/" if place.path.strip("/") else ""
        self._digest = owner_digest(identity)
        self._part_bytes = max(PART_BYTES, target_file_bytes // PARTS_PLANNED)
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

    def key(self, path: str) -> str:
        return f"{self._prefix}{path}"

    # --- the writer's side

    def create(self, directory: str, name: str) -> Output:
        path = f"{directory}/{name}" if directory else name
        return S3Output(self.client, self._bucket, self.key(path), path, self._part_bytes)

    def prepared(self) -> None:
        """Parts are durable when S3 has acknowledged them."""

    # --- the committers' side

    def standing(self, item: Item, order: tuple[int, int]) -> Standing:
        visible = self._visible(item)
        if visible is not None:
            return visible
        try:
            with talking(f"looking for the upload of {item['path']}"):
                self.client.list_parts(
                    Bucket=self._bucket, Key=self.key(item["path"]), UploadId=item["upload"], MaxParts=1
                )  # fmt: skip
        except Missing:
            return self._visible(item) or Standing.GONE  # it may have been completed between the two looks
        return Standing.STAGED

    def _visible(self, item: Item) -> Standing | None:
        try:
            with talking(f"looking for {item['path']}"):
                head = self.client.head_object(Bucket=self._bucket, Key=self.key(item["path"]))
        except Missing:
            return None
        ours = head["ContentLength"] == item["size"] and head["Metadata"].get(UPLOAD_MARK) == item["id"]
        return Standing.LANDED if ours else Standing.TAKEN

    def publish(self, item: Item, order: tuple[int, int]) -> Standing:
        parts: list[CompletedPartTypeDef] = [
            {"PartNumber": number, "ETag": etag} for number, etag in enumerate(item["etags"], start=1)
        ]
        try:
            with talking(f"completing {item['path']}", changes=True):
                self.client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self.key(item["path"]),
                    UploadId=item["upload"],
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                )
        except (Missing, ConditionLost):
            return self._visible(item) or self._unfinished(item, order)
        return Standing.PUBLISHED

    def _unfinished(self, item: Item, order: tuple[int, int]) -> Standing:
        standing = self.standing(item, order)
        if standing is Standing.STAGED:  # another request on this key came between; none is there now
            raise ConnectionAbortedError(f"completing {item['path']}: S3 was asked twice at once")
        return standing

    def settle(self, items: Sequence[Item]) -> None:
        """Nothing is left of a completed upload."""

    def fence(self, item: Item, order: tuple[int, int], may_have_landed: bool) -> bool:
        return not may_have_landed

    def discard(self, item: Item) -> None:
        abort_upload(self.client, self._bucket, self.key(item["path"]), item["upload"])

    def staged(self) -> Iterator[StagedEntry]:
        mark = f"{self._digest}-"
        pages = self.client.get_paginator("list_multipart_uploads")
        with talking("listing uploads"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", []):
                    name = upload["Key"].rpartition("/")[2]
                    if mark in name:
                        yield StagedEntry(name, (upload["Key"], upload["UploadId"]))

    def remove(self, entries: Sequence[StagedEntry]) -> None:
        for entry in entries:
            key, upload = entry.handle
            abort_upload(self.client, self._bucket, key, upload)

    # --- small documents

    def read(self, path: str) -> Document | None:
        try:
            with talking(f"reading {path}"):
                answer = self.client.get_object(Bucket=self._bucket, Key=self.key(path))
                return Document(answer["Body"].read(), answer["ETag"])
        except Missing:
            return None

    def replace(self, path: str, data: bytes, expected: Document | None) -> bool:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.tag}
        try:
            with talking(f"writing {path}", changes=True):
                self.client.put_object(Bucket=self._bucket, Key=self.key(path), Body=data, **condition)
        except (ConditionLost, Missing):
            return False
        return True

    def add(self, path: str, data: bytes) -> bool:
        return self.replace(path, data, None)

    def names(self, directory: str) -> Sequence[str]:
        prefix = self.key(f"{directory}/" if directory else "")
        pages = self.client.get_paginator("list_objects_v2")
        with talking(f"listing {directory}"):
            found = pages.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/")
            return [entry["Key"].removeprefix(prefix) for page in found for entry in page.get("Contents", [])]

    def delete(self, path: str) -> None:
        with talking(f"deleting {path}"):
            self.client.delete_object(Bucket=self._bucket, Key=self.key(path))

    def reader(self, path: str) -> IO[bytes]:
        try:
            with talking(f"looking for {path}"):
                head = self.client.head_object(Bucket=self._bucket, Key=self.key(path))
        except Missing as error:
            raise FileNotFoundError(path) from error
        return self._reader(self.key(path), head["ContentLength"])

    def _reader(self, key: str, size_bytes: int) -> IO[bytes]:
        return cast("IO[bytes]", io.BufferedReader(RangeReader(self.client, self._bucket, key, size_bytes), READ_BYTES))

    def sample(self, extension: str) -> IO[bytes] | None:
        pages = self.client.get_paginator("list_objects_v2")
        with talking("listing files"):
            found = pages.paginate(
                Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"MaxItems": SAMPLE_KEYS_MAX}
            )  # fmt: skip
            for entry in (entry for page in found for entry in page.get("Contents", [])):
                path = entry["Key"].removeprefix(self._prefix)
                if path.endswith(extension) and not any(part[:1] in "_." for part in path.split("/")):
                    return self._reader(entry["Key"], entry["Size"])
        return None

    def modified_ms(self, path: str) -> int:
        with talking(f"looking for {path}"):
            head = self.client.head_object(Bucket=self._bucket, Key=self.key(path))
        return int(head["LastModified"].timestamp() * 1000)

    def uri(self, path: str) -> str:
        return f"s3a://{self._bucket}/{quote(self.key(path), safe=URI_CHARACTERS)}"


class S3Output(Output):
    """An open upload; parts are sent as they fill, one at a time, so that a file holds one part in memory."""

    def __init__(self, client: S3Client, bucket: str, key: str, path: str, part_bytes: int) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._path = path
        self._part_bytes = part_bytes
        self._id = uuid.uuid4().hex
        self._upload = ""
        self._etags: list[str] = []
        self._buffer = bytearray()
        self.stream = OutputStream(self._take)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def _take(self, view: memoryview) -> None:
        self._buffer += view
        while len(self._buffer) >= self._part_bytes:
            self._send(self._part_bytes)

    def _send(self, size_bytes: int) -> None:
        if not self._upload:
            with talking(f"beginning {self._path}"):
                answer = self._client.create_multipart_upload(
                    Bucket=self._bucket, Key=self._key, Metadata={UPLOAD_MARK: self._id}
                )  # fmt: skip
            self._upload = answer["UploadId"]
        part = bytes(self._buffer[:size_bytes])
        with talking(f"uploading {self._path}"):
            sent = self._client.upload_part(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=self._upload,
                PartNumber=len(self._etags) + 1,
                Body=part,
            )
        self._etags.append(sent["ETag"])
        del self._buffer[:size_bytes]

    def finish(self) -> Item:
        if self._buffer or not self._etags:
            self._send(len(self._buffer))
        return {
            "path": self._path,
            "upload": self._upload,
            "etags": self._etags,
            "size": self.size_bytes,
            "id": self._id,
        }

    def discard(self) -> None:
        self.stream.abandon()
        self._buffer.clear()
        if self._upload:
            abort_upload(self._client, self._bucket, self._key, self._upload)


def abort_upload(client: S3Client, bucket: str, key: str, upload: str) -> None:
    """Remove an open upload; no error where there is none. A completed one is not touched by it."""
    try:
        with talking(f"aborting the upload of {key}"):
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
    except Missing:
        return
