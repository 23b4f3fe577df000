"""Manifests without some of their files: for `write: overwritePartitions`, and for files that were written anew.

Called for each attempt: which files there are is read from the very snapshot that the commit requires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.manifests import Paths, open_writer

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table


def replace_partitions(
    paths: Paths, table: Table, branch: str, added: Sequence[DataFile]
) -> tuple[list[ManifestFile], list[DataFile]]:
    """`without` what lies in the partitions of the added files, and their delete files.

    A partition is named by its spec, too: files of an older partitioning of the table stay.
    """
    targets = {(item.spec_id, item.partition) for item in added}
    specs = {spec for spec, _ in targets}
    return without(paths, table, branch, specs, lambda item: (item.spec_id, item.partition) in targets)


def without(
    paths: Paths, table: Table, branch: str, specs: Collection[int], is_gone: Callable[[DataFile], bool]
) -> tuple[list[ManifestFile], list[DataFile]]:
    """(the branch's manifests, those with files that go written anew without them; the files that go).

    Only manifests of these partition specs are read.
    """
    from pyiceberg.manifest import ManifestContent

    head = head_of(table.metadata, branch)
    kept: list[ManifestFile] = []
    removed: list[DataFile] = []
    for number, manifest in enumerate([] if head is None else head.manifests(table.io)):
        entries = manifest.fetch_manifest_entry(table.io) if manifest.partition_spec_id in specs else []
        gone = [entry.data_file for entry in entries if is_gone(entry.data_file)]
        if not gone:
            kept.append(manifest)
            continue
        removed += gone
        deletes = manifest.content == ManifestContent.DELETES
        with open_writer(paths, table, f"r{number}", manifest.partition_spec_id, deletes) as writer:
            for entry in entries:
                (writer.delete if is_gone(entry.data_file) else writer.existing)(entry)
        kept.append(writer.to_manifest_file())
    return kept, removed
