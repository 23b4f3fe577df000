"""What the jdbc sink writes comes back from each database as it was: every type, at its edges and by chance."""

from __future__ import annotations

import datetime
import json
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sinkruntime.api import Lineage
from sinkruntime.errors import TargetError
from tests.sinks import harness
from tests.sinks.harness import commit
from tests.sinks.jdbc_places import DuckDBPlace, Place, PostgreSQLPlace, make

pytestmark = pytest.mark.integration
_FIELDS: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "medium": pa.int32(),
    "single": pa.float32(),
    "wide": pa.float64(),
    "short": pa.decimal128(7, 2),
    "exact": pa.decimal128(38, 18),
    "words": pa.string(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
}
SCHEMA = pa.schema(_FIELDS)
NESTED = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("items", pa.list_(pa.int32())),
        pa.field("parts", pa.struct([pa.field("a", pa.string()), pa.field("b", pa.decimal128(5, 1))])),
        pa.field("pairs", pa.map_(pa.string(), pa.float64())),
    ]
)
NAN_IS_REFUSED = ("mariadb_place", "sqlite_place")


def _local(text: str) -> datetime.datetime:
    """A time of no zone."""
    return datetime.datetime.fromisoformat(text)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda number: Decimal(f"{number}E-{scale}"))


_moments = st.datetimes(_local("0001-01-01"), _local("9999-12-31"))
_utc = _moments.map(lambda moment: moment.replace(tzinfo=datetime.UTC))
_words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def values_of(name: str) -> st.SearchStrategy[Any]:
    found: dict[str, st.SearchStrategy[Any]] = {
        "number": st.integers(-(2**63), 2**63 - 1),
        "flag": st.booleans(),
        "tiny": st.integers(-128, 127),
        "small": st.integers(-(2**15), 2**15 - 1),
        "medium": st.integers(-(2**31), 2**31 - 1),
        "single": st.floats(width=32),
        "wide": st.floats(),
        "short": decimals(7, 2),
        "exact": decimals(38, 18),
        "words": _words,
        "bytes": st.binary(max_size=20),
        "day": st.dates(),
        "moment": _utc,
        "local": _moments,
    }
    return st.none() | found[name]


rows_of_all = st.lists(st.fixed_dictionaries({name: values_of(name) for name in SCHEMA.names}), min_size=1, max_size=9)
EDGES: list[dict[str, Any]] = [
    dict.fromkeys(SCHEMA.names),
    {
        "number": -(2**63), "flag": True, "tiny": -128, "small": 2**15 - 1, "medium": -(2**31), "single": 0.5,
        "wide": -1e300, "short": Decimal("-99999.99"), "exact": Decimal("12345678901234567890.123456789012345678"),
        "words": "ünïcödé ✈ 👩‍🚀 \\N \t\n'\"", "bytes": bytes(range(256)), "day": datetime.date(1, 1, 1),
        "moment": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC),
        "local": _local("9999-12-31T23:59:59.000001"),
    },
    {
        "number": 0, "flag": False, "tiny": 0, "small": 0, "medium": 0, "single": -0.0, "wide": 2.2250738585072014e-308,
        "short": Decimal("0.00"), "exact": Decimal("-0.000000000000000001"), "words": "", "bytes": b"",
        "day": datetime.date(9999, 12, 31), "moment": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
        "local": _local("1000-01-01"),
    },
]  # fmt: skip


@pytest.fixture(params=["postgresql_place", "mariadb_place", "sqlite_place", "duckdb_place"])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def write(place: Place, table: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    sink = make(place, sink=f"s{table}", table=place.options()["table"][:-1] + table)
    sink.prepare_target(schema)
    lineage = Lineage(1, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, schema))
    try:
        batch = pa.RecordBatch.from_pylist([rows[0], *rows], schema=schema)
        writer.write(batch.slice(1))  # a slice: offsets count
        staged = harness.Staged(1, 1, ((lineage, harness.finish(sink, writer, 1)),))
    except BaseException:
        writer.abort_prepare()
        writer.close()
        raise
    assert commit(sink, staged).reasons() == set()


