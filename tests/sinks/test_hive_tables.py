"""The `hive` sink and the tables that it finds, makes, or refuses by name."""

from __future__ import annotations

import copy
import datetime
import itertools
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from tests.servers.hive_metastore import Metastore
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import Row, commit, stage
from tests.sinks.hive_place import Place, files_of, records

pytestmark = pytest.mark.integration

INSTANT = datetime.datetime(2026, 7, 1, 12, 30, 15, 123456, datetime.UTC)
EVERYTHING: dict[str, tuple[pa.DataType, str, Any]] = {
    "id": (pa.int64(), "bigint", 7),
    "tiny": (pa.int8(), "tinyint", -1),
    "small": (pa.int16(), "smallint", 300),
    "whole": (pa.int32(), "int", 70_000),
    "yes": (pa.bool_(), "boolean", True),
    "single": (pa.float32(), "float", 0.5),
    "double": (pa.float64(), "double", 0.1),
    "text": (pa.string(), "string", "ünïcødé ✈"),
    "raw": (pa.binary(), "binary", b"\x00\xff"),
    "day": (pa.date32(), "date", datetime.date(1969, 12, 31)),
    "price": (pa.decimal128(12, 3), "decimal(12,3)", Decimal("-1.250")),
    "at": (pa.timestamp("us", tz="UTC"), "timestamp", INSTANT),
    "list": (pa.list_(pa.int32()), "array<int>", [1, None]),
    "map": (pa.map_(pa.string(), pa.int64()), "map<string,bigint>", [("k", 1)]),
    "nested": (
        pa.struct([("a", pa.int32()), ("since", pa.timestamp("us", tz="UTC"))]),
        "struct<a:int,since:timestamp>",
        {"a": None, "since": INSTANT},
    ),
}


def schema_of(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(columns)


@pytest.fixture
def place(hive_metastore: Metastore, hive_database: str) -> Place:
    """No table yet."""
    return Place(hive_metastore, hive_database, {}, hive_metastore.uri)


def write(place: Place, rows: pa.RecordBatch, **settings: Any) -> harness.Round:
    """Prepare the target and commit one batch as checkpoint 1."""
    sink = place.sink(**settings)
    sink.prepare_target(rows.schema)
    lineage = Lineage(1, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, rows.schema))
    writer.open()
    try:
        writer.write(rows)
        staged = harness.Staged(1, 1, ((lineage, harness.finish(sink, writer, 1)),))
    except TargetError:
        writer.abort_prepare()
        raise
    finally:
        writer.close()
    return commit(sink, staged)


@pytest.mark.parametrize("version", ["hive_metastore", "hive_metastore_3"])
def test_every_layout_is_made_and_written(request: pytest.FixtureRequest, version: str) -> None:
    server: Metastore = request.getfixturevalue(version)
    database = server.make_database()
    for external, kind, keys in itertools.product([True, False], ["parquet", "orc"], [[], ["id"]]):
        settings: dict[str, Any] = {"format": kind, "partitionBy": keys}
        name = f"{'external' if external else 'managed'}_{kind}_{len(keys)}"
        if external:
            settings["location"] = str(server.external / database / name)
        place = Place(server, database, settings, server.uri, name)
        sink = place.sink()
        sink.prepare_target(harness.SCHEMA)
        assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}, name
        assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}, name
        assert place.rows() == Counter(ROWS + MORE), name
        assert place.keys == keys
        # Without a location it is in the metastore's warehouse: Hive 4 has one of its own for external tables.
        assert place.directory.is_relative_to(server.external if external else server.folder), name


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_every_type_is_created_and_kept(place: Place, kind: str) -> None:
    schema = schema_of(**{name: of for name, (of, _, _) in EVERYTHING.items()})
    values = {name: value for name, (_, _, value) in EVERYTHING.items()}
    rows = pa.RecordBatch.from_pylist([values, {"id": 8}], schema=schema)
    assert write(place, rows, format=kind).answers() == {Answer.COMMITTED}
    assert {column.name: column.type for column in place.table().sd.cols} == {
        name: hive for name, (_, hive, _) in EVERYTHING.items()
    }
    (path,) = files_of(place.directory)
    full, empty = sorted(records(path), key=lambda row: str(row["id"]))
    assert {name: value for name, value in empty.items() if value is not None} == {"id": 8}
    expected: dict[str, Any] = values | {"at": INSTANT.replace(tzinfo=None), "map": dict(values["map"])}
    expected["nested"] = {"a": None, "since": INSTANT.replace(tzinfo=None)}
    assert full | {"map": dict(full["map"])} == expected


