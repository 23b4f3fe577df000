"""Small manifests of a branch merged into few, once so many have piled up. Files and rows stay as they are.

Called by `maintenance`. Each entry keeps the snapshot and the sequence numbers that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkruntime.sinks.iceberg import naming
from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.manifests import Paths, open_writer
from sinkruntime.sinks.iceberg.snapshot import Content, Draft
from sinkruntime.sinks.iceberg.upkeep import Work, files_of

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

#: Iceberg's default of `commit.manifest.target-size-bytes`.
TARGET_BYTES = 8 * 1024**2
#: Files of all manifests that are merged in one turn: what is held in memory, manifest by manifest, is less.
FILES_MAX = 200_000


def run(work: Work) -> None:
    """Merge what has piled up; the rest is for the next turn."""
    packs_of = work.options.maintenance.manifests_min

    def attempt(table: Table, draft: Draft) -> Content | None:
        head = head_of(table.metadata, work.branch)
        manifests = [] if head is None else head.manifests(table.io)
        target = int(table.metadata.properties.get("commit.manifest.target-size-bytes", TARGET_BYTES))
        packs = _packs(manifests, target, packs_of)
        if not packs:
            return None
        merged = [_merge(draft, table, f"p{number}", pack) for number, pack in enumerate(packs)]
        gone = {manifest.manifest_path for pack in packs for manifest in pack}
        kept = [manifest for manifest in manifests if manifest.manifest_path not in gone]
        summary = {
            naming.UPKEEP: "manifests",
            "manifests-created": str(len(merged)),
            "manifests-kept": str(len(kept)),
            "manifests-replaced": str(len(gone)),
        }
        return Content(kept=[*merged, *kept], summary=summary)

    work.replace(attempt)


def _packs(manifests: Sequence[ManifestFile], target: int, least: int) -> list[list[ManifestFile]]:
    """Small manifests of one spec and content, in order, each pack up to the target's size."""
    groups: dict[tuple[int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if manifest.manifest_length < target / 2 and files_of(manifest):
            groups.setdefault((manifest.partition_spec_id, int(manifest.content)), []).append(manifest)
    packs: list[list[ManifestFile]] = []
    left = FILES_MAX
    for group in groups.values():
        if len(group) < least:
            continue
        pack: list[ManifestFile] = []
        size = 0
        for manifest in group:
            if size >= target or (pack and files_of(manifest) > left):
                packs.append(pack)
                pack, size = [], 0
            if files_of(manifest) > left:
                break
            pack.append(manifest)
            size += manifest.manifest_length
            left -= files_of(manifest)
        packs.append(pack)
    return [pack for pack in packs if len(pack) > 1]


def _merge(paths: Paths, table: Table, name: str, pack: Sequence[ManifestFile]) -> ManifestFile:
    first = pack[0]
    with open_writer(paths, table, name, first.partition_spec_id, int(first.content) != 0) as writer:
        for manifest in pack:
            for entry in manifest.fetch_manifest_entry(table.io):
                writer.existing(entry)
    made: ManifestFile = writer.to_manifest_file()
    return made
