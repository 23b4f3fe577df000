"""Which instant a checkpoint has: agreed by its writers, once for all, by files that are created if absent.

`.hoodie/.sinkjob/instants/<instant>` reserves an instant for one sink, and `.hoodie/.sinkjob/claims/<ledger
id>/<sink>/<checkpoint>` gives a checkpoint its instant: whoever creates it first has said it for every writer, epoch
and attempt. So there is one name, `<instant>.commit`, that a commit of this checkpoint could ever have, and creating
that file if absent lets one commit through. A claim is later than all instants of the table and all earlier
claims of its sink, so instants rise as checkpoints do.

Called by writers before their first file, and by `clean`. A claim is no staged data: nobody reads it but writers.
"""

from __future__ import annotations

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.hudi.timeline import PRIVATE, Timeline, next_instant, shifted
from sinkruntime.storage.base import Storage

_INSTANTS = f"{PRIVATE}/instants"
#: How many instants other sinks may take under the writer's eyes.
TRIES_MAX = 1_000


class Claims:
    """The claims of one sink."""

    def __init__(self, storage: Storage, identity: SinkIdentity) -> None:
        self._storage = storage
        self._directory = f"{PRIVATE}/claims/{identity.ledger_id}/{identity.sink}"

    def instant_of(self, checkpoint: int, wall_seconds: float, timeline: Timeline) -> str:
        """The instant of a checkpoint; claims one if it has none. `timeline` was read just now."""
        path = self._path(checkpoint)
        claim = self._read(path)
        if claim:
            return claim
        instant = self._reserve(path, *self._place(checkpoint, wall_seconds, timeline))
        if self._storage.add(path, instant.encode()):
            return instant
        self._storage.delete(f"{_INSTANTS}/{instant}")
        return self._read(path)

    def _place(self, checkpoint: int, wall_seconds: float, timeline: Timeline) -> tuple[str, int]:
        """Where to look for a free instant, and in which direction: after the claims of earlier checkpoints, and
        before those of later ones, which a writer may have made that was slower to die."""
        known = {number: self._read(self._path(number)) for number in self._numbers()}
        earlier = max((at for number, at in known.items() if number < checkpoint), default="")
        later = min((at for number, at in known.items() if number > checkpoint and at), default="")
        instant = next_instant(wall_seconds, max(timeline.last, earlier))
        return (shifted(later, -1), -1) if later and instant >= later else (instant, 1)

    def _reserve(self, path: str, instant: str, step: int) -> str:
        for _ in range(TRIES_MAX):
            if self._storage.add(f"{_INSTANTS}/{instant}", path.encode()):
                return instant
            instant = shifted(instant, step)
        raise OSError(f"{TRIES_MAX} instants up to {instant} are taken")

    def forget(self, through: int) -> None:
        """Remove the claims of checkpoints up to this one, which are committed or aborted. Repeatable."""
        for number in self._numbers():
            if number <= through:
                instant = self._read(self._path(number))
                if instant:
                    self._storage.delete(f"{_INSTANTS}/{instant}")
                self._storage.delete(self._path(number))

    def _numbers(self) -> list[int]:
        """Of the checkpoints that have a claim: those that are not cleaned yet, so few."""
        return [int(name) for name in self._storage.names(self._directory) if name.isdigit()]

    def _path(self, checkpoint: int) -> str:
        return f"{self._directory}/{checkpoint:012d}"

    def _read(self, path: str) -> str:
        document = self._storage.read(path)
        return "" if document is None else document.data.decode()
