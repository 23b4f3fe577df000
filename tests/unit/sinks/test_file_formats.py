"""What the formats keep of values: everything that goes in comes out, by readers that share no code with us."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import gzip
import io
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.orc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkruntime.errors import TargetError
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.formats import open_writer
from sinkruntime.sinks.file.options import Options
from sinkruntime.sinks.file.schemas import check_columns
from tests.sinks import harness

DECIMAL = pa.decimal128(20, 4)
KINDS: dict[str, pa.DataType] = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "whole": pa.int32(),
    "big": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "exact": DECIMAL,
    "text": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "wall": pa.timestamp("us"),
}
NESTED: dict[str, pa.DataType] = {
    "bytes": pa.binary(),
    "list": pa.list_(pa.int64()),
    "pair": pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.string()))]),
}
CSV: dict[str, pa.DataType] = {"text": pa.string(), "big": pa.int64(), "exact": DECIMAL}
FIRST, LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)  # noqa: DTZ001  (without a zone)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "tiny": whole(8),
    "small": whole(16),
    "whole": whole(32),
    "big": whole(64),
    "single": st.floats(width=32),
    "double": st.floats(),
    "exact": st.decimals("-1e15", "1e15", places=4),
    "text": TEXT,
    "day": st.dates(),
    "at": st.datetimes(FIRST, LAST, timezones=st.just(datetime.UTC)),
    "wall": st.datetimes(FIRST, LAST),
    "bytes": st.binary(max_size=20),
    "list": st.lists(st.none() | whole(64), max_size=3),
    "pair": st.fixed_dictionaries(
        {"a": st.none() | whole(32), "b": st.none() | st.lists(st.none() | TEXT, max_size=3)}
    ),
}


def rows_of(kinds: dict[str, pa.DataType]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({name: st.none() | VALUES[name] for name in kinds}), min_size=1, max_size=5)


class Kept(io.BytesIO):
    """Bytes that outlive the format's writer."""

    def close(self) -> None:
        """Writers may close their stream; what is in it is looked at afterwards."""


def write(rows: list[dict[str, Any]], kinds: dict[str, pa.DataType], **options: Any) -> bytes:
    """The bytes of one file with these rows."""
    schema = pa.schema(kinds)
    read = Options.model_validate({"path": "/nowhere", **options})
    check_columns(schema, read)
    kept = Kept()
    writer = open_writer(kept, schema, read)
    for row in rows:
        writer.write(pa.Table.from_pylist([row], schema=schema))
    writer.close()
    return kept.getvalue()


def in_order(rows: list[dict[str, Any]], kinds: dict[str, pa.DataType]) -> list[dict[str, Any]]:
    """The rows with their columns in the schema's order."""
    return [{name: row[name] for name in kinds} for row in rows]


def same(there: Iterable[Any], here: Iterable[Any]) -> bool:
    """Equal, with NaN equal to itself."""
    return repr(plain(list(there))) == repr(plain(list(here)))


def plain(value: Any) -> Any:
    """Without what two readers may give in two types."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return repr(math.copysign(1, value)) + repr(abs(value)) if not math.isnan(value) else "nan"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        return datetime.datetime(*value.timetuple()[:6], value.microsecond)  # noqa: DTZ001  (UTC on both sides)
    return value


PROPERTY = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
ALL = KINDS | NESTED


@PROPERTY
@given(rows_of(ALL))
def test_parquet_keeps_every_value(rows: list[dict[str, Any]]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file, duckdb.connect() as connection:
        file.write(write(rows, ALL))
        file.flush()
        connection.execute("set timezone = 'UTC'")
        found = connection.execute(f"select * from read_parquet('{file.name}')").fetchall()
    assert same(found, [tuple(row.values()) for row in in_order(rows, ALL)])


@PROPERTY
@given(rows_of(ALL))
def test_orc_keeps_every_value(rows: list[dict[str, Any]]) -> None:
    # Arrow reads ORC's times as nanoseconds in 64 bits: the years around 1970.
    near = [{**row, **{name: None for name in ("at", "wall") if far(row[name])}} for row in in_order(rows, ALL)]
    found = pyarrow.orc.ORCFile(pa.BufferReader(write(near, ALL, format="orc"))).read().to_pylist()
    assert same(found, near)


def far(value: datetime.datetime | None) -> bool:
    return value is not None and not 1700 < value.year < 2200


@PROPERTY
@given(rows_of(ALL))
def test_avro_keeps_every_value(rows: list[dict[str, Any]]) -> None:
    found = list(fastavro.reader(io.BytesIO(write(rows, ALL, format="avro"))))
    assert same(found, in_order(rows, ALL))


@PROPERTY
@given(rows_of(ALL))
def test_json_keeps_every_value(rows: list[dict[str, Any]]) -> None:
    text = gzip.decompress(write(rows, ALL, format="json", compression="gzip")).decode()
    found = [from_json(json.loads(line)) for line in text.split("\n")[:-1]]
    assert same(found, in_order(rows, ALL))


def from_json(row: dict[str, Any]) -> dict[str, Any]:
    """The values as their columns' types say."""
    readers = {
        "single": float,
        "double": float,
        "exact": decimal.Decimal,
        "day": datetime.date.fromisoformat,
        "at": datetime.datetime.fromisoformat,
        "wall": datetime.datetime.fromisoformat,
        "bytes": base64.b64decode,
    }
    return {
        name: value if value is None or name not in readers else readers[name](value)  # type: ignore[operator]
        for name, value in row.items()
    }