@pytest.mark.parametrize("name", ["at", "list", "map", "nested"])
def test_fractions_before_1970_are_refused_in_orc_which_no_reader_would_take(place: Place, name: str) -> None:
    kind, early = pa.timestamp("us", tz="UTC"), datetime.datetime(1960, 1, 1, 0, 0, 0, 1, datetime.UTC)
    nested = pa.struct([pa.field("a", kind)])
    schema = schema_of(
        id=pa.int64(), at=kind, list=pa.list_(kind), map=pa.map_(pa.string(), kind), nested=nested
    )  # fmt: skip
    fine = {"at": INSTANT, "list": [None, INSTANT.replace(year=1960, microsecond=0)], "map": [("k", INSTANT)]}
    early_ones = {"at": early, "list": [early], "map": [("k", early)], "nested": {"a": early}}
    rows = pa.RecordBatch.from_pylist([fine, {name: early_ones[name]}], schema=schema)
    with pytest.raises(TargetError, match=f"ValueOutOfRange: column `{name}`: ORC cannot keep a fraction"):
        write(place, rows, format="orc")
    assert place.staged() == set()
    assert write(place, rows.slice(0, 1), format="orc").answers() == {Answer.COMMITTED}


def test_partition_values_are_those_of_hive(place: Place) -> None:
    schema = schema_of(id=pa.int64(), Carrier=pa.string(), DAY=pa.date32(), late=pa.bool_())
    day = datetime.date(2026, 1, 2)
    names = ["A A", "x=y/z%#", None, "", "ünï", "[{*}]"]
    rows = [{"id": number, "Carrier": name, "DAY": day, "late": True} for number, name in enumerate(names)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    assert write(place, batch, partitionBy=["Carrier", "DAY", "late"]).answers() == {Answer.COMMITTED}
    assert [key.name for key in place.table().partitionKeys] == ["carrier", "day", "late"]
    found = {}
    for partition in place.partitions():
        for path in files_of(place.path_of(partition.sd.location)):
            found.update({row["id"]: partition.values for row in records(path)})
    null = "__HIVE_DEFAULT_PARTITION__"
    assert found == {number: [name or null, "2026-01-02", "true"] for number, name in enumerate(names)}
    with place.server.client() as client:
        known = client.get_partition_names(place.database, place.name, -1)
    assert sorted(known) == sorted(
        str(place.path_of(one.sd.location).relative_to(place.directory)) for one in place.partitions()
    )  # the metastore itself would give the directories these names


def test_rows_are_brought_to_the_columns_of_the_table(place: Place) -> None:
    sink = place.sink()
    sink.prepare_target(harness.SCHEMA)
    narrow = schema_of(NAME=pa.string(), ID=pa.int16())
    batch = pa.RecordBatch.from_pylist([{"ID": 1, "NAME": "one"}], schema=narrow)
    assert write(place, batch).answers() == {Answer.COMMITTED}
    only = pa.RecordBatch.from_pylist([{"id": 2}], schema=schema_of(id=pa.int64()))
    other = place.sink(sink="other")
    other.prepare_target(only.schema)
    assert place.rows() == Counter([(1, "one")])
    (path,) = files_of(place.directory)
    assert list(records(path)[0]) == ["id", "name"]


def test_a_wrong_column_is_said_with_what_the_table_has(place: Place) -> None:
    place.sink().prepare_target(harness.SCHEMA)
    id_text = schema_of(id=pa.string(), name=pa.string())
    with pytest.raises(TargetError, match="column `id`: the table has int64, it would get string"):
        place.sink().prepare_target(id_text)
    more = pa.schema([*harness.SCHEMA, pa.field("Extra", pa.int64())])
    with pytest.raises(TargetError, match="column `extra`: the table has no such column, it would get int64"):
        place.sink().prepare_target(more)
    twice = pa.schema([*harness.SCHEMA, pa.field("NAME", pa.string())])
    with pytest.raises(TargetError, match="column `name`: two columns of the rows have this name"):
        place.sink().prepare_target(twice)


@pytest.mark.parametrize(
    ("schema", "settings", "message"),
    [
        ({"id": pa.timestamp("us")}, {}, "column `id`: a timestamp without time zone is not supported"),
        ({"id": pa.uint64()}, {}, "column `id`: Hive has no type for uint64"),
        ({"id": pa.int64()}, {"partitionBy": ["month"]}, "there is no column `month`; the rows have id"),
        ({"id": pa.int64()}, {"partitionBy": ["id"]}, "every column is a partition column"),
        (
            {"id": pa.int64(), "x": pa.float64()},
            {"partitionBy": ["x"]},
            "partition column `x` is double; expected one of string, tinyint",
        ),
        ({"id": pa.int64()}, {"table": "no_such_database.t"}, "DatabaseMissing: there is no database no_such_database"),
        ({"id": pa.int64()}, {"createTable": False}, "TableMissing: there is no table"),
    ],
)
def test_tables_that_cannot_be_made_are_refused(
    place: Place, schema: dict[str, pa.DataType], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        place.sink(**settings).prepare_target(schema_of(**schema))


def made_other(place: Place, change: Callable[[Any], None]) -> None:
    """A table like that of the sink, changed."""
    place.sink().prepare_target(harness.SCHEMA)
    table = place.drop()
    table.parameters = {}
    change(table)
    place.create(table)


def view(table: Any) -> None:
    table.tableType, table.viewOriginalText, table.viewExpandedText = "VIRTUAL_VIEW", "select 1", "select 1"
    table.sd.location = None


def iceberg(table: Any) -> None:
    table.parameters = {"EXTERNAL": "TRUE", "table_type": "ICEBERG"}


def bucketed(table: Any) -> None:
    table.sd.bucketCols, table.sd.numBuckets = ["id"], 4


def text(table: Any) -> None:
    table.sd.inputFormat = "org.apache.hadoop.mapred.TextInputFormat"


def short(table: Any) -> None:
    table.sd.cols[1].type = "varchar(10)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (view, "NotATable: .* is a view"),
        (iceberg, "StorageHandler: .* is kept by a storage handler"),
        (bucketed, "BucketedTable: .* is a bucketed table"),
        (text, "UnsupportedFormat: .* is read by .*TextInputFormat; expected a table of Parquet or ORC files"),
        (short, r"UnsupportedType: column `name`: the table has varchar\(10\), and varchar\(10\) is not supported"),
    ],
)
def test_tables_that_cannot_be_written_are_refused_by_name(
    place: Place, change: Callable[[Any], None], message: str
) -> None:
    made_other(place, change)
    with pytest.raises(TargetError, match=message):
        place.sink().prepare_target(harness.SCHEMA)


