"""Payloads that are too large for ConfigMaps, as this replica's coordinators reach them: in the job's own storage.

The application gives one to each ledger store. A worker process is opened for every use, with what the job's Secrets
say at that moment: what a storage answers is never read in this process, and the operator's own credentials are never
used. A job whose checkpoint location has changed keeps older payloads where they were written, so all locations of its
kept revisions are looked at.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from sinkoperator.commits.frames import Json
from sinkoperator.commits.opening import NO_IDENTITY
from sinkoperator.commits.pool import CLOSE_SECONDS, Pool
from sinkoperator.commits.process import Owner, WorkerGone
from sinkoperator.commits.storage import LOCATION
from sinkoperator.manifests import read
from sinkoperator.world import Key, World
from sinkruntime.coordinator.runner import NotStarted, OutOfTime
from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerUnavailable, SinkjobError
from sinkruntime.kube import CONFIG_MAP, SECRET, Api, Kind, Object
from sinkruntime.ledger.spill import FILE_SECONDS, Spill
from sinkruntime.spec.models import API_VERSION, KIND
from sinkruntime.spec.source import Checkpoint, OptionsFrom

#: To fork a worker, read Secrets and look up hosts; a slot may have to be waited for.
OPEN_SECONDS = 30.0
#: What is opened, in the place of a sink's name.
PAYLOADS = "payloads"


class JobSpill(Spill):
    """See the module, and `Spill`."""

    def __init__(self, api: Api, world: World, key: Key, pool: Pool, file_seconds: float = FILE_SECONDS) -> None:
        super().__init__("", {}, own=False)
        self._api = api
        self._world = world
        self._key = key
        self._pool = pool
        self._file_seconds = file_seconds

    async def write(self, name: str, data: bytes) -> None:
        """See `Spill`; to the present location."""
        await self._call("write", name, base64.b64encode(data).decode("ascii"))

    async def read(self, name: str) -> bytes:
        """See `Spill`."""
        try:
            return base64.b64decode(str(await self._call("read", name)), validate=True)
        except binascii.Error as error:
            raise LedgerCorrupt(f"payload {name} came as what is none") from error

    async def remove(self, name: str) -> None:
        """See `Spill`."""
        await self._call("remove", name)

    async def _call(self, operation: str, name: str, data: str = "") -> Any:
        """Once, in a worker of its own: payloads of this size are rare, and a fork takes milliseconds."""
        what = f"payload {name} in the checkpoint storage of {self._key[0]}/{self._key[1]}"
        try:
            worker = await self._pool.open(Owner(*self._key, "", PAYLOADS), self._opening, OPEN_SECONDS)
            try:
                return await worker.call(operation, {"name": name, "data": data}, self._file_seconds)
            finally:
                self._pool.rest(worker)
                await worker.close(CLOSE_SECONDS)
        except (NotStarted, OutOfTime, WorkerGone) as error:
            raise LedgerUnavailable(f"{what}: {error}") from error
        except SinkjobError as error:
            known = {kind.kind: kind for kind in (LedgerCorrupt, LedgerUnavailable)}
            if error.reason in known:
                raise known[error.reason](error.message, error.advice) from error
            raise

    async def _opening(self) -> Json:
        """The present location first. Raises `ConfigurationError` where there is none, or a Secret is missing."""
        storages: dict[str, Json] = {}
        secrets: dict[str, dict[str, str]] = {}
        for checkpoint in self._checkpoints():
            location = checkpoint.location
            if location and location not in storages:
                options = await self._options_of(checkpoint.options_from, secrets)
                storages[location] = {"location": location, "options": options}
        if not storages:
            message = "the job has no checkpoint location, and a payload beyond 4 MiB lies there"
            raise ConfigurationError("PayloadStorageUnknown", message, path=LOCATION, advice="set it")
        return {
            "storages": list(storages.values()),
            "secrets": secrets,
            "configMaps": {},
            "identity": NO_IDENTITY,
            "egress": self._pool.settings.egress.texts(),
        }

    def _checkpoints(self) -> Sequence[Checkpoint]:
        body = self._world.job(self._key)
        kept = sorted(self._world.revisions.of(self._key), key=lambda each: -int(each.get("revision") or 0))
        specs = [] if body is None else [body.get("spec")]
        specs += [(each.get("data") or {}).get("spec") for each in kept]
        namespace, name = self._key
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"namespace": namespace, "name": name}}
        found = (read({**about, "spec": spec}).spec for spec in specs)
        return [spec.checkpoint for spec in found if spec is not None]

    async def _options_of(self, entries: Sequence[OptionsFrom], secrets: dict[str, dict[str, str]]) -> dict[str, str]:
        """The options of a location; what comes from Secrets is noted in `secrets`, for a worker to hide."""
        options: dict[str, str] = {}
        for entry in entries:
            if entry.secret_ref is not None:
                name = entry.secret_ref.name
                found = _there(await self._api.get(SECRET, self._key[0], name), SECRET, name)
                secrets[name] = _as_mounted(_decoded(found, name))
                options |= secrets[name]
            elif entry.config_map_ref is not None:
                name = entry.config_map_ref.name
                found = _there(await self._api.get(CONFIG_MAP, self._key[0], name), CONFIG_MAP, name)
                options |= _as_mounted(found.get("data") or {})
        return options


def _there(found: Object | None, kind: Kind, name: str) -> Object:
    """Without it the storage would be looked for in another place, and what lies there be taken for lost."""
    if found is None:
        advice = "create it; what is decided waits, and is committed then"
        raise ConfigurationError(
            f"{kind.name}NotFound", f"there is no {kind.name} `{name}`", path=LOCATION, advice=advice
        )
    return found


def _decoded(secret: Object, name: str) -> dict[str, str]:
    try:
        return {key: base64.b64decode(text).decode() for key, text in (secret.get("data") or {}).items()}
    except (binascii.Error, UnicodeDecodeError):
        # From None: the error would hold the value.
        raise ConfigurationError("SecretUnreadable", f"Secret `{name}` holds what is not text", path=LOCATION) from None


def _as_mounted(values: Mapping[str, str]) -> dict[str, str]:
    """As the driver reads them from files (`options_from`)."""
    return {key: value.removeprefix("\ufeff").removesuffix("\n") for key, value in values.items()}
