"""Which job belongs to which shard, and which shards a replica takes and gives back: plain functions of what was seen.

`leases` calls it after each look at the Leases. Never does I/O, and never reads a time out of a Lease: whether a
replica lives is judged only by how long its Lease was seen unchanged here, on this process's own monotonic clock.

A shard is no fence. Two replicas may each work on a job for a while: when somebody edits Leases by hand, when a clock
runs wrong, and while replicas with different numbers of shards run side by side (each then maps jobs to shards in its
own way). That is safe, because what fences is the token in the job's ledger. It costs only repeated work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


def shard_of(namespace: str, name: str, shards: int) -> int:
    """The shard of a job, of so many; the same in every process and release."""
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards


@dataclass(frozen=True, slots=True)
class Names:
    """How this installation calls its Leases."""

    prefix: str = "sinkjob"

    def replica(self, identity: str) -> str:
        """The Lease that a replica renews."""
        return f"{self.prefix}-replica-{identity}"

    def shard(self, number: int) -> str:
        """The Lease that names a shard's holder."""
        return f"{self.prefix}-shard-{number}"

    def identity_in(self, lease: str) -> str:
        """The replica whose Lease this is; "" where it is another Lease."""
        start = self.replica("")
        return lease.removeprefix(start) if lease.startswith(start) else ""

    def number_in(self, lease: str) -> int | None:
        """The shard whose Lease this is; None where it is another Lease."""
        start = f"{self.prefix}-shard-"
        digits = lease.removeprefix(start) if lease.startswith(start) else ""
        return int(digits) if digits.isdecimal() and self.shard(int(digits)) == lease else None


@dataclass(slots=True)
class _Sighting:
    spec: Mapping[str, Any]
    since: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One Lease at the last look. `unchanged_seconds`: for how long its spec has been the same, at least."""

    name: str
    holder: str
    unchanged_seconds: float
    body: Mapping[str, Any]


@dataclass(slots=True)
class Sightings:
    """Since when each Lease has been seen as it is. One per process: it outlives the loss of the own Lease.

    A Lease is never taken for older than it is: its age counts from when this process had read the change.
    """

    _by_name: dict[str, _Sighting] = field(default_factory=dict)

    def note(self, body: Mapping[str, Any], at: float) -> None:
        """A watch has shown this Lease at this time, sooner than the next look would. One that lags, or shows an older
        state, only makes a takeover later."""
        name = body["metadata"]["name"]
        self._by_name[name] = _sighted(self._by_name.get(name), body, at)

    def look(self, leases: Iterable[Mapping[str, Any]], sent: float, answered: float) -> dict[str, Seen]:
        """Take in one list of all Leases; the times are the own monotonic clock's.

        A change is counted from when the answer was there, and its age up to when the question was sent: so an age
        is never more than the true time since the holder's last write, however slow the answer.
        """
        seen: dict[str, Seen] = {}
        former, self._by_name = self._by_name, {}
        for body in leases:
            name = body["metadata"]["name"]
            sighting = self._by_name[name] = _sighted(former.get(name), body, answered)
            holder = str(sighting.spec.get("holderIdentity") or "")
            seen[name] = Seen(name, holder, max(0.0, sent - sighting.since), body)
        return seen


def _sighted(former: _Sighting | None, body: Mapping[str, Any], at: float) -> _Sighting:
    spec = body.get("spec") or {}
    return former if former is not None and former.spec == spec else _Sighting(spec, at)


@dataclass(frozen=True, slots=True)
class View:
    """What one look says: who lives, and which shard is whose. A shard whose holder does not live is nobody's."""

    live: frozenset[str]
    holders: Mapping[int, str]

    def of(self, identity: str) -> frozenset[int]:
        """The shards that name this replica."""
        return frozenset(number for number, holder in self.holders.items() if holder == identity)


def view_of(seen: Mapping[str, Seen], me: str, names: Names, shards: int, lease_seconds: float) -> View:
    """Read a look. The own replica always lives here: its end is judged by its own deadline, not by others' rule."""
    live = {me}
    live.update(
        identity
        for lease in seen.values()
        if (identity := names.identity_in(lease.name)) and lease.unchanged_seconds < lease_seconds
    )
    wanted = {number: seen.get(names.shard(number)) for number in range(shards)}
    holders = {number: lease.holder for number, lease in wanted.items() if lease is not None and lease.holder in live}
    return View(frozenset(live), holders)


@dataclass(frozen=True, slots=True)
class Moves:
    """What a replica does next: shards to take, in this order, and shards to stop and give back."""

    take: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()


def plan_moves(view: View, me: str, shards: int, leaving: frozenset[int] = frozenset()) -> Moves:
    """Take free shards up to the fair share, or give back what is over it; `leaving` are being given back already.

    The shares of the live replicas, in the order of their names, add up to all shards and differ by one at most. So
    once all see the same replicas nobody takes what another one must give, and no shard stays free.
    """
    members = sorted(view.live | {me})
    rank = members.index(me)
    share = shards // len(members) + (rank < shards % len(members))
    held = sorted(view.of(me), key=lambda number: (number in leaving, number))
    if len(held) > share:
        return Moves(give_back=tuple(held[share:]))
    free = [number for number in range(shards) if number not in view.holders]
    start = rank * len(free) // len(members)  # each begins elsewhere, so that they seldom try for the same one
    return Moves(take=tuple((free[start:] + free[:start])[: share - len(held)]))


def garbage(seen: Mapping[str, Seen], view: View, names: Names, shards: int) -> list[Seen]:
    """Leases that nobody needs: of dead replicas, and of free shards beyond the last one.

    A replica that was once seen dead never lives again under that name. Left behind, its Lease would count as alive
    for a replica that sees it for the first time, and its shards would wait for that one, too.
    """
    found: list[Seen] = []
    for lease in seen.values():
        number, identity = names.number_in(lease.name), names.identity_in(lease.name)
        dead_replica = identity and identity not in view.live
        beyond = number is not None and number >= shards and lease.holder not in view.live
        if dead_replica or beyond:
            found.append(lease)
    return found
