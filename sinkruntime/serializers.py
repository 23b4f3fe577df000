"""The written forms of a sink's own values: committables, aggregated committables, writer states.

`api.Sink` names one for each; the runtime keeps version and bytes in the ledger. A sink with other values than JSON has
brings its own.
"""

from __future__ import annotations

import json
from typing import Any, Protocol


class Serializer(Protocol):
    """Writes a sink's own values; `version` is kept beside the bytes, and old versions stay readable."""

    version: int

    def serialize(self, value: Any) -> bytes: ...
    def deserialize(self, version: int, data: bytes) -> Any: ...


class JsonSerializer:
    """For values made of dicts, lists, strings, numbers, booleans and None."""

    version = 1

    def serialize(self, value: Any) -> bytes:
        """Equal values give equal bytes."""
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def deserialize(self, version: int, data: bytes) -> Any:
        """Raises ValueError for a version that it does not know."""
        if version != self.version:
            raise ValueError(f"version {version} is not known, this release reads {self.version}")
        return json.loads(data)
