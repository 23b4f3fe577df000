"""Staged files as they travel in a committable, and back: all that Iceberg's metadata needs to know of a file.

The writer makes `Item`s from what Parquet's footer holds; the committer turns them into pyiceberg's `DataFile`s and
opens no file. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

#: One staged file: JSON values, see `item_of`.
Item = dict[str, Any]

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_COUNTS = {"sizes": "column_sizes", "values": "value_counts", "nulls": "null_value_counts", "nans": "nan_value_counts"}
_BOUNDS = {"lower": "lower_bounds", "upper": "upper_bounds"}


def item_of(name: str, size_bytes: int, statistics: Mapping[str, Any]) -> Item:
    """A file in a committable. `statistics` as pyiceberg names them; empty ones are left out."""
    item: Item = {"name": name, "size": size_bytes, "rows": statistics["record_count"]}
    for short, long in _COUNTS.items():
        if statistics[long]:
            item[short] = {str(field): count for field, count in statistics[long].items()}
    for short, long in _BOUNDS.items():
        if statistics[long]:
            item[short] = {str(field): base64.b64encode(bound).decode() for field, bound in statistics[long].items()}
    if statistics["split_offsets"]:
        item["splits"] = statistics["split_offsets"]
    return item


class DataFiles:
    """Makes `DataFile`s of items, as pyiceberg writes them into manifests; looks a partitioning up once for all."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._kinds: dict[int, list[Any]] = {}

    def make(self, item: Item, folder: str, spec_id: int) -> DataFile:
        """The file that the item tells of."""
        if spec_id not in self._kinds:
            self._kinds[spec_id] = _partition_kinds(spec_id, self._metadata)
        return _data_file(item, folder, spec_id, self._kinds[spec_id])


def _data_file(item: Item, folder: str, spec_id: int, kinds: Sequence[Any]) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    counts: dict[str, Any] = {
        long: {int(key): value for key, value in item.get(short, {}).items()} for short, long in _COUNTS.items()
    }
    bounds: dict[str, Any] = {
        long: {int(key): base64.b64decode(value) for key, value in item.get(short, {}).items()}
        for short, long in _BOUNDS.items()
    }
    made = DataFile.from_args(
        content=DataFileContent(item.get("content", DATA)),
        file_path=f"{folder}/{item['name']}",
        file_format=FileFormat.PARQUET,
        partition=_partition_record(item.get("partition", ()), kinds),
        record_count=item["rows"],
        file_size_in_bytes=item["size"],
        split_offsets=item.get("splits"),
        equality_ids=item.get("equality"),
        sort_order_id=item.get("order"),
        key_metadata=None,
        **counts,
        **bounds,
    )
    made.spec_id = spec_id
    return made


def partition_values(values: Sequence[Any], spec_id: int, metadata: TableMetadata) -> list[str | None]:
    """Partition values in a committable: Iceberg's own binary form."""
    from pyiceberg.conversions import to_bytes

    kinds = _partition_kinds(spec_id, metadata)
    return [
        None if value is None else base64.b64encode(to_bytes(kind, value)).decode()
        for value, kind in zip(values, kinds, strict=True)
    ]


def _partition_record(texts: Sequence[str | None], kinds: Sequence[Any]) -> Any:
    """The values of `partition_values`, as they stand in a manifest."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.typedef import Record

    values = [
        None if text is None else from_bytes(kind, base64.b64decode(text))
        for text, kind in zip(texts, kinds, strict=True)
    ]
    return Record(*values)


def _partition_kinds(spec_id: int, metadata: TableMetadata) -> list[Any]:
    schema: Schema = metadata.schema()
    spec = metadata.specs()[spec_id]
    return [field.field_type for field in spec.partition_type(schema).fields]
