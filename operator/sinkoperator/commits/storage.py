"""A job's checkpoint storage in a worker process: the payloads there that are too large for ConfigMaps.

`worker` opens it where it is given storages in place of a sink; `spills` asks. So the answers of a storage that a
manifest names are read where memory and time are limited, under the rules of egress and with the job's own keys.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from sinkoperator.commits.frames import BadFrame, Json
from sinkruntime.errors import ConfigurationError, LedgerCorrupt
from sinkruntime.ledger.spill import Spill

LOCATION = "spec.checkpoint.location"
#: What a location without an endpoint stands for, where rules name the hosts that may be reached.
USUAL_HOST = "s3.amazonaws.com"

#: `Guard.check`.
Check = Callable[[str, int, type[Exception]], None]


class Storage:
    """The storages of one job, the present one first: where its location has changed, older payloads stay behind."""

    def __init__(self, arguments: Mapping[str, Any], check: Check) -> None:
        """Raises `ConfigurationError` where one cannot or may not be reached."""
        self._spills = [Spill(each["location"], each["options"], own=False) for each in arguments["storages"]]
        for spill in self._spills:
            spill.check()
            try:
                check(spill.host or USUAL_HOST, 0, ConfigurationError)
            except ConfigurationError as error:
                error.path = LOCATION
                raise

    def facts(self) -> Json:
        """There are none."""
        return {}

    def close(self) -> None:
        """Nothing is open between two calls."""

    def call(self, operation: str, arguments: Mapping[str, Any]) -> str | None:
        """One file written, read or removed. Raises `LedgerCorrupt` and `LedgerUnavailable`."""
        calls: dict[str, Callable[[str, str], Coroutine[Any, Any, str | None]]] = {
            "write": self._write,
            "read": self._read,
            "remove": self._remove,
        }
        if operation not in calls:
            raise BadFrame(f"there is no call `{operation}`")
        return asyncio.run(calls[operation](arguments["name"], arguments.get("data", "")))

    async def _write(self, name: str, data: str) -> None:
        await self._spills[0].write(name, base64.b64decode(data, validate=True))

    async def _read(self, name: str, _: str) -> str:
        missing = LedgerCorrupt(f"payload {name} is in no checkpoint location of this job", "restore it from a backup")
        for spill in self._spills:
            try:
                data = await spill.read(name)
            except LedgerCorrupt as error:
                missing = error
                continue
            return base64.b64encode(data).decode("ascii")
        raise missing

    async def _remove(self, name: str, _: str) -> None:
        for spill in self._spills:
            await spill.remove(name)
