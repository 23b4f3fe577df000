"""Record keys, partition paths, instants and Avro schemas of the hudi sink, against plain Python and fastavro."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.sinks.hudi.keys import by_partition, directory, record_keys
from sinkruntime.sinks.hudi.metadata import parse_properties, properties
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.schemas import avro, check_table
from sinkruntime.sinks.hudi.timeline import next_instant, shifted
from sinkruntime.sinks.hudi.upsert import Merge

TYPES: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string(), "day": pa.date32(), "flag": pa.bool_()}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-(2**63), 2**63 - 1),
            "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5),
            "day": st.dates(datetime.date(1, 1, 1)),
            "flag": st.booleans(),
        }
    ),
    max_size=20,
)


def options(**more: Any) -> Options:
    return Options.model_validate({"path": "x", "table": "t", **more})


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(TYPES))


def as_java(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(ROWS, st.permutations(list(TYPES)), st.integers(2, 4))
def test_keys_of_several_columns_name_each(rows: list[dict[str, Any]], names: list[str], count: int) -> None:
    made = record_keys(batch(rows), options(recordKey=names[:count])).to_pylist()
    expected = [",".join(f"{name}:{as_java(row[name]) or '__empty__'}" for name in names[:count]) for row in rows]
    assert made == expected


@given(ROWS, st.sampled_from(["n", "day", "flag"]))
def test_a_key_of_one_column_is_its_value(rows: list[dict[str, Any]], name: str) -> None:
    assert record_keys(batch(rows), options(recordKey=[name])).to_pylist() == [as_java(row[name]) for row in rows]


def test_one_key_of_a_complex_generator_is_named() -> None:
    """As Hudi 1.1 does where there are two partition columns, but not where there is one, or none."""
    rows = batch([{"n": 1, "text": "a", "day": datetime.date(2026, 1, 1), "flag": True}])
    made = [
        record_keys(rows, options(recordKey=["n"], partitionBy=columns)).to_pylist()
        for columns in ([], ["text"], ["text", "day"])
    ]
    assert made == [["1"], ["1"], ["n:1"]]


@given(ROWS)
def test_every_row_comes_once_in_its_partition_in_its_order(rows: list[dict[str, Any]]) -> None:
    given_ = options(partitionBy=["text", "flag"], hiveStyle=True)
    expected: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        levels = (directory(name, row[name], given_) for name in given_.partition_by)
        expected.setdefault("/".join(levels), []).append(row)
    parts = list(by_partition(batch(rows), given_))
    assert [path for path, _ in parts] == list(expected)
    assert {path: part.to_pylist() for path, part in parts} == expected


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        ("x/y=z %41", "x%2Fy%3Dz %2541"),
        ('q"u:o*t?e', "q%22u%3Ao%2At%3Fe"),
        ("ünï 😀", "ünï 😀"),
        (True, "true"),
        (datetime.date(2026, 11, 21), "2026-11-21"),
    ],
)
def test_partition_values_are_escaped_as_hudi_does(value: Any, path: str) -> None:
    assert directory("text", value, options()) == path
    assert directory("text", value, options(hiveStyle=True)) == f"text={path}"


@given(st.floats(0, 4e9), st.integers(-2_000, 2_000))
def test_instants_rise_with_time_and_shift_by_milliseconds(wall_seconds: float, milliseconds: int) -> None:
    instant = next_instant(wall_seconds, "")
    assert len(instant) == 17
    assert next_instant(wall_seconds, instant) == shifted(instant, 1) > instant
    assert shifted(shifted(instant, milliseconds), -milliseconds) == instant
    at = datetime.datetime.strptime(instant + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=datetime.UTC)
    assert abs(at.timestamp() - wall_seconds) <= 0.001


def test_the_schema_is_avro_and_matches_itself() -> None:
    schema = pa.schema(
        {
            **TYPES,
            "price": pa.decimal128(10, 2),
            "wide": pa.decimal128(38, 0),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "tags": pa.list_(pa.struct([("price", pa.decimal128(5, 1))])),
            "map": pa.map_(pa.string(), pa.int32()),
        }
    )
    text = avro(schema, "flights")
    assert fastavro.parse_schema(json.loads(text))
    check_table(schema, text, "flights", ())
    (price,) = [field for field in json.loads(text)["fields"] if field["name"] == "price"]
    assert price["type"][1]["size"] == 5  # as Spark and Hudi have it for ten digits


def test_properties_are_read_back() -> None:
    made = parse_properties(properties(options(table="ref", recordKey=["a", "b"], partitionBy=["c"])))
    assert made["hoodie.table.recordkey.fields"] == "a,b"
    assert made["hoodie.table.keygenerator.type"] == "COMPLEX"
    assert made["hoodie.table.checksum"] == "2324160672"  # as Hudi 1.1.1 wrote it for a table of this name
    assert parse_properties(b"#x\n!y\na=b\\:c\\=d\n") == {"a": "b:c=d"}


def test_nan_orders_above_every_number_and_above_nan_that_is_older() -> None:
    """As Spark and Hudi compare doubles."""
    old_values, new_values = (1.0, math.nan, math.nan, None), (math.nan, 1.0, math.nan, math.nan)
    keys = [str(number) for number in range(len(old_values))]
    old = pa.table({"_hoodie_record_key": keys, "at": pa.array(old_values, pa.float64())}).to_batches()[0]
    merge = Merge(pa.table({"_hoodie_record_key": keys, "at": pa.array(new_values, pa.float64())}), "at", set(), set())
    assert merge.keep(old).column(0).to_pylist() == ["1"]
    assert (merge.met, merge.lost) == ({0, 1, 2, 3}, {1})
