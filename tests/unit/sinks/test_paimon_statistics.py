"""Statistics of Paimon's data files bound every value, and say nothing where they cannot."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.sinks.paimon.binary_row import decode
from sinkruntime.sinks.paimon.manifests import unpacked
from sinkruntime.sinks.paimon.statistics import COLUMNS_MAX, Statistics
from sinkruntime.sinks.paimon.types import make_fields, read_fields


def bounds(kind: pa.DataType, *batches: list[Any]) -> tuple[Any, Any, int]:
    schema = pa.schema([pa.field("c", kind)])
    fields = read_fields(make_fields(schema, ())[0])
    statistics = Statistics(fields)
    for values in batches:
        statistics.add(pa.RecordBatch.from_pylist([{"c": value} for value in values], schema=schema))
    least, most, nulls = statistics.packed()
    return decode(unpacked(least), fields)[0], decode(unpacked(most), fields)[0], nulls[0]


def test_they_are_gathered_over_batches() -> None:
    assert bounds(pa.int32(), [3, None], [], [None, None], [-7]) == (-7, 3, 3)
    assert bounds(pa.string(), [None]) == (None, None, 1)


def test_a_column_with_nan_has_no_bounds_and_zeros_are_both() -> None:
    assert bounds(pa.float64(), [1.0], [float("nan")]) == (None, None, 0)
    least, most, _ = bounds(pa.float32(), [0.0])
    assert (str(least), str(most)) == ("-0.0", "0.0")


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_column_with_a_date_that_python_does_not_have_has_no_bounds(kind: Any) -> None:
    far = pa.array([3 * 10**6 if pa.types.is_date(kind) else 3 * 10**17]).cast(
        pa.int32() if pa.types.is_date(kind) else pa.int64()
    )
    fields = read_fields(make_fields(pa.schema([pa.field("c", kind)]), ())[0])
    statistics = Statistics(fields)
    statistics.add(pa.table([pa.array([0], far.type).cast(kind)], names=["c"]))
    statistics.add(pa.table([far.cast(kind)], names=["c"]))
    least, most, nulls = statistics.packed()
    assert decode(unpacked(least), fields) == decode(unpacked(most), fields) == [None]
    assert nulls == [0]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(texts, min_size=1), st.lists(texts))
def test_texts_lie_between_their_bounds(first: list[str], second: list[str]) -> None:
    least, most, _ = bounds(pa.string(), first, second)
    for text in (value.encode() for value in first + second):
        assert least.encode() <= text
        assert most is None or text <= most.encode()
    assert len(least) <= 16
    assert most is None or len(most) <= 16


def test_the_largest_text_of_all_has_no_upper_bound() -> None:
    assert bounds(pa.string(), ["\U0010ffff" * 20])[1] is None
    assert bounds(pa.string(), ["a" + "\U0010ffff" * 20])[1] == "b"
    assert bounds(pa.string(), ["\ud7ff" * 20])[1] == "\ud7ff" * 15 + "\ue000"


def test_nested_columns_and_those_beyond_the_limit_have_none() -> None:
    columns: list[pa.Field[Any]] = [pa.field(f"c{number}", pa.int32()) for number in range(COLUMNS_MAX + 3)]
    wide = pa.schema([pa.field("list", pa.list_(pa.int32())), *columns])
    statistics = Statistics(read_fields(make_fields(wide, ())[0]))
    assert statistics.columns() == [f"c{number}" for number in range(COLUMNS_MAX)]
    narrow = Statistics(read_fields(make_fields(pa.schema({"a": pa.int32()}), ())[0]))
    assert narrow.columns() is None
