"""Statistics of a data file's columns, gathered batch by batch, as manifests hold them.

Used by the writer. As Paimon does by default, texts are cut to 16 characters, the largest one rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.sinks.paimon.binary_row import encode
from sinkruntime.sinks.paimon.manifests import packed
from sinkruntime.sinks.paimon.types import Field

#: Columns with statistics: committables stay small however wide the table is.
COLUMNS_MAX = 32
#: `metadata.stats-mode: truncate(16)`, Paimon's default.
TEXT_MAX = 16
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Statistics:
    """Of one file."""

    def __init__(self, fields: Sequence[Field]) -> None:
        plain = [field for field in fields if _has_order(field.arrow)][:COLUMNS_MAX]
        self._fields = plain
        self._every = len(plain) == len(fields)
        self._least: list[Any] = [None] * len(plain)
        self._most: list[Any] = [None] * len(plain)
        self._nulls = [0] * len(plain)
        self._unordered: set[int] = set()

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """What one batch adds."""
        for index, field in enumerate(self._fields):
            column = rows.column(field.name)
            self._nulls[index] += column.null_count
            try:
                found: Any = pc.min_max(column).as_py()
            except (ValueError, OverflowError):  # a date that Python does not have
                self._unordered.add(index)
                continue
            least, most = found["min"], found["max"]
            if pa.types.is_floating(field.arrow):
                if pc.any(pc.is_nan(column)).as_py():
                    self._unordered.add(index)
                least, most = _zero(least, -0.0), _zero(most, 0.0)
            if least is not None:
                self._least[index] = _pick(min, self._least[index], least)
                self._most[index] = _pick(max, self._most[index], most)

    def columns(self) -> list[str] | None:
        """The columns that they are of; None: all."""
        return None if self._every else [field.name for field in self._fields]

    def packed(self) -> list[Any]:
        """[least values, largest values, numbers of nulls], the first two as packed binary rows."""
        least = [self._bound(index, self._least[index], up=False) for index in range(len(self._fields))]
        most = [self._bound(index, self._most[index], up=True) for index in range(len(self._fields))]
        return [packed(encode(least, self._fields)), packed(encode(most, self._fields)), self._nulls]

    def _bound(self, index: int, value: Any, up: bool) -> Any:
        if index in self._unordered:
            return None
        if isinstance(value, str) and len(value) > TEXT_MAX:
            return _rounded_up(value[:TEXT_MAX]) if up else value[:TEXT_MAX]
        if isinstance(value, bytes) and len(value) > TEXT_MAX:
            return None if up else value[:TEXT_MAX]
        return value


def _has_order(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_map(kind))


def _pick(which: Any, left: Any, right: Any) -> Any:
    if left is None:
        return right
    if isinstance(left, str):
        return which(left, right, key=str.encode)
    return which(left, right)


def _zero(value: Any, zero: float) -> Any:
    """Both zeros are one for Arrow, and two for Paimon."""
    return zero if value == 0 or (value is not None and math.isnan(value)) else value


def _rounded_up(text: str) -> str | None:
    """The least text of this length or less that is above all that begin with `text`; None: there is none."""
    for end in range(len(text), 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CHARACTER:
            return text[: end - 1] + chr(following)
    return None
