"""`write: overwritePartitions`: what lies in the partitions that a checkpoint writes to goes, with its delete files.

Called by `contents` for each attempt: which files those are is read from the very snapshot that the commit requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.manifests import Paths, open_writer

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table


def replace_partitions(
    paths: Paths, table: Table, branch: str, added: Sequence[DataFile]
) -> tuple[list[ManifestFile], list[DataFile]]:
    """(manifests that stay or were written anew without those files, the files that go).

    A partition is named by its spec, too: files of an older partitioning of the table stay.
    """
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    head = head_of(table.metadata, branch)
    targets = {(item.spec_id, item.partition) for item in added}
    specs = {spec for spec, _ in targets}
    kept: list[ManifestFile] = []
    removed: list[DataFile] = []
    for number, manifest in enumerate([] if head is None else head.manifests(table.io)):
        entries = manifest.fetch_manifest_entry(table.io) if manifest.partition_spec_id in specs else []
        gone = [entry for entry in entries if (manifest.partition_spec_id, entry.data_file.partition) in targets]
        if not gone:
            kept.append(manifest)
            continue
        removed += [entry.data_file for entry in gone]
        deletes = manifest.content == ManifestContent.DELETES
        with open_writer(paths, table, f"r{number}", manifest.partition_spec_id, deletes) as writer:
            for entry in entries:
                is_gone = (manifest.partition_spec_id, entry.data_file.partition) in targets
                assert entry.status != ManifestEntryStatus.DELETED, "left out by the reader"
                (writer.delete if is_gone else writer.existing)(entry)
        kept.append(writer.to_manifest_file())
    return kept, removed
