"""The evidence of the `file` sink: small documents in the target's `_sinkjob` directory.

`target.json` says who the target is and what schema it was given; `<ledger id>-<sink>.json` says which checkpoint of
that sink is the last one. Used by the sink, its committers and `prepare_target`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.storage.base import Document, Storage
from sinkruntime.storage.names import PRIVATE

TARGET = f"{PRIVATE}/target.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The last committed checkpoint of one sink, and the one before. `log` is its batch in Spark's log, or -1."""

    checkpoint: int = 0
    previous: int = 0
    log: int = -1


def marker_path(identity: SinkIdentity) -> str:
    return f"{PRIVATE}/{identity.ledger_id}-{identity.sink}.json"


def read_marker(storage: Storage, identity: SinkIdentity) -> tuple[Marker, Document | None]:
    """The marker, and the document it came from for `write_marker`. Raises `TargetError` when it is damaged."""
    path = marker_path(identity)
    document = storage.read(path)
    if document is None:
        return Marker(), None
    value = parse(document, path, "checkpoint", "previous", "log")
    return Marker(value["checkpoint"], value["previous"], value["log"]), document


def write_marker(storage: Storage, identity: SinkIdentity, marker: Marker, expected: Document | None) -> bool:
    """Replace the marker, if it still is the expected one."""
    value = {
        "format": FORMAT,
        "job": identity.job,
        "checkpoint": marker.checkpoint,
        "previous": marker.previous,
        "log": marker.log,
    }
    return storage.replace(marker_path(identity), _text(value), expected)


def read_target(storage: Storage) -> dict[str, Any] | None:
    """`target.json`; None: the target has none yet."""
    document = storage.read(TARGET)
    return None if document is None else parse(document, TARGET, "target", "schema")


def create_target(storage: Storage, unique: str, schema: str) -> dict[str, Any]:
    """`target.json`, made where it is missing; it is never changed."""
    with storage.exclusive():
        value = {"format": FORMAT, "target": unique, "schema": schema}
        if storage.replace(TARGET, _text(value), None):
            return value
    found = read_target(storage)
    if found is None:
        raise TargetError("TargetReplaced", f"{TARGET} was removed while the job started", path="options.path")
    return found


def parse(document: Document, path: str, *keys: str) -> dict[str, Any]:
    """A document that has `keys`. Raises `TargetError` for what we did not write."""
    try:
        value = json.loads(document.data)
        if missing := [key for key in keys if key not in value]:
            raise ValueError(f"`{missing[0]}` is missing")
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']} is not known, this release reads {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("EvidenceDamaged", f"{path}: {error}", path="options.path") from error
    return dict(value)


def _text(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
