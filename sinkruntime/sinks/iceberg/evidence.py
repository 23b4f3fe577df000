"""What a table's metadata proves of a sink: the last committed checkpoint, and fences. Pure.

Read by the sink and its committer, from the same metadata whose snapshot the commit then requires. The first proof is
the summary of the newest snapshot of ours among the branch's ancestors; the second, for when that one has expired, is
a table property, which counts only if its snapshot can have been such an ancestor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.iceberg import naming

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Marker:
    """The last checkpoint that the branch proves; zeros: none. `snapshot_id` may have expired."""

    checkpoint: int = 0
    epoch: int = 0
    snapshot_id: int = 0
    sequence: int = 0


def head_of(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The branch's newest snapshot. A branch that is not there yet begins at that of `main`."""
    return metadata.snapshot_by_name(branch) or metadata.current_snapshot()


def ancestors(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """The branch's snapshots, newest first, as far as they have not expired."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = head_of(metadata, branch)
    for _ in range(len(known)):
        if at is None:
            return
        yield at
        at = known.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None


def read_marker(metadata: TableMetadata, identity: SinkIdentity, branch: str) -> Marker:
    """What the branch proves of this sink."""
    oldest = 0
    for snapshot in ancestors(metadata, branch):
        found = _of(snapshot, identity)
        if found is not None:
            return found
        oldest = snapshot.sequence_number or 0
    kept = _kept(metadata, identity, branch)
    # The marker's snapshot must be older than all that are left: otherwise the table was rolled back to before it.
    # (Whether the oldest names a parent says nothing: some expiries take it away, some do not.)
    return kept if kept is not None and kept.sequence < oldest else Marker()


def prove(metadata: TableMetadata, identity: SinkIdentity, branch: str, checkpoint: int) -> str | None:
    """What the branch proves of one checkpoint, for people."""
    for snapshot in ancestors(metadata, branch):
        found = _of(snapshot, identity)
        if found is None or found.checkpoint < checkpoint:
            continue
        summary = snapshot.summary
        first = int((summary and summary.get(naming.FIRST_CHECKPOINT)) or found.checkpoint)
        if first <= checkpoint:
            return f"snapshot {found.snapshot_id} has checkpoint {checkpoint} in its summary, of epoch {found.epoch}"
    marker = read_marker(metadata, identity, branch)
    if marker.checkpoint < checkpoint:
        return None
    return f"the table proves checkpoint {marker.checkpoint} (snapshot {marker.snapshot_id})"


def marker_text(marker: Marker, branch: str) -> str:
    """The marker as a table property."""
    values = {
        "branch": branch,
        "checkpoint": marker.checkpoint,
        "epoch": marker.epoch,
        "snapshot": marker.snapshot_id,
        "sequence": marker.sequence,
    }
    return json.dumps(values, sort_keys=True)


def read_fence(metadata: TableMetadata, identity: SinkIdentity) -> tuple[int, int]:
    """Commits up to this order are turned down."""
    text = metadata.properties.get(naming.fence_property(identity))
    token, count = json.loads(text) if text else (-1, -1)
    return int(token), int(count)


def _of(snapshot: Snapshot, identity: SinkIdentity) -> Marker | None:
    summary = snapshot.summary
    if summary is None:
        return None
    mine = summary.get(naming.LEDGER_ID) == identity.ledger_id and summary.get(naming.SINK) == identity.sink
    if not mine or summary.get(naming.CHECKPOINT) is None:
        return None
    checkpoint, epoch = int(str(summary.get(naming.CHECKPOINT))), int(str(summary.get(naming.EPOCH)))
    return Marker(checkpoint, epoch, snapshot.snapshot_id, snapshot.sequence_number or 0)


def _kept(metadata: TableMetadata, identity: SinkIdentity, branch: str) -> Marker | None:
    text = metadata.properties.get(naming.marker_property(identity))
    if not text:
        return None
    values = json.loads(text)
    if values["branch"] != branch:
        return None
    return Marker(values["checkpoint"], values["epoch"], values["snapshot"], values["sequence"])
