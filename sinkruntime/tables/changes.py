"""Changes of rows with a key: which of them count within a checkpoint, and which of them delete.

Called by the writers of sinks that upsert. Pure: it sees Arrow batches, and knows no table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.errors import TargetError

#: What `deleteWhen` may say, for the descriptions of options.
CONDITIONS = "`column = 'text'`, `column = 7`, `column IN ('a', 'b')`, or the name of a boolean column"

_NAME = r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))"
_VALUE = r"(?:'(?:[^']|'')*'|-?\d+|true|false)"
_CONDITION = re.compile(
    rf"\s*{_NAME}\s*(?:=\s*(?P<one>{_VALUE})|IN\s*\(\s*(?P<many>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\))?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows delete: those whose `column` has one of `values`."""

    column: str
    values: tuple[str | int | bool, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, with what would be right, for anything but `CONDITIONS`."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(f"cannot read the condition; expected {CONDITIONS}")
        written = found["one"] or found["many"]
        values = (True,) if written is None else tuple(_value(item) for item in re.findall(_VALUE, written, re.I))
        return cls(found["quoted"] or found["plain"], values)

    def holds(self, batch: pa.RecordBatch) -> Any:
        """A boolean for each row; false where the column is null."""
        column = batch.column(self.column)
        return pc.is_in(column, value_set=self.of_type(column.type))

    def of_type(self, kind: pa.DataType) -> Any:
        """The values as Arrow has them in such a column; raises `pa.ArrowException` where they cannot be."""
        values: list[Any] = list(self.values)
        return pa.array(values).cast(kind)

    def check(self, kind: pa.DataType) -> None:
        """Raises `TargetError` unless a column of this type can have the values."""
        message = f"`{self.column}` is {kind}, and cannot be {', '.join(map(repr, self.values))}"
        problem = TargetError("SchemaMismatch", message, path="options.deleteWhen")
        # Arrow would make the text `true` of a boolean: the name of a text column alone would never delete.
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if is_text and any(isinstance(value, bool) for value in self.values):
            raise problem
        try:
            self.of_type(kind)
        except pa.ArrowException as error:
            raise problem from error


def _value(written: str) -> str | int | bool:
    if written.startswith("'"):
        return written[1:-1].replace("''", "'")
    lowered = written.lower()
    return lowered == "true" if lowered in ("true", "false") else int(written)


@dataclass(frozen=True, slots=True)
class Changes:
    """How rows change a table: by `key`; of several rows with one key in a checkpoint the last by `order_by` counts,
    and of equal ones the one that came last; it deletes where `delete_when` holds."""

    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    delete_when: Condition | None = None

    def check(self, rows: pa.Schema) -> None:
        """Raises `TargetError` unless the rows have these columns, in types that can do this."""
        named = [("key", name) for name in self.key] + [("orderBy", name) for name in self.order_by]
        if self.delete_when is not None:
            named.append(("deleteWhen", self.delete_when.column))
        for option, name in named:
            if name not in rows.names:
                message = f"there is no column `{name}`; the rows have {', '.join(rows.names)}"
                raise TargetError("SchemaMismatch", message, path=f"options.{option}")
            kind = rows.field(name).type
            if pa.types.is_nested(kind) or (option == "key" and pa.types.is_floating(kind)):
                message = f"`{name}` is {kind}, which does not compare; expected a plain type"
                raise TargetError("SchemaMismatch", message, path=f"options.{option}")
        if self.delete_when is not None:
            self.delete_when.check(rows.field(self.delete_when.column).type)

    def check_keys(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Raises `TargetError` (`NullInKey`) where a row has no value in a column of the key."""
        for name in self.key:
            count = rows.column(name).null_count
            if count:
                message = f"column `{name}` of the key: {count} rows of a batch have no value"
                raise TargetError("NullInKey", message, path="options.key")

    def last(self, rows: pa.Table) -> pa.Table:
        """One row for each key, in the order in which these rows came. Needs memory for all of `rows`."""
        if rows.num_rows < 2:
            return rows
        columns = comparable([rows.column(name) for name in self.order_by])
        columns.append(pa.chunked_array([pa.array(range(rows.num_rows), pa.int64())]))
        numbered = pa.table(columns, names=[*(f"by_{index}" for index in range(len(columns) - 1)), "number"])
        # Newest first, where nulls are last, and of equal ones the one that came last is first.
        order = pc.sort_indices(numbered, sort_keys=[(name, "descending") for name in numbered.column_names])
        names = [f"key_{index}" for index in range(len(self.key))]
        keyed = rows.select(list(self.key)).take(order).rename_columns(names)
        ranked = keyed.append_column("rank", numbered.column("number"))
        ranks = ranked.group_by(names, use_threads=False).aggregate([("rank", "min")]).column("rank_min")
        if len(ranks) == rows.num_rows:
            return rows
        kept = order.take(ranks.combine_chunks())
        return rows.take(kept.take(pc.sort_indices(kept)))

    def deletes(self, rows: pa.RecordBatch) -> Any:
        """A boolean for each row: whether it deletes the row of its key."""
        if self.delete_when is None:
            return pa.array([False] * rows.num_rows, pa.bool_())
        return self.delete_when.holds(rows)


def comparable(columns: Sequence[Any]) -> list[Any]:
    """Columns to sort by, as Spark orders their values: NaN is the greatest number, and Arrow would have it the last
    one whichever way it sorts."""
    found: list[Any] = []
    for column in columns:
        found += [pc.is_nan(column), column] if pa.types.is_floating(column.type) else [column]
    return found
