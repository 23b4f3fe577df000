"""A ledger store in a ConfigMap: for operator, driver and committer pod.

`ledger.json` in one ConfigMap a job, changed by a merge patch that names its `resourceVersion`, so labels, annotations
and owners that others put there stay. Its finalizer keeps it while the SinkJob is deleted; with a deletionTimestamp it
is still the ledger. Payload objects are `configmap_payloads`'s. It never repairs what it cannot read.

Rights. Operator: configmaps create, get, list, watch, patch, delete in the job's namespace. Driver: configmaps get,
list, watch, patch on the name of its ledger (a list or watch by `metadata.name` is allowed by resourceNames), and
create and get without a name for payload objects, because RBAC cannot bind a create, nor a name made later. Committer
pod: as the driver, and list and delete without a name, because it removes payload objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from sinkruntime.errors import (
    AnswerLost,
    LedgerConflict,
    LedgerCorrupt,
    LedgerError,
    LedgerFormatTooNew,
    LedgerTooLarge,
    LedgerUnavailable,
)
from sinkruntime.kube import (
    CONFIG_MAP,
    AlreadyExists,
    Api,
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Object,
    Unanswered,
    Unavailable,
    Watch,
)
from sinkruntime.kube.names import GROUP, LEDGER_FINALIZER, OWNER_ANNOTATION, labels, ledger_name
from sinkruntime.ledger.configmap_payloads import ConfigMapPayloads
from sinkruntime.ledger.spill import Spill
from sinkruntime.ledger.store import ObjectName, Stored
from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger

KEY = "ledger.json"

#: Another one with each write: a write of an equal text would leave the version as it is, and then of two that claim
#: the same thing from the same version both would believe that they won.
WRITE_ANNOTATION = f"{GROUP}/write"

#: What the API server takes in one ConfigMap (1 MiB), less a margin for keys that others may add.
LEDGER_BYTES_MAX = 1024 * 1024 - 16 * 1024

_RESTORE = "put a good copy of the ConfigMap back; or remove it with its finalizer, and accept LedgerLost"


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Whose ledger: `uid` is the SinkJob's, which then owns a ledger that is created here ("": nobody does)."""

    namespace: str
    job: str
    uid: str = ""

    @property
    def name(self) -> str:
        """Of the ConfigMap."""
        return ledger_name(self.job)

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"


