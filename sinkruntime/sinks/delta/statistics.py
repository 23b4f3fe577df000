"""Statistics of a Parquet file from its footer, as the Delta log holds them in an add action.

Called by the writers when a file is finished, so that no committer opens a data file. Bounds that would not be exact
for every reader are left out: a file without them is read, one with wrong ones would be skipped.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Columns with statistics, from the first: the default of `delta.dataSkippingNumIndexedCols`.
COLUMNS_MAX = 32
#: Longer texts are cut, as Spark does (`DATA_SKIPPING_STRING_PREFIX_LENGTH`).
TEXT_LENGTH_MAX = 32
#: A JSON number is a double to many readers: it holds decimals of so many digits.
DECIMAL_DIGITS_MAX = 15
#: Greater than any character but itself: a cut upper bound ends in it.
LAST_CHARACTER = "\U0010ffff"


def statistics(footer: pq.FileMetaData, schema: pa.Schema, inexact: set[str]) -> dict[str, Any]:
    """`numRecords`, and by column `minValues`, `maxValues`, `nullCount`. `inexact`: columns whose bounds must not be
    said (floats that have a NaN, which Parquet's bounds leave out)."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    positions = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for field in list(schema)[:COLUMNS_MAX]:
        if field.name in positions and not pa.types.is_nested(field.type):
            _column(found, footer, positions[field.name], field, field.name in inexact)
    return found


def _column(found: dict[str, Any], footer: pq.FileMetaData, position: int, field: Any, inexact: bool) -> None:
    parts: list[Any] = [footer.row_group(index).column(position).statistics for index in range(footer.num_row_groups)]
    if any(part is None or not part.has_null_count for part in parts):
        return
    found["nullCount"][field.name] = sum(part.null_count for part in parts)
    filled = [part for part in parts if part.num_values]
    if inexact or not filled or not all(part.has_min_max for part in filled):
        return
    try:
        low = _low(min(part.min for part in filled), field.type)
        high = _high(max(part.max for part in filled), field.type)
    except (ValueError, OverflowError):  # a date that Python does not have
        return
    if low is not None and high is not None:
        found["minValues"][field.name], found["maxValues"][field.name] = low, high


def _low(value: Any, kind: pa.DataType) -> Any:
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else _plain(value, kind)


def _high(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _plain(value, kind, up=True)
    if len(value) <= TEXT_LENGTH_MAX:
        return value
    return None if value[TEXT_LENGTH_MAX] == LAST_CHARACTER else value[:TEXT_LENGTH_MAX] + LAST_CHARACTER


def _plain(value: Any, kind: pa.DataType, up: bool = False) -> Any:
    """The value as JSON has it; None where it cannot be said exactly."""
    if isinstance(value, bool | bytes):
        return None  # Spark has no bounds of these
    if isinstance(value, datetime.datetime):
        return _instant(value, kind, up)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value) if len(value.as_tuple().digits) <= DECIMAL_DIGITS_MAX else None
    if isinstance(value, float):
        return value if value - value == 0 else None  # no infinities: JSON has none
    return value if isinstance(value, int) else None


def _instant(value: datetime.datetime, kind: pa.DataType, up: bool) -> str:
    """In milliseconds, as every reader has them: an upper bound is rounded up."""
    milliseconds = -(-value.microsecond // 1000) if up else value.microsecond // 1000
    rounded = value.replace(microsecond=0, tzinfo=None) + datetime.timedelta(milliseconds=milliseconds)
    text = rounded.isoformat(timespec="milliseconds")
    return f"{text}Z" if getattr(kind, "tz", None) else text
