"""Snapshots that are old enough expire, and the files go that only they referred to.

Called by `maintenance`. What stays: heads of branches and tags, as many newest snapshots of each branch as it or the
options want, all that are young, and of each sink of any job the newest snapshot that proves a checkpoint of it. Files
are removed only after the catalog has taken the snapshots away for certain; what a kill leaves is an orphan.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sinkruntime.sinks.iceberg import evidence, naming
from sinkruntime.sinks.iceberg.snapshot import Conflict, send
from sinkruntime.sinks.iceberg.upkeep import ATTEMPTS_MAX, Work

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

#: In one turn, so that their files can be removed in it, too.
SNAPSHOTS_MAX = 200


def run(work: Work) -> None:
    """One turn; raises `Unknown` where the catalog's answer was lost: then no file is removed."""
    for _ in range(ATTEMPTS_MAX):
        if work.limit.is_over:
            return
        table = work.load()
        gone = expired(table.metadata, work)
        if not gone or table.metadata.properties.get("gc.enabled", "true").lower() == "false":
            return
        files = _only_of(table, gone)
        try:
            _send(table, gone)
        except Conflict:
            continue
        _remove(work, table, files)
        return


def expired(metadata: TableMetadata, work: Work) -> list[Snapshot]:
    """The snapshots that may go, oldest first."""
    told = work.options.maintenance
    kept = {ref.snapshot_id for ref in metadata.refs.values()} | set(_proofs(metadata))
    if metadata.current_snapshot_id is not None:
        kept.add(metadata.current_snapshot_id)
    oldest_ms = (work.now_seconds - told.expire_age.seconds) * 1000
    for name, ref in metadata.refs.items():
        least = max(told.keep_snapshots, ref.min_snapshots_to_keep or 0, _least(metadata))
        youngest_ms = work.now_seconds * 1000 - (ref.max_snapshot_age_ms or 0)
        for number, snapshot in enumerate(evidence.ancestors(metadata, name)):
            if number < least or (ref.max_snapshot_age_ms and snapshot.timestamp_ms >= youngest_ms):
                kept.add(snapshot.snapshot_id)
    old = [item for item in metadata.snapshots if item.timestamp_ms < oldest_ms and item.snapshot_id not in kept]
    return sorted(old, key=lambda item: item.timestamp_ms)[:SNAPSHOTS_MAX]


def _least(metadata: TableMetadata) -> int:
    return int(metadata.properties.get("history.expire.min-snapshots-to-keep", 1))


def _proofs(metadata: TableMetadata) -> Iterable[int]:
    """Of each branch and each (ledger id, sink): the newest snapshot with evidence, and the newest with a fence.

    Once more over all snapshots: where others between have expired, the branch does not lead to it any more.
    """
    everywhere = sorted(metadata.snapshots, key=lambda item: -(item.sequence_number or 0))
    for line in [everywhere, *(evidence.ancestors(metadata, name) for name in metadata.refs)]:
        seen = set()
        for snapshot in line:
            summary = snapshot.summary
            if summary is None or summary.get(naming.LEDGER_ID) is None:
                continue
            whose = summary.get(naming.LEDGER_ID), summary.get(naming.SINK), summary.get(naming.CHECKPOINT) is None
            if whose not in seen:
                seen.add(whose)
                yield snapshot.snapshot_id


def _only_of(table: Table, gone: Iterable[Snapshot]) -> list[str]:
    """Files that no other snapshot refers to: data files, manifests, manifest lists; what refers to a file after it."""
    ids = {snapshot.snapshot_id for snapshot in gone}
    stay: dict[str, ManifestFile] = {}
    leave: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        manifests = leave if snapshot.snapshot_id in ids else stay
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    dying = {path: manifest for path, manifest in leave.items() if path not in stay}
    files = {path for manifest in dying.values() for path in _files(table, manifest)}
    for manifest in stay.values() if files else ():
        files.difference_update(_files(table, manifest))
    return [*sorted(files), *sorted(dying), *(snapshot.manifest_list for snapshot in gone)]


def _files(table: Table, manifest: ManifestFile) -> Iterable[str]:
    return (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _send(table: Table, gone: Iterable[Snapshot]) -> None:
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

    metadata = table.metadata
    requirements: list[Any] = [AssertTableUUID(uuid=metadata.table_uuid)]
    requirements += [AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items()]
    send(table, requirements, [RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id for snapshot in gone])])


def _remove(work: Work, table: Table, files: Iterable[str]) -> None:
    for path in files:
        if work.limit.is_over:
            log.info(
                "not enough time to remove all files of expired snapshots of %s: they are orphans", work.options.table
            )
            return
        # One that cannot be removed now is an orphan.
        with contextlib.suppress(OSError):
            table.io.delete(path)