def test_options_that_contradict_the_table_are_refused(place: Place) -> None:
    place.sink(partitionBy=["id"]).prepare_target(harness.SCHEMA)
    place.sink().prepare_target(harness.SCHEMA)
    for settings, message in (
        ({"partitionBy": ["name"]}, "the table is partitioned by id, not by name"),
        ({"format": "orc"}, "holds parquet, not orc"),
        ({"location": "/somewhere/else"}, "LocationMismatch: .* not at /somewhere/else"),
    ):
        with pytest.raises(TargetError, match=message):
            place.sink(**settings).prepare_target(harness.SCHEMA)


def test_null_in_a_required_column_is_refused(place: Place) -> None:
    from hive_metastore.ttypes import SQLNotNullConstraint

    place.sink().prepare_target(harness.SCHEMA)
    table = place.drop()
    constraint = SQLNotNullConstraint("hive", place.database, place.name, "name", "nn", True, False, True)
    with place.server.client() as client:
        client.create_table_with_constraints(table, [], [], [], [constraint], [], [])
    full: list[Row] = [(1, "one")]
    assert write(place, harness.batch_of(full)).answers() == {Answer.COMMITTED}
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `name`"):
        write(place, harness.batch_of(ROWS))
    with pytest.raises(TargetError, match="column `name`: the table requires string, the rows do not have it"):
        place.sink().prepare_target(schema_of(id=pa.int64()))


def test_two_jobs_that_make_one_table_share_it(place: Place) -> None:
    from sinkruntime.sinks.hive.metastore import connected
    from sinkruntime.sinks.hive.table import to_create

    options = place.options()
    with connected(place.uri) as metastore:
        for _ in range(2):
            metastore.create_table(to_create(options, harness.SCHEMA))
    assert commit(place.sink(), stage(place.sink(), 1, MORE)).answers() == {Answer.COMMITTED}


def test_a_server_that_is_no_metastore_is_said(place: Place, s3_server: Any) -> None:
    other = copy.copy(place.options()).model_copy(update={"metastore": f"thrift://{s3_server.address}"})
    sink = type(place.sink())(other, harness.identity())
    with pytest.raises(ConnectionError, match="reading the table"):
        sink.evidence()
