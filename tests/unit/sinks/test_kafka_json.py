"""The Kafka sink's fast JSON says the same as the exact, slow one."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.json_rows import json_rows
from sinkruntime.sinks.kafka.json_text import json_objects

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.binary(), st.binary(max_size=10)),
    (pa.decimal128(20, 5), st.decimals(-(10**14), 10**14, places=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.list_(pa.float64()), st.lists(st.floats(), max_size=3)),
    (pa.struct([pa.field("a", pa.string()), pa.field("b", pa.date32())]),
     st.fixed_dictionaries({"a": TEXTS, "b": st.dates()})),
    (pa.map_(pa.string(), pa.int32()),
     st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=3, unique_by=lambda pair: pair[0])),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind[0]))
@given(data=st.data())
def test_a_column_of_any_type_is_written_as_the_exact_way_writes_it(
    kind: tuple[pa.DataType, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    arrow, values = kind
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    column = pa.array(rows, arrow)
    table = pa.table({'odd "name"\\': column, "n": pa.array(range(len(rows)), pa.int64())})
    found = json_objects([chunk_of(table, 0), chunk_of(table, 1)], table.schema.names).to_pylist()
    exact = json_rows(table, table.schema)
    assert [normal(json.loads(str(text)), arrow) for text in found] == [
        normal(json.loads(text), arrow) for text in exact
    ]


def chunk_of(table: pa.Table, index: int) -> pa.Array[Any]:
    return table.column(index).combine_chunks()


def normal(row: dict[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """Two spellings of one number are equal: of a float32 the shortest is told, of a decimal also `1E-7`."""
    found = {}
    for name, value in row.items():
        same = value
        if pa.types.is_float32(kind) and isinstance(value, float | int) and name != "n":
            same = pa.scalar(float(value), pa.float32()).as_py()
        if pa.types.is_decimal(kind) and isinstance(value, str):
            same = decimal.Decimal(value)
        found[name] = same
    return found


def test_times_with_another_zone_are_told_in_utc() -> None:
    column = pa.array([1_700_000_000_123_456, 0, None], pa.timestamp("us", "Europe/Berlin"))
    assert [json.loads(str(text))["at"] for text in json_objects([column], ["at"]).to_pylist()] == [
        "2023-11-14T22:13:20.123456+00:00",
        "1970-01-01T00:00:00+00:00",
        None,
    ]


@pytest.mark.parametrize("texts", [["plain", "words"], ['with "quotes"', "and \\"], ["a\ttab", "✈"], ["", ""]])
def test_a_slice_is_written_as_its_own_rows_are(texts: list[str]) -> None:
    moments = pa.array([1_700_000_000_000_001, 1_700_000_000_123_456, 0, 1_000_000, -1], pa.timestamp("us"))
    columns: list[pa.Array[Any]] = [pa.array(["\n", *texts, '"', "z"]), moments]
    whole = json_objects(columns, ["a", "b"]).to_pylist()
    for first, last in ((0, 5), (1, 3), (1, 2), (3, 5), (2, 2)):
        sliced = json_objects([column[first:last] for column in columns], ["a", "b"]).to_pylist()
        assert sliced == whole[first:last]


def test_years_of_another_width_are_told_too() -> None:
    column = pa.array([253_402_300_800_000_000, 1_700_000_000_123_456, 0], pa.timestamp("us"))
    assert [json.loads(str(text))["at"] for text in json_objects([column], ["at"]).to_pylist()] == [
        "10000-01-01T00:00:00", "2023-11-14T22:13:20.123456", "1970-01-01T00:00:00",
    ]  # fmt: skip


def test_a_time_that_is_too_far_away_is_an_error() -> None:
    with pytest.raises(ValueError, match="out of the range"):
        json_objects([pa.array([2**62, 0], pa.timestamp("us"))], ["at"])
