"""Manifests of added files: one per partition spec and content, data and deletes apart.

Used by `snapshot`. What pyiceberg's public writer lacks, manifests of delete files, is added here; its version is
pinned for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table


class Paths(Protocol):
    """Gives names to metadata files."""

    snapshot_id: int

    def new_path(self, name: str) -> str: ...


def write_added(
    paths: Paths, table: Table, added: Sequence[DataFile], sequence: int | None = None
) -> list[ManifestFile]:
    """Manifests that add the files; `sequence`: that of their rows, None: the snapshot's."""
    groups: dict[tuple[int, bool], list[DataFile]] = {}
    for item in added:
        groups.setdefault((item.spec_id, int(item.content) != 0), []).append(item)
    return [_write_group(paths, table, f"m{number}", group, sequence) for number, group in enumerate(groups.values())]


def _write_group(
    paths: Paths, table: Table, name: str, group: Sequence[DataFile], sequence: int | None
) -> ManifestFile:
    """One manifest of files of one spec and content."""
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

    with open_writer(paths, table, name, group[0].spec_id, int(group[0].content) != 0) as writer:
        for item in group:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=paths.snapshot_id,
                sequence_number=sequence,
                file_sequence_number=None,
                data_file=item,
            )
            writer.add(entry)
    made: ManifestFile = writer.to_manifest_file()
    return made


def open_writer(paths: Paths, table: Table, name: str, spec_id: int, deletes: bool) -> Any:
    """A writer of one manifest; use it as a context, and never leave it empty."""
    from pyiceberg.manifest import write_manifest

    metadata = table.metadata
    codec: Any = metadata.properties.get("write.avro.compression-codec", "gzip")
    spec, output = metadata.specs()[spec_id], table.io.new_output(paths.new_path(name))
    if deletes:
        from sinkruntime.sinks.iceberg.delete_manifests import DeleteManifestWriter

        return DeleteManifestWriter(spec, metadata.schema(), output, paths.snapshot_id, codec)
    return write_manifest(metadata.format_version, spec, metadata.schema(), output, paths.snapshot_id, codec)
