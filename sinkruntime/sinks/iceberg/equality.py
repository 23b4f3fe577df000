"""Equality deletes applied to rows, for a rewrite: which rows a reader of the table would not see.

Used by `rewrite`. A delete reaches rows whose sequence number is lower than its own, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.schema import Schema

#: Keys of one partition that are held in memory.
KEYS_MAX = 5_000_000


class Untouchable(Exception):
    """A group of files that this code does not rewrite, and why. Nothing is wrong with it."""


#: Rows of a delete file, with these columns of the table.
Read = Callable[["DataFile", list[str]], Iterable[pa.RecordBatch]]


class EqualityDeletes:
    """The deletes of some partition: their keys, each with its highest sequence number."""

    def __init__(self, entries: Iterable[ManifestEntry], schema: Schema, read: Read) -> None:
        found: dict[tuple[str, ...], list[pa.Table]] = {}
        count = 0
        for entry in entries:
            names = _columns(entry.data_file, schema)
            count += entry.data_file.record_count
            if count > KEYS_MAX:
                raise Untouchable(f"more than {KEYS_MAX} keys are deleted in one partition")
            for batch in read(entry.data_file, names):
                rows = pa.table([batch.column(name) for name in names], names=names)
                if any(column.null_count for column in rows.columns):
                    raise Untouchable("a key that is deleted has no value")
                sequence: Any = pa.array([entry.sequence_number] * rows.num_rows, pa.int64())
                found.setdefault(tuple(names), []).append(rows.append_column(_SEQUENCE, sequence))
        self._keys = {
            names: pa.concat_tables(parts, promote_options="permissive")
            .group_by(list(names))
            .aggregate([(_SEQUENCE, "max")])
            for names, parts in found.items()
        }

    def apply(self, batch: pa.RecordBatch, sequence: int) -> pa.RecordBatch:
        """The rows that are left of those with this sequence number."""
        for names, keys in self._keys.items():
            rows = pa.table([batch.column(name) for name in names], names=list(names))
            rows = rows.append_column(_ROW, pa.array(range(batch.num_rows), pa.int64()))
            met = rows.join(keys, list(names), join_type="inner")
            hit = met.filter(pc.greater(met.column(f"{_SEQUENCE}_max"), pa.scalar(sequence, pa.int64()))).column(_ROW)
            if len(hit):
                gone = pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=hit)
                batch = batch.filter(pc.invert(gone))
        return batch


_SEQUENCE, _ROW = "__sequence", "__row"


def _columns(item: DataFile, schema: Schema) -> list[str]:
    names = [schema.find_column_name(field) for field in item.equality_ids or ()]
    if not names or any(name is None or "." in name for name in names):
        raise Untouchable("rows are deleted by a column within another, or by one that is gone")
    return [name for name in names if name is not None]
