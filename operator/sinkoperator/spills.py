"""Payloads that are too large for ConfigMaps, as this replica's coordinators reach them: in the job's own storage.

The application gives one to each ledger store. It is opened at every use with what the job's Secrets say at that
moment; the operator's own credentials are never used, and a host that commits may not reach is not called for this
either. A job whose checkpoint location has changed keeps older payloads where they were written, so all locations of
its kept revisions are looked at.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections.abc import Sequence

from sinkoperator.commits.egress import Address, Egress, literal, refusal
from sinkoperator.manifests import read
from sinkoperator.world import Key, World
from sinkruntime.errors import ConfigurationError, LedgerCorrupt
from sinkruntime.kube import CONFIG_MAP, SECRET, Api, Object
from sinkruntime.ledger.spill import Spill
from sinkruntime.spec.source import Checkpoint, OptionsFrom

_PATH = "spec.checkpoint.location"
#: What a location without an endpoint stands for, where rules name the hosts that may be reached.
USUAL_HOST = "s3.amazonaws.com"


class JobSpill(Spill):
    """See the module, and `Spill`."""

    def __init__(self, api: Api, world: World, key: Key, egress: Egress) -> None:
        super().__init__("", {}, own=False)
        self._api = api
        self._world = world
        self._key = key
        self._egress = egress

    async def write(self, name: str, data: bytes) -> None:
        """See `Spill`; to the present location."""
        spills = await self._all()
        await spills[0].write(name, data)

    async def read(self, name: str) -> bytes:
        """See `Spill`."""
        missing = LedgerCorrupt(f"payload {name} is in no checkpoint location of this job", "restore it from a backup")
        for spill in await self._all():
            try:
                return await spill.read(name)
            except LedgerCorrupt as error:
                missing = error
        raise missing

    async def remove(self, name: str) -> None:
        """See `Spill`."""
        for spill in await self._all():
            await spill.remove(name)

    async def _all(self) -> list[Spill]:
        """The present location first. Raises `ConfigurationError` where one cannot or may not be reached."""
        found: dict[str, Spill] = {}
        for checkpoint in self._checkpoints():
            if checkpoint.location and checkpoint.location not in found:
                options = await self._options_of(checkpoint.options_from)
                spill = found[checkpoint.location] = Spill(checkpoint.location, options, own=False)
                await self._check(spill)
        if not found:
            message = "the job has no checkpoint location, and a payload beyond 4 MiB lies there"
            raise ConfigurationError("PayloadStorageUnknown", message, path=_PATH, advice="set it")
        return list(found.values())

    def _checkpoints(self) -> Sequence[Checkpoint]:
        body = self._world.job(self._key)
        kept = sorted(self._world.revisions.of(self._key), key=lambda each: -int(each.get("revision") or 0))
        specs = [] if body is None else [body.get("spec")]
        specs += [(each.get("data") or {}).get("spec") for each in kept]
        namespace, name = self._key
        about = {"namespace": namespace, "name": name}
        jobs = ({"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": about, "spec": s} for s in specs)
        return [spec.checkpoint for spec in (read(job).spec for job in jobs) if spec is not None]

    async def _options_of(self, entries: Sequence[OptionsFrom]) -> dict[str, str]:
        options: dict[str, str] = {}
        for entry in entries:
            if entry.secret_ref is not None:
                found = await self._api.get(SECRET, self._key[0], entry.secret_ref.name)
                options |= _decoded(found, entry.secret_ref.name)
            elif entry.config_map_ref is not None:
                config = await self._api.get(CONFIG_MAP, self._key[0], entry.config_map_ref.name)
                options |= (config or {}).get("data") or {}
        return options

    async def _check(self, spill: Spill) -> None:
        spill.check()
        host = spill.host or USUAL_HOST
        address = literal(host)
        addresses = [address] if address is not None else await _addresses(host)
        for each in addresses:
            if why := self._egress.why_not(each, 0, [host]):
                raise ConfigurationError("EgressRefused", refusal(host, 0, why), path=_PATH)


async def _addresses(host: str) -> list[Address]:
    """None where nobody knows the name: the client says so itself."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [each for each in (literal(str(entry[4][0])) for entry in found) if each is not None]


def _decoded(secret: Object | None, name: str) -> dict[str, str]:
    if secret is None:
        advice = "create it; what is decided waits, and is committed then"
        raise ConfigurationError("SecretNotFound", f"there is no Secret `{name}`", path=_PATH, advice=advice)
    try:
        return {key: base64.b64decode(text).decode() for key, text in (secret.get("data") or {}).items()}
    except (binascii.Error, UnicodeDecodeError):
        # From None: the error would hold the value.
        raise ConfigurationError("SecretUnreadable", f"Secret `{name}` holds what is not text", path=_PATH) from None
