"""The target of the `memory` sink: a plain object that several simulated processes may share.

`sinkruntime.sinks.memory` writes to it; the simulator and the contract suite look into it. Every operation is atomic.
It keeps all that happened (what landed, what was removed), and knows no fault, clock or thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

#: (ledger id, sink): whose rows, evidence and fences these are.
Owner = tuple[str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class StagedKey:
    """Names what one writer staged; two attempts never share one."""

    ledger_id: str
    sink: str
    checkpoint: int
    epoch: int
    subtask: int
    attempt: int
    unique: str

    @property
    def owner(self) -> Owner:
        return self.ledger_id, self.sink

    def as_json(self) -> dict[str, Any]:
        """As it stands in a committable."""
        return asdict(self)


@dataclass(slots=True)
class Staged:
    """What lies under a `StagedKey`. `expires_at_seconds` by the writer's wall clock; None: never."""

    rows: list[Row] = field(default_factory=list)
    prepared: bool = False
    expires_at_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """One publication: these keys became visible at once."""

    owner: Owner
    checkpoint: int
    keys: tuple[StagedKey, ...]
    order: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """One removal of something staged, and by which operation."""

    key: StagedKey
    by: str


class Verdict(StrEnum):
    """What the target says to a publication."""

    PUBLISHED = "published"
    ALREADY = "already"  # it was published before
    FENCED = "fenced"  # a fence of this order or a higher one stands
    LOST = "lost"  # nothing is staged under a key, and it was never published
    BEHIND = "behind"  # the evidence is lower than the predecessor
    AHEAD = "ahead"  # the evidence is between the predecessor and this checkpoint


@dataclass(frozen=True, slots=True)
class Publication:
    """One atomic commit. `part` is the subtask where each writer commits alone, None for a whole checkpoint.

    `proves`: it moves the evidence from `previous` to `checkpoint`.
    """

    owner: Owner
    checkpoint: int
    part: int | None
    keys: tuple[StagedKey, ...]
    previous: int
    order: tuple[int, int]
    proves: bool

    @property
    def place(self) -> tuple[Owner, int, int | None]:
        return self.owner, self.checkpoint, self.part


class MemoryTarget:
    """Staged items, visible rows, evidence and fences of any number of jobs."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.staged: dict[StagedKey, Staged] = {}
        self.visible: list[tuple[StagedKey, Row]] = []
        self.evidence: dict[Owner, int] = {}
        self.history: list[Landed] = []
        self.removals: list[Removal] = []
        self.fences: dict[tuple[Owner, int, int | None], tuple[int, int]] = {}
        self.faults_spent: dict[tuple[Owner, str], int] = {}
        self._landed: set[tuple[Owner, int, int | None]] = set()
        self._lock = threading.RLock()

    def stage(self, key: StagedKey, rows: Iterable[Row]) -> None:
        """Add rows that no reader sees."""
        with self._lock:
            self.staged.setdefault(key, Staged()).rows.extend(rows)

    def prepare(self, key: StagedKey, expires_at_seconds: float | None) -> int | None:
        """Finish what is staged under `key`; the number of its rows, or None where there is nothing."""
        with self._lock:
            staged = self.staged.get(key)
            if staged is None:
                return None
            staged.prepared, staged.expires_at_seconds = True, expires_at_seconds
            return len(staged.rows)

    def publish(self, publication: Publication) -> Verdict:
        """Make the keys' rows visible, and move the evidence, if the predecessor is exactly the one expected."""
        with self._lock:
            verdict = self._verdict(publication)
            if verdict is Verdict.PUBLISHED:
                for key in publication.keys:
                    self.visible.extend((key, row) for row in self.staged.pop(key).rows)
                self._landed.add(publication.place)
                self.fences.pop(publication.place, None)
                if publication.proves:
                    self.evidence[publication.owner] = publication.checkpoint
                self.history.append(
                    Landed(publication.owner, publication.checkpoint, publication.keys, publication.order)
                )
            return verdict

    def _verdict(self, publication: Publication) -> Verdict:
        last = self.evidence.get(publication.owner, 0)
        if publication.place in self._landed or last > publication.checkpoint:
            return Verdict.ALREADY
        if last < publication.previous:
            return Verdict.BEHIND
        if publication.previous < last < publication.checkpoint:
            return Verdict.AHEAD
        if publication.order <= self.fences.get(publication.place, (-1, -1)):
            return Verdict.FENCED
        if not all(key in self.staged and self.staged[key].prepared for key in publication.keys):
            return Verdict.LOST
        return Verdict.PUBLISHED

    def landed(self, publication: Publication) -> bool:
        """Whether it was published, by anyone."""
        with self._lock:
            higher = self.evidence.get(publication.owner, 0) > publication.checkpoint
            return higher or publication.place in self._landed

    def fence(self, publication: Publication) -> bool:
        """Refuse it from now on, up to its order; False: it was published already."""
        with self._lock:
            if self.landed(publication):
                return False
            standing = self.fences.get(publication.place, (-1, -1))
            self.fences[publication.place] = max(standing, publication.order)
            return True

    def remove(self, condition: Callable[[StagedKey], bool], by: str) -> None:
        """Remove what is staged under the keys that meet the condition."""
        with self._lock:
            for key in sorted(filter(condition, self.staged)):
                del self.staged[key]
                self.removals.append(Removal(key, by))

    def expire(self, now_seconds: float) -> None:
        """Drop what has outlived its time, as a broker drops a transaction; whoever plays the clock calls this."""

        def due(key: StagedKey) -> bool:
            at = self.staged[key].expires_at_seconds
            return at is not None and at <= now_seconds

        self.remove(due, "expiry")

    def rows(self, owner: Owner) -> Sequence[Row]:
        """What a reader sees of one sink's rows."""
        with self._lock:
            return [row for key, row in self.visible if key.owner == owner]

    def spend(self, owner: Owner, fault: str, budget: int) -> bool:
        """Whether a fault is due: true for its first `budget` occasions, counted over all processes."""
        with self._lock:
            spent = self.faults_spent.get((owner, fault), 0)
            self.faults_spent[owner, fault] = spent + 1
            return spent < budget
