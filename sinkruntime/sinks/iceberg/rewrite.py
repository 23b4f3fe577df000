"""Small files of a partition rewritten into few, with the deletes that reach them applied.

Called by `maintenance`. The new files take the sequence number of the snapshot that was read, so that deletes which
others commit meanwhile still reach their rows. Files of former partitionings are left alone.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.sinks.iceberg import columns, files, naming, orphans
from sinkruntime.sinks.iceberg.equality import EqualityDeletes, Untouchable
from sinkruntime.sinks.iceberg.evidence import head_of
from sinkruntime.sinks.iceberg.parquet import ParquetFile, Part
from sinkruntime.sinks.iceberg.replacement import without
from sinkruntime.sinks.iceberg.snapshot import Content, Draft, Unknown
from sinkruntime.sinks.iceberg.upkeep import Work, files_of, live
from sinkruntime.sinks.iceberg.writer import file_bytes
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

#: A file below this part of the target size is small; so many of them are worth a rewrite, as Iceberg's own has it.
SMALL_PART = 0.75
FILES_MIN = 5
#: A file that so many delete files reach is written anew, whatever its size.
DELETES_MIN = 10
#: Of a branch; what is known of them is held in memory, a few KB each.
FILES_MAX = 100_000
#: Read in one turn; the rest is for the next.
TURN_BYTES_MAX = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition that become fewer, and the deletes that may reach them."""

    partition: Any
    data: tuple[ManifestEntry, ...]
    equality: tuple[ManifestEntry, ...]
    positions: tuple[ManifestEntry, ...]


@dataclass(slots=True)
class Made:
    """What a turn has written, and instead of what."""

    sequence: int
    files: list[ParquetFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)

    def discard(self, first: int = 0) -> None:
        for file in self.files[first:]:
            file.discard()


def run(work: Work) -> None:
    """Rewrite what is worth it and fits into the time; raises `Unknown` where the commit's answer was lost."""
    table = work.load()
    head = head_of(table.metadata, work.branch)
    if head is None:
        return
    count = sum(files_of(manifest) for manifest in head.manifests(table.io))
    if count > FILES_MAX:
        log.warning("table %s has %d files, more than are looked through here", work.options.table, count)
        return
    orphans.remove_leftovers(work, table)
    made = Made(head.sequence_number or 0)
    try:
        _write(work, table, made)
        done = bool(made.replaced) and work.replace(lambda now, draft: _content(work, table, made, now, draft))
    except Unknown:
        raise
    except BaseException:
        made.discard()
        raise
    if not done:
        made.discard()


def plan(table: Table, branch: str, target: int) -> Iterator[Group]:
    """The groups that are worth it, by the branch as it is."""
    spec = table.metadata.default_spec_id
    is_global = not table.metadata.spec().fields
    groups: dict[Any, tuple[list[ManifestEntry], list[ManifestEntry], list[ManifestEntry]]] = {}
    entries = live(table, branch)
    if any(int(entry.data_file.content) and _is_everywhere(table, entry) for entry in entries) and not is_global:
        return  # deletes of a former time without partitions reach all of them
    for entry in entries:
        if entry.data_file.spec_id == spec:
            groups.setdefault(entry.data_file.partition, ([], [], []))[_slot(entry)].append(entry)
    left = TURN_BYTES_MAX
    for partition, (data, positions, equality) in groups.items():
        small = [entry for entry in data if _is_small(entry, target)]
        burdened = [entry for entry in data if not _is_small(entry, target) and _burden(entry, equality) >= DELETES_MIN]
        chosen = [*small, *burdened]
        left -= sum(entry.data_file.file_size_in_bytes for entry in chosen)
        if (len(small) >= FILES_MIN or burdened) and left >= 0:
            yield Group(partition, tuple(chosen), tuple(equality), tuple(positions))


def _is_small(entry: ManifestEntry, target: int) -> bool:
    return bool(entry.data_file.file_size_in_bytes < target * SMALL_PART)


def _burden(data: ManifestEntry, deletes: Sequence[ManifestEntry]) -> int:
    """How many of a partition's equality deletes reach a data file."""
    return sum((delete.sequence_number or 0) > (data.sequence_number or 0) for delete in deletes)


def _slot(entry: ManifestEntry) -> int:
    return int(entry.data_file.content)


def _is_everywhere(table: Table, delete: ManifestEntry) -> bool:
    return not table.metadata.specs()[delete.data_file.spec_id].fields


def _write(work: Work, table: Table, made: Made) -> None:
    target = file_bytes(work.options, table)
    for group in plan(table, work.branch, target):
        if work.limit.is_over:
            return
        files_before, added_before = len(made.files), len(made.added)
        try:
            complete = _rewrite(work, table, group, made, target)
        except Untouchable as why:
            log.info("files of table %s are not rewritten: %s", work.options.table, why)
            complete = False
        if complete:
            made.replaced |= {entry.data_file.file_path for entry in group.data}
        else:
            made.discard(files_before)
            del made.files[files_before:], made.added[added_before:]


