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
#: Looked at in one turn.
FILES_MAX = 500_000


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
    old = {_name(path): path for path in _old(work, folders)}
    if not old:
        return
    table = work.load()  # after the listing: what was committed until then is known
    proved = evidence.read_marker(table.metadata, work.identity, work.branch).checkpoint
    for name in _named(work, table):
        old.pop(name, None)
    for path in old.values():
        if work.limit.is_over:  # also while the names were read: then some are missing
            return
        origin = naming.origin_of(_name(path.rpartition("/")[0]))
        if origin is None or origin[0] <= proved:
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
    name = _name(path)
    return not name.startswith("sinkjob-") or name == mine


def _named(work: Work, table: Table) -> Iterator[str]:
    """Names of all files that the table's metadata names, manifest by manifest; ends early when the time is over."""
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths |= {file.statistics_path for file in [*metadata.statistics, *metadata.partition_statistics]}
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in [] if work.limit.is_over else snapshot.manifests(table.io):
            if manifest.manifest_path in seen or work.limit.is_over:
                continue
            seen.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            yield from (_name(entry.data_file.file_path) for entry in entries)
    yield from map(_name, paths | seen)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
