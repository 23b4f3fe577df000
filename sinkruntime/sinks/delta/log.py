"""The newest versions of a table's log: who wrote them, what they add, to where a RESTORE went back.

Used by the sink and its committer, which have opened the table and know its version. Reads single versions of the log
by their names and writes nothing. (`DeltaTable.history` counts from the newest version, not from the handle's.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sinkruntime.errors import TargetError
from sinkruntime.sinks.delta.place import Place

#: Versions that are looked through for one of our commits.
HISTORY_MAX = 100
#: An action's name stands so near to the beginning of its line.
NAME_BYTES = 24


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the log."""

    number: int
    data: bytes

    def actions(self, name: str) -> Iterator[dict[str, Any]]:
        """The actions of a kind."""
        mark = f'"{name}"'.encode()
        for line in self.data.splitlines():
            if mark in line[:NAME_BYTES]:
                action = json.loads(line)
                if name in action:
                    yield action[name]

    def info(self) -> dict[str, Any]:
        """What its writer told of it."""
        return next(self.actions("commitInfo"), {})

    def added(self) -> frozenset[str]:
        """The paths that it adds."""
        return frozenset(action["path"] for action in self.actions("add"))


def newest(place: Place, version: int) -> Iterator[Version]:
    """The versions from this one down, as far as the log still has them."""
    for number in range(version, max(-1, version - HISTORY_MAX), -1):
        data = place.read(f"_delta_log/{number:020d}.json")
        if data is None:
            return
        yield Version(number, data)


def restored_to(place: Place, version: int, app: str) -> int | None:
    """The version to which the table went back since the last transaction of `app` that still counts; None: it did
    not. Raises `TargetError` (`TableRefused`) where a RESTORE does not say its version."""
    counts: int | None = None
    for found in newest(place, version):
        if counts is not None and found.number > counts:
            continue
        if any(action["appId"] == app for action in found.actions("txn")):
            break
        info = found.info()
        if info.get("operation") == "RESTORE":
            counts = _target(place, found.number, info.get("operationParameters", {}))
    return counts


def _target(place: Place, version: int, parameters: dict[str, Any]) -> int:
    told = parameters.get("version")
    if told is None or not str(told).isdigit():
        message = f"version {version} of {place.uri} went back to a time, not to a version: what it proves is not known"
        raise TargetError("TableRefused", message, path="options.path", advice="RESTORE it TO VERSION AS OF")
    return int(told)