class ConfigMapLedgerStore:
    """See `LedgerStore`.

    `watch` tells of changes and saves reads: in the driver one of the ledger by name, in the operator one over all
    ledgers, entered by whoever made it. Without one, every load is a request, and a waiter hears nothing.
    """

    def __init__(self, api: Api, place: LedgerPlace, watch: Watch | None = None, spill: Spill | None = None) -> None:
        self.place = place
        self._api = api
        self._watch = watch
        self._payloads = ConfigMapPayloads(api, place.namespace, place.job, spill)
        self._last: Stored | None = None  # the newest that is known here
        self._ask = True  # the next load must ask the server

    async def load(self) -> Stored | None:
        """See `LedgerStore`.

        It may be what the watch heard last, so it may be stale by the time that an event takes. That is safe, because
        every change is a compare-and-swap on the version that is read here: what was made from a stale ledger is
        refused, and the read after that (or after any answer but a success) asks the server. It saves a read at each
        step of decision, commit and acknowledgement.
        """
        return self._heard() or await self._read()

    def _heard(self) -> Stored | None:
        watch = self._watch
        if self._ask or watch is None or watch.problem is not None:
            return None
        found = watch.get(self.place.namespace, self.place.name)
        if found is None:
            return None
        if self._last is not None and _number(self._last.version) >= _number(_version(found)):
            return self._last  # one's own write is known before its event comes
        return self._take(found)

    async def _read(self) -> Stored | None:
        try:
            found = await self._api.get(CONFIG_MAP, self.place.namespace, self.place.name)
        except ApiError as error:
            pause = error.retry_after_seconds if isinstance(error, Unavailable) else 0.0
            message = f"{self.place} cannot be read: {error.message}"
            raise LedgerUnavailable(message, error.advice, retry_after_seconds=pause) from error
        if found is None:
            self._last = None
            return None
        stored = self._take(found)
        self._ask = False
        return stored

    def _take(self, found: Object) -> Stored:
        stored = decode(found)
        self._last = stored
        self._payloads.owner_uid = found["metadata"]["uid"]
        return stored

    async def create(self, ledger: Ledger) -> Stored:
        """See `LedgerStore`."""
        metadata: Object = {
            "name": self.place.name,
            "labels": labels(self.place.job, "ledger"),
            "annotations": {WRITE_ANNOTATION: self._api.environment.identity()},
            "finalizers": [LEDGER_FINALIZER],
        }
        if self.place.uid:
            metadata["annotations"][OWNER_ANNOTATION] = self.place.uid
        body = {"metadata": metadata, "data": {KEY: self._text(ledger)}}
        return await self._write(ledger, self._api.create(CONFIG_MAP, self.place.namespace, body), "created")

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        """See `LedgerStore`."""
        annotations = {WRITE_ANNOTATION: self._api.environment.identity()}
        metadata = {"resourceVersion": version, "annotations": annotations}
        body = {"metadata": metadata, "data": {KEY: self._text(ledger)}}
        patch = self._api.patch(CONFIG_MAP, self.place.namespace, self.place.name, body)
        return await self._write(ledger, patch, f"replaced from version {version}")

    async def _write(self, ledger: Ledger, request: Coroutine[Any, Any, Object], what: str) -> Stored:
        try:
            found = await request
        except BaseException as error:  # whatever it is, a cancelled wait too: what is known here may be old
            self._ask = True
            if isinstance(error, ApiError):
                raise self._foreign(error, what) from error
            raise
        self._last = Stored(ledger, _version(found))
        self._payloads.owner_uid = found["metadata"]["uid"]
        self._ask = False
        return self._last

    def _text(self, ledger: Ledger) -> str:
        text = codec.encode(ledger)
        if len(text.encode()) > LEDGER_BYTES_MAX:
            message = (
                f"{self.place} would have {len(text.encode())} bytes of {LEDGER_BYTES_MAX} that fit; nothing was sent"
            )
            raise LedgerTooLarge(message, "let fewer checkpoints be pending (spec.commit.maxPending)")
        return text

    def _foreign(self, error: ApiError, what: str) -> LedgerError:
        message = f"{self.place} cannot be {what}: {error.message}"
        if isinstance(error, Conflict | AlreadyExists):
            return LedgerConflict(message, error.advice)
        if isinstance(error, NotFound):  # a patch says so of a ledger that was deleted by hand, a create of a namespace
            return LedgerUnavailable(message, error.advice) if what == "created" else LedgerConflict(message)
        if isinstance(error, Unanswered):
            return AnswerLost(message, error.advice)
        if isinstance(error, Unavailable):
            return LedgerUnavailable(message, error.advice, retry_after_seconds=error.retry_after_seconds)
        if isinstance(error, Forbidden):  # rights and quotas may be granted any time
            return LedgerUnavailable(message, error.advice)
        return LedgerCorrupt(message, _RESTORE)

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        """See `LedgerStore`. It asks nobody: the watch tells."""
        watch = self._watch
        if watch is None:
            await asyncio.sleep(timeout_seconds)
            return
        place = (self.place.namespace, self.place.name)
        found = watch.get(*place)
        if found is not None and _number(_version(found)) > _number(version):
            return
        changed = asyncio.Event()

        def hear(kind: str, heard: Object) -> None:
            metadata = heard["metadata"]
            mine = (metadata["namespace"], metadata["name"]) == place
            if mine and (kind == "DELETED" or _number(_version(heard)) > _number(version)):
                changed.set()

        watch.subscribe(hear)
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            watch.unsubscribe(hear)

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        """See `LedgerStore`. The ledger owns it, so it goes with the ledger."""
        if not self._payloads.owner_uid and await self._read() is None:
            raise LedgerCorrupt(f"{self.place} is gone, so payload {name} would have no owner", _RESTORE)
        await self._payloads.put(name, data)

    async def get_object(self, name: ObjectName) -> bytes:
        """See `LedgerStore`."""
        return await self._payloads.get(name)

    async def remove_object(self, name: ObjectName) -> None:
        """See `LedgerStore`."""
        await self._payloads.remove(name)

    async def list_objects(self) -> list[ObjectName]:
        """See `LedgerStore`; torn ones too, so that they are removed."""
        return await self._payloads.names()


def decode(found: Object) -> Stored:
    """The ledger in a ConfigMap that was read. Raises `LedgerCorrupt` and `LedgerFormatTooNew`."""
    metadata = found["metadata"]
    where = f"ConfigMap {metadata.get('namespace', '')}/{metadata['name']}"
    text = (found.get("data") or {}).get(KEY)
    if text is None:
        raise LedgerCorrupt(f"{where} has no key {KEY}", _RESTORE)
    try:
        return Stored(codec.decode(text), metadata["resourceVersion"])
    except codec.NewerFormat as error:
        raise LedgerFormatTooNew(f"{where}: {error}", "run it with the newer release of sinkjob") from error
    except codec.BadLedger as error:
        raise LedgerCorrupt(f"{where}: {error}", _RESTORE) from error


def _version(found: Object) -> str:
    version: str = found["metadata"]["resourceVersion"]
    return version


def _number(version: str) -> int:
    """Versions of one object grow as numbers do (Kubernetes promises it since 1.35; etcd's always did)."""
    return int(version) if version.isdigit() else 0
