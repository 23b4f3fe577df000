"""Payload objects in immutable ConfigMaps, in chunks, owned by the ledger's ConfigMap; the largest ones elsewhere.

Used by the ConfigMap store alone. A name stands for one content, so writing is create-if-absent: a chunk that is
there already is kept where it is equal. The first chunk holds number of chunks and digest, and is written last and
removed first: an object without it is torn, which `names` and `remove` see and `get` refuses. An object beyond
`SPILL_BYTES_MIN` has only a first chunk, without content, and lies in the checkpoint storage.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from sinkruntime.errors import AnswerLost, LedgerCorrupt, LedgerError, LedgerTooLarge, LedgerUnavailable
from sinkruntime.kube import CONFIG_MAP, AlreadyExists, Api, ApiError, Forbidden, Object, Unanswered, Unavailable
from sinkruntime.kube.names import GROUP, labels, ledger_name, payload_prefix, selector
from sinkruntime.ledger.spill import Spill
from sinkruntime.ledger.store import ObjectName

#: A ConfigMap takes 1 MiB; the rest is for its metadata.
CHUNK_BYTES_MAX = 900 * 1024 - 1

#: DESIGN §3.4: what is larger lies in the checkpoint storage.
SPILL_BYTES_MIN = 4 * 1024 * 1024 + 1

KEY = "payload"
NAME_LABEL = f"{GROUP}/payload"
CHUNKS_ANNOTATION = f"{GROUP}/chunks"
DIGEST_ANNOTATION = f"{GROUP}/sha256"

_RESTORE = "put the ConfigMap back from a backup, or accept CommittableLost"


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What one ConfigMap holds. `chunks` is 0 for an object that lies elsewhere, and is told by the first chunk."""

    index: int
    data: bytes
    chunks: int
    digest: str


