"""The transactional ids of the sink: how they are spelled, read back, and used again.

An id is one Python worker process's own: it holds a random part that no other process has, so an old process that wakes
up can initialise only its own ids, and never aborts what somebody else has prepared. Within the process an id is used
again when the checkpoint that used it last is surely settled: a checkpoint is prepared only while fewer than 16 are
pending, and they are settled in order, so n - 16 is settled in the ledger when n is written. Its slot, the checkpoint
modulo 16, stands in the id: it tells `recover` which pending checkpoint an open transaction can belong to.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from sinkruntime.api import SinkIdentity

#: As many as checkpoints can be pending (`spec.commit.maxPending` is at most 16); a test compares them.
SLOTS = 16
#: Jobs of which a process remembers ids; one that is forgotten gets new ones.
JOBS_REMEMBERED_MAX = 32

_PARTS = re.compile(r"(\d+)\.(\d+)\.([0-9a-f]+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which driver run and slot a transactional id belongs to."""

    epoch: int
    slot: int


def base_name(prefix: str, identity: SinkIdentity) -> str:
    """What all names of this sink in the cluster begin with."""
    return f"{prefix}{identity.ledger_id}.{identity.sink}"


def origin_of(base: str, name: str) -> Origin | None:
    """Read back; None: not an id of this sink's writers."""
    if not name.startswith(f"{base}."):
        return None
    found = _PARTS.fullmatch(name[len(base) + 1 :])
    return None if found is None else Origin(int(found[1]), int(found[2]))


@dataclass(slots=True)
class _Ids:
    """The ids of one driver run of one sink: by slot, the checkpoint that used each of them last. `unique` is drawn
    anew when a job that was forgotten comes back, for its old ids may be pending."""

    unique: str = field(default_factory=lambda: secrets.token_hex(6))
    used: dict[int, list[int]] = field(default_factory=dict)


class IdPool:
    """The ids of this process."""

    def __init__(self) -> None:
        self._process = 0
        self._jobs: OrderedDict[tuple[str, int], _Ids] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, base: str, epoch: int, checkpoint: int) -> str:
        """An id for one writer of a checkpoint; no other writer of this process has it until it is settled."""
        with self._lock:
            self._begin_process()
            ids = self._jobs.setdefault((base, epoch), _Ids())
            self._jobs.move_to_end((base, epoch))
            while len(self._jobs) > JOBS_REMEMBERED_MAX:
                self._jobs.popitem(last=False)
            slot = checkpoint % SLOTS
            number = _take(ids.used.setdefault(slot, []), checkpoint)
            return f"{base}.{epoch}.{slot}.{ids.unique}.{number}"

    def _begin_process(self) -> None:
        """A forked process has copied the pool: the ids in it are its parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._jobs.clear()


def _take(used: list[int], checkpoint: int) -> int:
    for number, last in enumerate(used):
        if last + SLOTS <= checkpoint:
            used[number] = checkpoint
            return number
    used.append(checkpoint)
    return len(used) - 1


POOL = IdPool()
