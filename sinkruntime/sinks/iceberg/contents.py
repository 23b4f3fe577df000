"""What a checkpoint's files make of a table, by `write`: the content of the snapshot and its operation.

Called by the committer for each attempt, with the metadata that the attempt is bound to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sinkruntime.sinks.iceberg import files
from sinkruntime.sinks.iceberg.options import Options, Write
from sinkruntime.sinks.iceberg.replacement import replace_partitions
from sinkruntime.sinks.iceberg.snapshot import Content, Draft

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Operation


def may_share(options: Options) -> bool:
    """Whether several checkpoints may go into one snapshot."""
    return options.write is Write.APPEND


def append() -> Operation:
    """Iceberg's word for a snapshot that only adds data."""
    from pyiceberg.table.snapshots import Operation

    return Operation.APPEND


def content_of(
    options: Options, draft: Draft, table: Table, parts: Sequence[Mapping[str, Any]]
) -> tuple[Content, Operation]:
    """The snapshot that these committables make."""
    from pyiceberg.table.snapshots import Operation

    made = files.DataFiles(table.metadata)
    added = [
        made.make(item, part["folder"], item.get("spec", part["spec"])) for part in parts for item in part["files"]
    ]
    if options.write is Write.OVERWRITE_PARTITIONS and added:
        kept, removed = replace_partitions(draft, table, options.branch, added)
        return Content(added=added, kept=kept, removed=removed), Operation.OVERWRITE
    deletes = any(int(item.content) != files.DATA for item in added)
    return Content(added=added), Operation.OVERWRITE if deletes else Operation.APPEND


def proved(content: Content, summary: Mapping[str, str], properties: Mapping[str, str]) -> Content:
    """With the evidence."""
    return replace(content, summary=summary, properties=properties)


def deletes_reach(table: Table, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether staged deletes reach rows of every partitioning that the table knows by now."""
    metadata = table.metadata
    if len(metadata.partition_specs) == 1:
        return True
    specs = {
        item.get("spec", part["spec"])
        for part in parts
        for item in part["files"]
        if item.get("content", files.DATA) != files.DATA
    }
    return not any(metadata.specs()[spec].fields for spec in specs)
