"""Snapshots: the newest one, the next one made only if it is not there yet, and what they prove of one sink.

Used by the committers and the sink. A snapshot names who made it (`commitUser`: ledger id and sink) and for which
checkpoint (`commitIdentifier`); both stand in the same file as the commit itself. A snapshot of ours without data may
be a fence: its properties say which late commits must fail. A consumer file keeps our newest snapshot from expiring
and says how far back to look.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon.files import Files

VERSION = 3
DIRECTORY = "snapshot"
LATEST = f"{DIRECTORY}/LATEST"
FENCES = "sinkjob.fences"
KIND = "sinkjob.kind"
FENCE, DATA = "fence", "data"
#: How many snapshots `find` looks at: ours of pending checkpoints, and what other writers made meanwhile.
SEARCHED_MAX = 1_000

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a table proves of a sink at one moment. `tip` is the number of the newest snapshot, `own` that of our
    newest; 0 where there is none."""

    tip: int
    snapshot: Document | None
    own: int
    checkpoint: int
    fences: Mapping[int, tuple[int, int]]  # by checkpoint: commits up to this order fail
    whole: bool  # False: nothing of ours was found, and older snapshots have expired


@dataclass(frozen=True, slots=True)
class Consumer:
    """Our consumer file. `next` is the oldest snapshot that is kept for us; `base` is below all our sequence numbers,
    and not below those that were in the table before."""

    next: int
    base: int


def user_of(identity: SinkIdentity) -> str:
    """The commit user of a sink."""
    return f"sinkjob-{identity.ledger_id}-{identity.sink}"


def path_of(number: int) -> str:
    return f"{DIRECTORY}/snapshot-{number}"


def read_snapshot(files: Files, number: int) -> Document | None:
    """One snapshot; None: there is none, or it has expired. Raises `TargetError` for one that cannot be read."""
    data = files.read(path_of(number))
    if data is None:
        return None
    try:
        value = json.loads(data)
        if not 1 <= value["version"] <= VERSION:
            raise ValueError(f"version {value['version']} is not known, this release reads up to {VERSION}")
        for key in ("id", "schemaId", "baseManifestList", "deltaManifestList", "commitUser", "commitIdentifier"):
            value[key]
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("TableDamaged", f"{path_of(number)}: {error!r}", path="options.table") from error
    return dict(value)


def newest(files: Files) -> tuple[int, Document | None]:
    """The newest snapshot and its number; (0, None): the table has none."""
    hint = (files.read(LATEST) or b"").strip()
    if hint.isdigit():
        number = int(hint)
        found = read_snapshot(files, number)
        if found is not None and files.missing([path_of(number + 1)]):
            return number, found
    numbers = [int(name.removeprefix("snapshot-")) for name in files.names(DIRECTORY) if name[9:].isdigit()]
    if not numbers:
        return 0, None
    found = read_snapshot(files, max(numbers))
    if found is None:
        raise FileNotFoundError(f"{path_of(max(numbers))} went away while it was looked for")
    return max(numbers), found


def standing(files: Files, identity: SinkIdentity) -> Standing:
    """What the table proves now."""
    tip, snapshot = newest(files)
    consumer = read_consumer(files, identity)
    floor = consumer.next if consumer is not None and consumer.next <= tip + 1 else 1
    for found in _back(files, tip, snapshot, floor):
        if found is None:
            return Standing(tip, snapshot, 0, 0, {}, whole=False)
        if found["commitUser"] == user_of(identity):
            return Standing(tip, snapshot, found["id"], found["commitIdentifier"], _fences(found), whole=True)
    return Standing(tip, snapshot, 0, 0, {}, whole=True)


def find(files: Files, identity: SinkIdentity, checkpoint: int) -> tuple[bool, Document | None]:
    """(whether it can be told, the snapshot of a checkpoint); none where the checkpoint was never committed."""
    tip, snapshot = newest(files)
    floor = max(1, tip - SEARCHED_MAX)
    for found in _back(files, tip, snapshot, floor):
        if found is None:
            return False, None
        if found["commitUser"] == user_of(identity):
            if found["commitIdentifier"] < checkpoint:
                return True, None
            if found["commitIdentifier"] == checkpoint and (found.get("properties") or {}).get(KIND) != FENCE:
                return True, found
    return floor == 1, None


def properties(kind: str, fences: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """What a snapshot of ours says beside its data."""
    told = {KIND: kind}
    if fences:
        told[FENCES] = json.dumps({str(checkpoint): list(order) for checkpoint, order in sorted(fences.items())})
    return told


def create_snapshot(files: Files, number: int, document: Document) -> bool:
    """Make it, if nobody has made this number. Raises `AnswerLost` where that cannot be told."""
    return files.create(path_of(number), json.dumps(document, indent=2).encode())


def is_in_line(files: Files, number: int) -> bool:
    """After a snapshot was made: whether the one before it is still there. If not, this number may have expired once
    before, and what was made is below the oldest snapshot, where nobody sees it."""
    if number > 1:
        return not files.missing([path_of(number - 1)])
    numbers = {int(name.removeprefix("snapshot-")) for name in files.names(DIRECTORY) if name[9:].isdigit()}
    return numbers == set(range(1, len(numbers) + 1))


def hint(files: Files, number: int) -> None:
    """Tell readers where to begin. They look further by themselves, so it may be late."""
    files.write(LATEST, str(number).encode())


def read_consumer(files: Files, identity: SinkIdentity) -> Consumer | None:
    """Our consumer; None: there is none."""
    data = files.read(_consumer_path(identity))
    try:
        value = json.loads(data) if data is not None else None
        return None if value is None else Consumer(int(value["nextSnapshot"]), int(value["sinkjobBase"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("EvidenceDamaged", f"{_consumer_path(identity)}: {error!r}", path="options.table") from error


def write_consumer(files: Files, identity: SinkIdentity, consumer: Consumer) -> None:
    """Move it. `next` never lies above our newest snapshot, so a late write loses nothing."""
    value = {"nextSnapshot": consumer.next, "sinkjobBase": consumer.base}
    files.write(_consumer_path(identity), json.dumps(value).encode())


def _consumer_path(identity: SinkIdentity) -> str:
    return f"consumer/consumer-{user_of(identity)}"


def _back(files: Files, tip: int, snapshot: Document | None, floor: int) -> Iterator[Document | None]:
    """From the newest back to `floor`; ends with None where one is not there any more."""
    for number in range(tip, floor - 1, -1):
        found = snapshot if number == tip else read_snapshot(files, number)
        yield found
        if found is None:
            return


def _fences(snapshot: Document) -> dict[int, tuple[int, int]]:
    told = json.loads((snapshot.get("properties") or {}).get(FENCES, "{}"))
    return {int(checkpoint): (order[0], order[1]) for checkpoint, order in told.items()}