def _rewrite(work: Work, table: Table, group: Group, made: Made, target: int) -> bool:
    """Write a group's rows; False: there was not enough time."""
    deletes = EqualityDeletes(group.equality, table.metadata.schema(), lambda item, names: _read(table, item, names))
    schema = columns.arrow_schema(table.metadata.schema())
    open_file: ParquetFile | None = None
    for entry in sorted(group.data, key=lambda entry: entry.sequence_number or 0):
        if work.limit.is_over:
            return False
        sequence = entry.sequence_number or 0
        positions = [item.data_file for item in group.positions if (item.sequence_number or 0) >= sequence]
        for batch in _read(table, entry.data_file, None, positions):
            rows = deletes.apply(batch, sequence)
            if not rows.num_rows:
                continue
            if open_file is None:
                open_file = _open(work, table, made, schema)
            open_file.write(schemas.conform(rows, schema))
            if open_file.size_bytes >= target:
                _finish(table, group, made, open_file)
                open_file = None
    if open_file is not None:
        _finish(table, group, made, open_file)
    return True


def _open(work: Work, table: Table, made: Made, schema: pa.Schema) -> ParquetFile:
    folder = _folder(work, table)
    part = Part(table.metadata.schema(), is_sorted=True)
    file = ParquetFile(table.io, f"{folder}/{uuid.uuid4().hex}.parquet", schema, table.metadata, part)
    made.files.append(file)
    return file


def _folder(work: Work, table: Table) -> str:
    return f"{table.location_provider().data_path}/{naming.upkeep_folder(work.identity)}"


def _finish(table: Table, group: Group, made: Made, file: ParquetFile) -> None:
    item, spec = file.finish(), table.metadata.default_spec_id
    values = [group.partition[index] for index in range(len(group.partition))]
    item["partition"] = files.partition_values(values, spec, table.metadata)
    folder, _, item["name"] = file.location.rpartition("/")
    made.added.append(files.DataFiles(table.metadata).make(item, folder, spec))


def _read(
    table: Table, item: DataFile, names: list[str] | None, positions: Sequence[DataFile] = ()
) -> Iterable[pa.RecordBatch]:
    """A file's rows in the table's columns, batch by batch: as pyiceberg's scan has them, which holds all at once."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
    from pyiceberg.table import FileScanTask

    schema = table.metadata.schema()
    task = FileScanTask(item, set(positions))
    scan = ArrowScan(table.metadata, table.io, schema if names is None else schema.select(*names), AlwaysTrue())
    return scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(table.io, [task]))


def _content(work: Work, seen: Table, made: Made, now: Table, draft: Draft) -> Content | None:
    """The snapshot; None where what others did meanwhile leaves no use in it, or no certainty."""
    before, after = seen.metadata, now.metadata
    if (before.table_uuid, before.current_schema_id, before.default_spec_id) != (
        after.table_uuid, after.current_schema_id, after.default_spec_id,
    ):  # fmt: skip
        return None
    entries = live(now, work.branch)
    there = {entry.data_file.file_path for entry in entries}
    if not made.replaced <= there or any(_is_new_position(entry, made) for entry in entries):
        return None
    gone = made.replaced | _spent(now, entries, made)
    kept, removed = without(draft, now, work.branch, {before.default_spec_id}, lambda item: item.file_path in gone)
    summary = {naming.UPKEEP: "rewrite"}
    return Content(added=made.added, kept=kept, removed=removed, summary=summary, sequence=made.sequence)


def _is_new_position(entry: ManifestEntry, made: Made) -> bool:
    """Positions in files that are gone would be lost."""
    return int(entry.data_file.content) == files.POSITION_DELETES and (entry.sequence_number or 0) > made.sequence


def _spent(table: Table, entries: Sequence[ManifestEntry], made: Made) -> set[str]:
    """Equality deletes that no file is left for. Those without a partition reach files of every partitioning."""
    spec, everywhere = table.metadata.default_spec_id, not table.metadata.spec().fields
    oldest: dict[Any, int] = {}
    for entry in entries:
        item = entry.data_file
        if int(item.content) == files.DATA and item.file_path not in made.replaced:
            where = () if everywhere else (item.spec_id, item.partition)
            oldest[where] = min(entry.sequence_number or 0, oldest.get(where, entry.sequence_number or 0))
    return {
        entry.data_file.file_path
        for entry in entries
        if int(entry.data_file.content) == files.EQUALITY_DELETES
        and entry.data_file.spec_id == spec
        and (sequence := entry.sequence_number or 0) <= made.sequence
        and oldest.get(() if everywhere else (spec, entry.data_file.partition), sequence) >= sequence
    }
