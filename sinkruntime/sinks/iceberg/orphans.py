"""Files below a table that no snapshot refers to: removed once they are old enough, unless they may be pending.

Called by `maintenance`, and by `rewrite` for what its own killed turns have left. Files are compared by their names
alone, which are unique: how a location is written (`s3a://`, a link) never makes a file an orphan. Never touches what
another sinkjob has staged, nor a checkpoint of this one that the table does not prove yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sinkruntime.sinks.iceberg import evidence, naming
from sinkruntime.sinks.iceberg.staging import Folders
from sinkruntime.sinks.iceberg.upkeep import Work

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: What Iceberg's writers leave; other files below a table are left alone.
KINDS = (".parquet", ".avro", ".orc", ".metadata.json", ".puffin", ".stats")
#: Removed in one turn.
FILES_MAX = 100_000


def run(work: Work) -> None:
    """Below the table's location; data that is kept elsewhere (`write.data.path`) may be shared, and is left alone."""
    table = work.load()
    _remove(work, table, table.location())


def remove_leftovers(work: Work, table: Table) -> None:
    """What maintenance itself has left."""
    provider = table.location_provider()
    for place in (provider.data_path, provider.metadata_path):
        _remove(work, table, f"{place}/{naming.upkeep_folder(work.identity)}")


def _remove(work: Work, table: Table, root: str) -> None:
    if table.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return
    folders = Folders(table.io, root)
    old = list(_old(work, folders))
    if not old:
        return
    table = work.load()  # after the listing: what was committed until then is known
    known = _known(work, table)
    proved = evidence.read_marker(table.metadata, work.identity, work.branch).checkpoint
    for path in old:
        if known is None or work.limit.is_over:
            return
        parents, _, name = path.rpartition("/")
        origin = naming.origin_of(parents.rpartition("/")[2])
        if name not in known and (origin is None or origin[0] <= proved):
            folders.delete(path)


def _old(work: Work, folders: Folders) -> Iterator[str]:
    """Files that are old enough, without those in folders of other sinks."""
    mine = naming.owner_folder("", work.identity).strip("/")
    before_seconds = work.now_seconds - work.options.maintenance.orphan_age.seconds
    found, waiting = 0, [""]
    while waiting and not work.limit.is_over:
        files, children = folders.look(waiting.pop())
        waiting += [path for path in children if _may_enter(path, mine)]
        for path, changed_seconds in files:
            if changed_seconds < before_seconds and path.endswith(KINDS) and found < FILES_MAX:
                found += 1
                yield path


def _may_enter(path: str, mine: str) -> bool:
    name = path.rpartition("/")[2]
    return not name.startswith("sinkjob-") or name == mine


def _known(work: Work, table: Table) -> set[str] | None:
    """Names of all files that the table's metadata names; None: there was not enough time."""
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths |= {file.statistics_path for file in [*metadata.statistics, *metadata.partition_statistics]}
    manifests = {}
    for snapshot in metadata.snapshots:
        paths.add(snapshot.manifest_list)
        if work.limit.is_over:
            return None
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        if work.limit.is_over:
            return None
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        paths |= {path, *(entry.data_file.file_path for entry in entries)}
    return {path.rpartition("/")[2] for path in paths}