@PROPERTY
@given(rows_of(CSV))
def test_csv_keeps_texts_and_numbers(rows: list[dict[str, Any]]) -> None:
    text = write(rows, CSV, format="csv", header=True, delimiter=";").decode()
    header, *found = list(csv.reader(io.StringIO(text, newline=""), delimiter=";", strict=True))
    assert header == list(CSV)
    assert found == [
        ["" if value is None else str(plain(value)) for value in row.values()] for row in in_order(rows, CSV)
    ]


@pytest.mark.parametrize("delimiter", [" ", ":", "-", ".", "+", "0", "E", "n", "\t", "|"])
def test_no_delimiter_cuts_a_value(delimiter: str) -> None:
    kinds = {name: KINDS[name] for name in ("text", "whole", "double", "exact", "day", "at", "wall", "flag")}
    at = datetime.datetime(2024, 1, 2, 10, 20, 30)  # noqa: DTZ001  (without a zone)
    values = ["a", -10, math.nan, decimal.Decimal("1.0001"), at.date(), at.replace(tzinfo=datetime.UTC), at, True]
    rows = [dict(zip(kinds, values, strict=True)), dict.fromkeys(kinds)]
    text = write(rows, kinds, format="csv", delimiter=delimiter).decode()
    found, nulls = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    stamp = "2024-01-02 10:20:30.000000"
    assert found == ["a", "-10", "nan", "1.0001", "2024-01-02", f"{stamp}Z", stamp, "true"]
    assert nulls == [""] * len(kinds)


def test_avro_records_of_one_name_are_refused_before_the_first_row() -> None:
    inner = pa.struct([pa.field("b", pa.struct([pa.field("c", pa.int32())]))])
    schema = pa.schema({"a": inner, "a_b": pa.struct([pa.field("d", pa.int32())])})
    with pytest.raises(TargetError, match=r"SchemaMismatch: avro cannot hold these columns together: .*row_a_b"):
        check_columns(schema, Options.model_validate({"path": "/nowhere", "format": "avro"}))


def test_csv_tells_null_from_an_empty_text() -> None:
    rows: list[dict[str, Any]] = [{"text": "", "big": 1, "exact": None}, {"text": None, "big": 2, "exact": None}]
    assert write(rows, CSV, format="csv") == b'"",1,\n,2,\n'


@pytest.mark.parametrize("codec", ["none", "gzip", "bz2", "zstd"])
def test_text_is_a_line_per_row(codec: str) -> None:
    rows: list[dict[str, Any]] = [{"line": "one"}, {"line": None}, {"line": "ünïcødé ✈"}]
    data = write(rows, {"line": pa.string()}, format="text", compression=codec)
    stream: Any = pa.BufferReader(data)
    if codec != "none":
        stream = pa.CompressedInputStream(stream, codec)  # type: ignore[arg-type]
    assert stream.read().decode() == "one\n\nünïcødé ✈\n"


def test_json_writes_maps_as_objects() -> None:
    found = write([{"m": [(1, math.inf), (2, None)]}], {"m": pa.map_(pa.int32(), pa.float64())}, format="json")
    assert json.loads(found) == {"m": {"1": "Infinity", "2": None}}


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"format": "csv"}, {"a": pa.list_(pa.int64())}, "column `a`: csv cannot hold list<item: int64>"),
        ({"format": "csv"}, {"a": pa.binary()}, "column `a`: csv cannot hold binary"),
        ({"format": "text"}, {"a": pa.int64()}, "column `a`: text needs one string column, this is int64"),
        ({"format": "text"}, {"a": pa.string(), "b": pa.string()}, "text needs one string column, the rows have a, b"),
        ({"format": "avro"}, {"a b": pa.int64()}, "avro names have letters, digits and _ only; `a b` has others"),
        (
            {"format": "avro"},
            {"a": pa.map_(pa.string(), pa.int64())},
            "column `a`: avro cannot hold map<string, int64>",
        ),
        ({"partitionBy": ["b"]}, {"a": pa.int64()}, "there is no column `b`; the rows have a"),
        ({"partitionBy": ["a"]}, {"a": pa.int64()}, "every column is a partition column"),
        ({"partitionBy": ["a"]}, {"a": pa.float64(), "b": pa.int64()}, "`a` is double; directories are made of"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, options: Any, schema: dict[str, pa.DataType], message: str
) -> None:
    sink = FileSink(Options.model_validate({"path": str(tmp_path / "t"), **options}), harness.identity())
    with pytest.raises(TargetError) as caught:
        sink.prepare_target(pa.schema(schema))
    assert message in caught.value.message
    assert caught.value.reason == "SchemaMismatch"
    assert not (tmp_path / "t").exists()