@settings(max_examples=12, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows_of_all)
def test_every_value_comes_back_from_postgresql(postgresql_place: PostgreSQLPlace, rows: list[dict[str, Any]]) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    write(postgresql_place, table, SCHEMA, rows)
    names = ", ".join(SCHEMA.names).replace("single", "single::float8")  # as a text it would be rounded
    found = postgresql_place.query(f"SELECT {names} FROM ~.{table}")
    assert sorted(map(plain, found)) == sorted(plain(tuple(row[name] for name in SCHEMA.names)) for row in rows)


def plain(row: tuple[Any, ...]) -> str:
    """Comparable, also where a value is NaN; -0.0 is 0.0, and times are UTC."""
    return repr(tuple(_plain(value) for value in row))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat()
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def test_edges_come_back_from_each_database(place: Place) -> None:
    write(place, "e", SCHEMA, EDGES)
    rows = place.query(f"SELECT {', '.join(SCHEMA.names)} FROM ~.e")
    assert sorted(normal(row) for row in rows) == sorted(normal(tuple(row.values())) for row in EDGES)


def normal(row: tuple[Any, ...]) -> str:
    """The same for values that a database gives back as texts or numbers: its own types are fewer."""
    return repr(
        tuple(None if value is None else _normal(value, field.type) for value, field in zip(row, SCHEMA, strict=True))
    )


def _normal(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return bool(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_date(kind):
        return str(value)[:10]
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        return _plain(moment) if moment.tzinfo else moment.isoformat()
    return _plain(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_kept_or_refused_and_never_changed(
    place: Place, value: float, request: pytest.FixtureRequest
) -> None:
    schema = pa.schema([pa.field("wide", pa.float64())])
    if any(name in request.node.name for name in NAN_IS_REFUSED):
        with pytest.raises(TargetError, match="RowsRefused: column `wide`"):
            write(place, "n", schema, [{"wide": value}])
        return
    write(place, "n", schema, [{"wide": value}])
    ((found,),) = place.query("SELECT wide FROM ~.n")
    assert plain((found,)) == plain((value,))


def test_nested_values_are_json_or_what_duckdb_has(place: Place, request: pytest.FixtureRequest) -> None:
    row = {"number": 1, "items": [1, None], "parts": {"a": "x", "b": Decimal("1.5")}, "pairs": [("k", 0.25)]}
    write(place, "j", NESTED, [row, {"number": 2, "items": None, "parts": None, "pairs": None}])
    found = place.query("SELECT items, parts, pairs FROM ~.j ORDER BY number")
    if "duckdb_place" in request.node.name:
        assert found[0] == ([1, None], {"a": "x", "b": Decimal("1.5")}, {"k": 0.25})
    else:
        told = [json.loads(value) if isinstance(value, str) else value for value in found[0]]
        assert told == [[1, None], {"a": "x", "b": "1.5"}, {"k": 0.25}]
    assert tuple(found[1]) == (None, None, None)


def test_values_go_into_other_types_of_a_table_that_is_there(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    place.query("CREATE TABLE ~.o (number numeric, medium bigint, words uuid, single double precision, short numeric)")
    fields = [SCHEMA.field(name) for name in ("number", "medium", "words", "single", "short")]
    text = "00112233-4455-6677-8899-aabbccddeeff"
    row = {"number": -(2**63), "medium": 7, "words": text, "single": 0.5, "short": Decimal("12.30")}
    write(place, "o", pa.schema(fields), [row, dict.fromkeys(row)])
    found = place.query("SELECT number, medium, words::text, single, short FROM ~.o WHERE medium = 7")
    assert found == [(Decimal(-(2**63)), 7, text, 0.5, Decimal("12.30"))]


def test_a_folder_that_looks_like_a_partition_takes_no_columns_place(tmp_path: Path) -> None:
    """DuckDB itself reads `name=prod/…` as a partition, whose value it would show for the column `name`."""
    folder = tmp_path / "name=prod" / "more=1"
    folder.mkdir(parents=True)
    place = DuckDBPlace(folder / "target.duckdb")
    sink = make(place)
    sink.prepare_target(harness.SCHEMA)
    commit(sink, harness.stage(sink, 1, [(1, "mine")]), 0)
    assert place.query("SELECT * FROM ~.t") == [(1, "mine")]