class ConfigMapPayloads:
    """The payload objects of one job. `owner_uid` is that of the ledger's ConfigMap; set before anything is put."""

    def __init__(self, api: Api, namespace: str, job: str, spill: Spill | None) -> None:
        self.owner_uid = ""
        self._api = api
        self._namespace = namespace
        self._job = job
        self._spill = spill

    async def put(self, name: ObjectName, data: bytes) -> None:
        """Durable on return. Raises `LedgerCorrupt` where a whole object of that name has another content."""
        digest = hashlib.sha256(data).hexdigest()
        if len(data) < SPILL_BYTES_MIN:
            pieces = [data[at : at + CHUNK_BYTES_MAX] for at in range(0, len(data), CHUNK_BYTES_MAX)] or [b""]
            chunks = [_Chunk(index, piece, len(pieces), digest) for index, piece in enumerate(pieces)]
        elif self._spill is None:
            raise LedgerTooLarge(
                f"payload {name} has {len(data)} bytes, and there is no checkpoint storage for what is beyond 4 MiB",
                "set spec.checkpoint.location to a storage that driver and operator reach",
            )
        else:
            chunks = [_Chunk(0, b"", 0, digest)]
        if self._spill is not None and chunks[0].chunks == 0:
            # First the ConfigMap: it alone is listed, and so it is what leads a clean-up to the file.
            await self._put_chunk(name, chunks[0])
            await self._spill.write(name, data)
            return
        for chunk in reversed(chunks):
            await self._put_chunk(name, chunk)

    async def _put_chunk(self, name: ObjectName, chunk: _Chunk) -> None:
        body = self._body(name, chunk)
        if await self._create(body):
            return
        present = await self._get(name, chunk.index)
        if present is not None and _content(present) == _content(body):
            await self._own(present)
            return
        first = await self._get(name, 0)
        if first is not None and _annotation(first, DIGEST_ANNOTATION) != chunk.digest:
            raise LedgerCorrupt(f"{self._where(name)} is there with another content", _RESTORE)
        # A piece of a torn write, cut in another way: nobody can have read it as a part of a whole object.
        if present is not None:
            await self._delete(present)
        if not await self._create(body):
            raise LedgerUnavailable(f"{self._where(name)} is being written by another process")

    async def _create(self, body: Object) -> bool:
        """False: one of this name is there."""
        try:
            await self._api.create(CONFIG_MAP, self._namespace, body)
        except AlreadyExists:
            return False
        except ApiError as error:
            raise _foreign(error, f"ConfigMap {body['metadata']['name']} cannot be created") from error
        return True

    async def _own(self, present: Object) -> None:
        """Of a ledger that was restored the old payloads are garbage to the cluster, unless they change their owner."""
        owners = present["metadata"].get("ownerReferences") or []
        if any(owner["uid"] == self.owner_uid for owner in owners):
            return
        name = present["metadata"]["name"]
        try:
            await self._api.patch(CONFIG_MAP, self._namespace, name, {"metadata": {"ownerReferences": [self._owner()]}})
        except ApiError as error:
            raise _foreign(error, f"ConfigMap {name} cannot be given to the ledger") from error

    async def get(self, name: ObjectName) -> bytes:
        """Raises `LedgerCorrupt` where it is missing, torn or changed."""
        first = await self._get(name, 0)
        count = "" if first is None else _annotation(first, CHUNKS_ANNOTATION)
        if first is None or not count.isdigit():
            raise LedgerCorrupt(f"{self._where(name)} is missing or torn", _RESTORE)
        if count == "0":
            if self._spill is None:
                raise LedgerCorrupt(
                    f"{self._where(name)} lies in a checkpoint storage that is not known here", _RESTORE
                )
            data = await self._spill.read(name)
        else:
            data = await self._join(name, first, int(count))
        if hashlib.sha256(data).hexdigest() != _annotation(first, DIGEST_ANNOTATION):
            raise LedgerCorrupt(f"{self._where(name)} does not have its digest", _RESTORE)
        return data

    async def _join(self, name: ObjectName, first: Object, count: int) -> bytes:
        pieces = [_data(first)]
        for index in range(1, count):
            found = await self._get(name, index)
            if found is None:
                raise LedgerCorrupt(f"{self._where(name)} lacks chunk {index} of {count}", _RESTORE)
            pieces.append(_data(found))
        return b"".join(pieces)

    async def remove(self, name: ObjectName) -> None:
        """What a killed process leaves of it is found again by `names`."""
        found = await self._list(f"{selector(self._job, 'payload')},{NAME_LABEL}={name}")
        # The file goes before what leads to it, and the first chunk, which makes it whole, before the others.
        if self._spill is not None and any(_annotation(one, CHUNKS_ANNOTATION) == "0" for one in found):
            await self._spill.remove(name)
        for one in sorted(found, key=lambda one: not _annotation(one, CHUNKS_ANNOTATION)):
            await self._delete(one)

    async def names(self) -> list[ObjectName]:
        """Of all objects, torn ones too."""
        found = await self._list(selector(self._job, "payload"))
        return sorted({one["metadata"]["labels"].get(NAME_LABEL, "") for one in found} - {""})

    async def _list(self, labels: str) -> list[Object]:
        try:
            return (await self._api.list(CONFIG_MAP, self._namespace, labels=labels))[0]
        except ApiError as error:
            raise _foreign(error, f"payloads of {self._namespace}/{self._job} cannot be listed") from error

    async def _get(self, name: ObjectName, index: int) -> Object | None:
        try:
            return await self._api.get(CONFIG_MAP, self._namespace, self._name(name, index))
        except ApiError as error:
            raise _foreign(error, f"{self._where(name)} cannot be read") from error

    async def _delete(self, found: Object) -> None:
        metadata = found["metadata"]
        try:
            await self._api.delete(CONFIG_MAP, self._namespace, metadata["name"], uid=metadata["uid"])
        except ApiError as error:
            raise _foreign(error, f"ConfigMap {metadata['name']} cannot be removed") from error

    def _name(self, name: ObjectName, index: int) -> str:
        return f"{payload_prefix(self._job)}-{name}-{index}"

    def _where(self, name: ObjectName) -> str:
        return f"payload {name} (ConfigMaps {self._namespace}/{self._name(name, 0)} and on)"

    def _owner(self) -> Object:
        owner = {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.name}
        return owner | {"name": ledger_name(self._job), "uid": self.owner_uid}

    def _body(self, name: ObjectName, chunk: _Chunk) -> Object:
        annotations = {CHUNKS_ANNOTATION: str(chunk.chunks), DIGEST_ANNOTATION: chunk.digest}
        metadata: Object = {
            "name": self._name(name, chunk.index),
            "labels": labels(self._job, "payload") | {NAME_LABEL: name},
            "ownerReferences": [self._owner()],
        }
        if chunk.index == 0:
            metadata["annotations"] = annotations
        return {"metadata": metadata, "binaryData": {KEY: base64.b64encode(chunk.data).decode()}, "immutable": True}


def _data(found: Object) -> bytes:
    try:
        return base64.b64decode((found.get("binaryData") or {}).get(KEY) or "", validate=True)
    except binascii.Error as error:
        raise LedgerCorrupt(f"ConfigMap {found['metadata']['name']} does not hold base64", _RESTORE) from error


def _content(found: Object) -> tuple[bytes, str, str]:
    return _data(found), _annotation(found, CHUNKS_ANNOTATION), _annotation(found, DIGEST_ANNOTATION)


def _annotation(found: Object, name: str) -> str:
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def _foreign(error: ApiError, what: str) -> LedgerError:
    message = f"{what}: {error.message}"
    if isinstance(error, Unanswered):
        return AnswerLost(message, error.advice)
    if isinstance(error, Unavailable):
        return LedgerUnavailable(message, error.advice, retry_after_seconds=error.retry_after_seconds)
    if isinstance(error, Forbidden):  # rights and quotas may be granted any time
        return LedgerUnavailable(message, error.advice)
    return LedgerError(message, error.advice)
