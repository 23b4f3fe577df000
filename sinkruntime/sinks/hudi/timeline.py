"""The timeline of a Hudi table of version 6: which actions have begun and are completed, by their instants.

An instant is 17 digits, a time in milliseconds. Each action leaves `<instant>.<action>.requested`, `….inflight` and
`<instant>.<action>` in `.hoodie`; the last one makes it count. Used by writers and committers; writes nothing.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.storage.base import Storage

HOODIE = ".hoodie"
PRIVATE = f"{HOODIE}/.sinkjob"

#: Keys of our evidence in a commit's extra metadata.
LEDGER, SINK, JOB, CHECKPOINT, EPOCH = (
    f"sinkjob.{word}" for word in ("ledger", "sink", "job", "checkpoint", "epoch")
)  # fmt: skip

#: The commit that tells a new table's columns. Every other instant is later, so that no file of an instant that is
#: not completed is ever older than the timeline: readers would take it for archived, and show it.
FIRST_INSTANT = "20000101000000000"

#: Completed actions that change no data.
_HARMLESS = frozenset({"clean", "savepoint"})
#: Completed actions that put no record anywhere.
_NO_WRITE = _HARMLESS | {"rollback", "restore", "indexing"}
_NAME = re.compile(r"(\d{17}|\d{14})\.(?:(\w+)(?:\.(requested|inflight))?)")
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Timeline:
    """`completed` and `pending`: the action of each instant."""

    completed: Mapping[str, str]
    pending: Mapping[str, str]

    @classmethod
    def read(cls, storage: Storage) -> Timeline:
        """The timeline now: one listing."""
        completed: dict[str, str] = {}
        begun: dict[str, str] = {}
        for name in storage.names(HOODIE):
            found = _NAME.fullmatch(name)
            if found is None:
                continue
            instant, action, state = found.groups()
            if action == "inflight":  # of a commit: `<instant>.inflight`
                begun[instant] = "commit"
            elif state is None:
                completed[instant] = action
            else:
                begun[instant] = action
        pending = {instant: action for instant, action in begun.items() if instant not in completed}
        return cls(completed, pending)

    @property
    def last(self) -> str:
        """The last instant that is taken, completed or not; "" when there is none."""
        return max([*self.completed, *self.pending], default="")

    @property
    def last_change(self) -> str:
        """The last completed instant that may have changed data; "" when there is none."""
        return max((at for at, action in self.completed.items() if action not in _HARMLESS), default="")

    @property
    def writes(self) -> list[str]:
        """The completed instants that put records somewhere, commits and others, the newest first."""
        return sorted((at for at, action in self.completed.items() if action not in _NO_WRITE), reverse=True)

    @property
    def has_records(self) -> bool:
        """Whether somebody has written to the table since it was made."""
        return self.writes not in ([], [FIRST_INSTANT])

    def path_of(self, instant: str) -> str:
        """The file that says what a completed instant did."""
        return f"{HOODIE}/{instant}.{self.completed[instant]}"

    def shows(self, instant: str) -> bool:
        """Whether readers see files of this instant: it is completed, or older than the timeline."""
        return instant in self.completed or instant < min(self.completed, default="")


def commit_path(instant: str) -> str:
    """The file that makes a commit count."""
    return f"{HOODIE}/{instant}.commit"


def pending_paths(instant: str) -> tuple[str, str]:
    """The files of a commit that has begun, in the order in which they are written."""
    return f"{HOODIE}/{instant}.commit.requested", f"{HOODIE}/{instant}.inflight"


def next_instant(wall_seconds: float, after: str) -> str:
    """The instant of a time (seconds since 1970), later than another one."""
    now = _to_instant(datetime.datetime.fromtimestamp(wall_seconds, datetime.UTC))
    return now if now > after else shifted(after, 1)


def shifted(instant: str, milliseconds: int) -> str:
    """The instant so many milliseconds later."""
    padded = instant.ljust(17, "0")
    at = datetime.datetime.strptime(padded[:14], "%Y%m%d%H%M%S").replace(tzinfo=datetime.UTC)
    return _to_instant(at + (int(padded[14:]) + milliseconds) * _MILLISECOND)


def _to_instant(at: datetime.datetime) -> str:
    return f"{at:%Y%m%d%H%M%S}{at.microsecond // 1000:03d}"


@dataclass(frozen=True, slots=True)
class Proof:
    """The last checkpoint of a sink that the timeline proves, and at which instant; 0 and "": none."""

    checkpoint: int = 0
    instant: str = ""


def proof_of(storage: Storage, timeline: Timeline, identity: SinkIdentity) -> Proof:
    """Walks back from the newest commit to the newest of this sink; its instants rise as its checkpoints do."""
    commits = (instant for instant, action in timeline.completed.items() if action == "commit")
    for instant in sorted(commits, reverse=True):
        extra = read_extra(storage, commit_path(instant))
        if extra.get(LEDGER) == identity.ledger_id and extra.get(SINK) == identity.sink:
            return Proof(int(extra[CHECKPOINT]), instant)
    return Proof()


def read_extra(storage: Storage, path: str) -> Mapping[str, Any]:
    """The extra metadata of an instant's file; empty when it has none, or is not there."""
    document = storage.read(path)
    if document is None or not document.data:
        return {}
    try:
        return dict(json.loads(document.data).get("extraMetadata") or {})
    except (ValueError, AttributeError) as error:
        raise TargetError(
            "TimelineDamaged", f"{path} is not a commit's metadata: {error}", path="options.path"
        ) from error


def owner_of_pending(storage: Storage, instant: str) -> Mapping[str, Any]:
    """What a pending commit says of who began it; empty when that was none of us."""
    requested, inflight = pending_paths(instant)
    return read_extra(storage, inflight) or read_extra(storage, requested)
