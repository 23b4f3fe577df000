"""Our own instants that have begun: made, taken back, rolled back; others' are never touched.

Called by the committer only. An instant is ours when its files say so: its requested file holds the same metadata as
the inflight one, evidence and files included, so what a kill leaves can always be told from another writer's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi.place import Table
from sinkruntime.sinks.hudi.timeline import (
    CHECKPOINT,
    EPOCH,
    LEDGER,
    SINK,
    Timeline,
    commit_path,
    owner_of_pending,
    pending_paths,
    read_extra,
)
from sinkruntime.storage.base import Standing


class Instants:
    """The pending instants of one sink."""

    def __init__(self, table: Table, identity: SinkIdentity) -> None:
        self._table = table
        self._identity = identity

    def begin(self, instant: str, content: bytes) -> str:
        """Make the requested and inflight files, if they are not there; a path that another has taken, or ""."""
        for path in pending_paths(instant):
            if not self._table.add(path, content) and self._table.landed(path, content) is not Standing.LANDED:
                return path
        return ""

    def refuse_others(self, timeline: Timeline) -> None:
        """Raises `TargetError` (`ConcurrentWriter`) where a writer that is not ours has begun something: it would roll
        back what it finds begun, ours too."""
        for instant, action in sorted(timeline.pending.items()):
            if LEDGER not in owner_of_pending(self._table, instant):
                message = f"another writer has begun a {action} at instant {instant}, and has not completed it"
                advice = "let it end, or roll it back with Hudi's own tools; this sink shares a table with no other"
                raise TargetError("ConcurrentWriter", message, path="options.path", advice=advice)

    def refuse_foreign_writes(self, timeline: Timeline) -> None:
        """Raises `TargetError` (`ConcurrentWriter`) where the last write was none of ours. A record of a table with
        buckets has its place by its key; Hudi's own upserts, and its clustering, put it elsewhere."""
        last = timeline.writes[0] if timeline.has_records else ""
        if last and LEDGER not in read_extra(self._table, timeline.path_of(last)):
            message = f"another writer has written to the table: a {timeline.completed[last]} at instant {last}"
            advice = "only sinkjob may write to a table of `write: upsert`, also between runs; make the table anew"
            raise TargetError("ConcurrentWriter", message, path="options.path", advice=advice)

    def take_back(self, instant: str) -> None:
        """Remove the files of an instant that has begun, if it is ours and not completed."""
        if self._is_ours(instant) and self._table.read(commit_path(instant)) is None:
            for path in reversed(pending_paths(instant)):
                self._table.delete(path)

    def roll_back(self, instant: str, paths: Sequence[str]) -> None:
        """The same, and the data files that were published for it. Nobody can complete it any more."""
        if self._table.read(commit_path(instant)) is None:
            for path in paths:
                self._table.delete(path)
            self.take_back(instant)

    def recover(self, over: Callable[[tuple[int, int]], bool]) -> None:
        """Roll back our instants whose (checkpoint, epoch) is over."""
        for instant in Timeline.read(self._table).pending:
            owner = owner_of_pending(self._table, instant)
            if self._owns(owner) and over((int(owner[CHECKPOINT]), int(owner[EPOCH]))):
                self.roll_back(instant, self._published(instant))

    def _published(self, instant: str) -> list[str]:
        """The data files that an instant would have shown."""
        for path in pending_paths(instant):
            document = self._table.read(path)
            if document is not None:
                stats = json.loads(document.data)["partitionToWriteStats"]
                return [stat["path"] for some in stats.values() for stat in some]
        return []

    def _is_ours(self, instant: str) -> bool:
        return self._owns(owner_of_pending(self._table, instant))

    def _owns(self, owner: object) -> bool:
        assert isinstance(owner, dict)
        return owner.get(LEDGER) == self._identity.ledger_id and owner.get(SINK) == self._identity.sink
