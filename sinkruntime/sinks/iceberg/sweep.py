"""Removes staged files of this sink that no snapshot refers to, and tells which staged files are gone.

Called by the committer. Before a file is removed the table's own metadata is asked: of the snapshot whose summary has
the checkpoint, or, where there is none, of all snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.iceberg import naming
from sinkruntime.sinks.iceberg.staging import Folders

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def missing(table: Table, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Staged files that are gone: one listing per folder."""
    wanted: dict[str, list[str]] = {}
    for part in parts:
        wanted.setdefault(part["folder"], []).extend(item["name"] for item in part["files"])
    lost = []
    for folder, names in wanted.items():
        root, _, name = folder.rpartition("/")
        there = Folders(table.io, root).files(name)
        lost += [f"{folder}/{file}" for file in names if file not in there]
    return lost


def origins(table: Table, identity: SinkIdentity) -> list[tuple[int, int]]:
    """(checkpoint, epoch) of all folders of this sink."""
    found = [naming.origin_of(name) for name in _folders(table, identity).children()]
    return [origin for origin in found if origin is not None]


def remove(table: Table, identity: SinkIdentity, origin: tuple[int, int], names: Collection[str] | None = None) -> None:
    """Remove what was staged under a checkpoint of an epoch (only `names`, where given) and no snapshot refers to."""
    folder = f"{origin[0]:012d}-{origin[1]}"
    provider = table.location_provider()
    referred: set[str] | None = None
    for place in (provider.data_path, provider.metadata_path):
        root = naming.owner_folder(place, identity)
        folders = Folders(table.io, root)
        found = folders.files(folder)
        if names is not None:
            found &= set(names)
        if found:
            if referred is None:
                referred = _referred(table, identity, origin[0])
            found = {name for name in found if f"{root}/{folder}/{name}" not in referred}
        folders.remove(folder, sorted(found))


def _folders(table: Table, identity: SinkIdentity) -> Folders:
    return Folders(table.io, naming.owner_folder(table.location_provider().data_path, identity))


def _referred(table: Table, identity: SinkIdentity, checkpoint: int) -> set[str]:
    """All files, of data and of metadata, that may be a checkpoint's and that snapshots refer to."""
    metadata = table.metadata
    holders = [snapshot for snapshot in metadata.snapshots if _holds(snapshot, identity, checkpoint)]
    paths = {snapshot.manifest_list for snapshot in metadata.snapshots}
    manifests: dict[str, Any] = {}
    for snapshot in holders or metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if not holders or manifest.added_snapshot_id == snapshot.snapshot_id:
                manifests[manifest.manifest_path] = manifest
    for path, manifest in manifests.items():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        paths |= {path, *(entry.data_file.file_path for entry in entries)}
    return paths


def _holds(snapshot: Snapshot, identity: SinkIdentity, checkpoint: int) -> bool:
    summary = snapshot.summary
    if summary is None or summary.get(naming.LEDGER_ID) != identity.ledger_id:
        return False
    last = summary.get(naming.CHECKPOINT)
    if summary.get(naming.SINK) != identity.sink or last is None:
        return False
    return int(summary.get(naming.FIRST_CHECKPOINT) or last) <= checkpoint <= int(last)
