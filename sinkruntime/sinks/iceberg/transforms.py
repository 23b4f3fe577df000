"""`day(at)`, `bucket(16, id)`, `carrier desc`: how the manifest writes partitioning and sort orders.

Used by the options, which refuse what cannot be read, by whatever creates a table, and by the distribution. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sinkruntime.errors import TargetError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

#: By name: whether it takes a number, and what a partition field's name gets, as Iceberg's libraries name them.
KNOWN = {
    "identity": (False, ""),
    "year": (False, "_year"),
    "month": (False, "_month"),
    "day": (False, "_day"),
    "hour": (False, "_hour"),
    "void": (False, "_null"),
    "bucket": (True, "_bucket"),
    "truncate": (True, "_trunc"),
}
EXPECTED = "a column, or year(c), month(c), day(c), hour(c), bucket(16, c), truncate(4, c), void(c)"
_TERM = re.compile(
    r"\s*(?:(?P<name>\w+)\s*\(\s*(?:(?P<number>\d{1,9})\s*,)?\s*(?P<inner>[^(),]+?)\s*\)|(?P<plain>[^(),]+?))\s*"
)
_ORDER = re.compile(r"(?P<term>.+?)(?:\s+(?P<way>asc|desc))?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Term:
    """One transform of one column."""

    name: str
    number: int | None
    column: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, with what would be right."""
        found = _TERM.fullmatch(text)
        if found is None:
            raise ValueError(f"expected {EXPECTED}")
        if found["plain"]:
            return cls("identity", None, found["plain"])
        name = found["name"].lower()
        name = name.removesuffix("s") if name.removesuffix("s") in KNOWN else name
        number = None if found["number"] is None else int(found["number"])
        if name not in KNOWN or KNOWN[name][0] != (number is not None) or number == 0:
            raise ValueError(f"expected {EXPECTED}")
        return cls(name, number, found["inner"])

    @property
    def text(self) -> str:
        """As Iceberg writes it: `bucket[16]`."""
        return self.name if self.number is None else f"{self.name}[{self.number}]"


def parse_order(text: str) -> tuple[Term, bool]:
    """A sort order's term, and whether it descends. Raises ValueError."""
    found = _ORDER.fullmatch(text)
    if found is None:
        raise ValueError(f"expected {EXPECTED}, with `desc` or nothing behind it")
    return Term.parse(found["term"]), (found["way"] or "asc").lower() == "desc"


def partition_spec(terms: tuple[str, ...], schema: Schema) -> PartitionSpec:
    """The partitioning of a table that is created. Raises `TargetError` for a column that is not there or unfit."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    fields = []
    for number, text in enumerate(terms):
        term = Term.parse(text)
        source, transform = _bound(term, schema, "options.partitionBy")
        name = f"{term.column}{KNOWN[term.name][1]}"
        fields.append(PartitionField(source_id=source, field_id=1000 + number, transform=transform, name=name))
    return PartitionSpec(*fields)


def sort_order(terms: tuple[str, ...], schema: Schema) -> SortOrder:
    """The sort order of a table that is created; nulls first, where it descends last, as Spark has them."""
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder

    fields = []
    for text in terms:
        term, descends = parse_order(text)
        source, transform = _bound(term, schema, "options.sortBy")
        direction = SortDirection.DESC if descends else SortDirection.ASC
        nulls = NullOrder.NULLS_LAST if descends else NullOrder.NULLS_FIRST
        fields.append(SortField(source_id=source, transform=transform, direction=direction, null_order=nulls))
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def spark_expression(transform: str, column: str) -> str:
    """What Spark hashes so that rows of one partition meet. A bucket is Iceberg's own hash: its column stands in."""
    quoted = ".".join(f"`{part}`" for part in column.split("."))
    name, _, number = transform.partition("[")
    width = number.rstrip("]")
    if name in ("year", "month", "day", "hour"):
        return f"date_trunc('{name}', {quoted})"
    return f"substring(cast({quoted} as string), 1, {width})" if name == "truncate" else quoted


def _bound(term: Term, schema: Schema, path: str) -> tuple[int, Any]:
    from pyiceberg.transforms import parse_transform

    try:
        field = schema.find_field(term.column)
    except ValueError as error:
        known = ", ".join(schema.column_names)
        message = f"there is no column `{term.column}`; the rows have {known}"
        raise TargetError("SchemaMismatch", message, path=path) from error
    transform = parse_transform(term.text)
    if not transform.can_transform(field.field_type):
        message = f"`{term.column}` is {field.field_type}, which `{term.name}` does not take"
        raise TargetError("SchemaMismatch", message, path=path)
    return field.field_id, transform
