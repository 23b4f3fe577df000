"""Partitioned, sorted, created and evolved Iceberg tables; partitions that are replaced."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, NestedField

from sinkruntime.api import Answer, Distribution, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import columns, partitions
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import Staged, commit, stage
from tests.sinks.iceberg_places import Place, sql_place

AT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("at", pa.timestamp("us", "Europe/Berlin")),
    pa.field("day", pa.date32()),
    pa.field("price", pa.decimal128(12, 2)),
    pa.field("place", pa.struct([pa.field("country", pa.string()), pa.field("zip", pa.int32())])),
]
WIDE = pa.schema(FIELDS)
TRANSFORMS = [
    "identity(name)", "bucket(4, id)", "bucket(3, name)", "truncate(2, name)", "truncate(10, id)", "year(at)",
    "month(at)", "day(at)", "hour(at)", "day(day)", "month(day)", "year(day)", "void(id)", "bucket(5, price)",
    "truncate(50, price)", "identity(price)", "identity(day)", "place.country", "bucket(4, at)",
]  # fmt: skip


def wide_rows(count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(count):
        moved = datetime.timedelta(hours=7 * number - 100, microseconds=number)
        rows.append(
            {
                "id": number - 5,
                "name": f"näme {number % 7}",
                "at": AT + moved,
                "day": (AT + moved).date(),
                "price": decimal.Decimal(number * 1_301 - 5_000) / 100,
                "place": {"country": f"c{number % 3}", "zip": number},
            }
        )
    return [*rows, dict.fromkeys(WIDE.names)]


def put(sink: Sink, checkpoint: int, rows: list[dict[str, Any]], schema: pa.Schema = WIDE) -> Staged:
    """Stage rows of any schema by one writer."""
    context = replace(harness.writer_context(sink, Lineage(checkpoint, 1, 0, 1, 0)), schema=schema)
    writer = sink.create_writer(context)
    writer.open()
    if rows:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return Staged(checkpoint, 1, ((context.lineage, harness.finish(sink, writer, checkpoint)),))


def wide_place(folder: Path, **more: Any) -> tuple[Place, Sink]:
    place = sql_place(folder, more={"createTable": True, **more})
    sink = place.sink()
    sink.prepare_target(WIDE)
    return place, sink


def content(place: Place) -> list[dict[str, Any]]:
    found = place.load().scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["id"] is None, row["id"] or 0))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_rows_of_a_partitioned_table_come_back_and_files_are_pruned(tmp_path: Path, transform: str) -> None:
    place, sink = wide_place(tmp_path, partitionBy=[transform])
    rows = wide_rows(20)
    assert commit(sink, put(sink, 1, rows)).answers() == {Answer.COMMITTED}
    assert content(place) == sorted(rows, key=lambda row: (row["id"] is None, row["id"] or 0))
    (field,) = place.load().spec().fields
    assert str(field.transform).partition("[")[0] == (transform.partition("(")[0] if "(" in transform else "identity")
    assert len(place.load().scan(row_filter="id = 7").to_arrow()) == 1


def test_two_partition_fields_and_a_sort_order(tmp_path: Path) -> None:
    place, sink = wide_place(tmp_path, partitionBy=["name", "bucket(2, id)"], sortBy=["id desc", "name"])
    rows = wide_rows(30)
    commit(sink, put(sink, 1, rows))
    table = place.load()
    files = list(table.inspect.files().to_pylist())
    assert len(files) > 7
    assert {file["sort_order_id"] for file in files} == {table.sort_order().order_id} != {0}
    for file in files:
        found = pa.parquet.read_table(file["file_path"].removeprefix("file://")).column("id").to_pylist()
        assert found == sorted(found, key=lambda number: (number is None, -(number or 0)))
    assert sum(file["record_count"] for file in files) == len(rows)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.one_of(st.none(), st.text())), max_size=9
    ),
    st.lists(st.one_of(st.none(), st.datetimes()), max_size=9),
    st.integers(1, 100),
)
def test_transforms_of_columns_are_those_of_single_values(
    pairs: list[tuple[int | None, str | None]], times: list[datetime.datetime | None], width: int
) -> None:
    ids, names = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    cases: list[tuple[pa.Array[Any], list[Any], list[str]]] = [
        (pa.array(ids, pa.int64()), ids, [f"bucket[{width}]", "identity", "void"]),
        (pa.array(names, pa.string()), names, [f"bucket[{width}]", f"truncate[{width}]"]),
        (pa.array(times, pa.timestamp("us")), times, ["year", "month", "day", "hour"]),
    ]
    for array, values, transforms in cases:
        schema = columns.iceberg_schema(pa.schema([pa.field("x", array.type)]))
        kind = schema.fields[0].field_type
        batch = pa.RecordBatch.from_arrays([array], names=["x"])
        for text in transforms:
            transform = parse_transform(text)
            one = transform.transform(kind)
            expected = [one(value) for value in values]
            field = PartitionField(source_id=1, field_id=1000, transform=transform, name="p")
            assert partitions.transformed(batch, field, schema).to_pylist() == expected, text


def test_appends_that_wait_while_the_table_is_partitioned_otherwise_land_as_they_were_staged(tmp_path: Path) -> None:
    place, sink = wide_place(tmp_path, partitionBy=["name"])
    staged = put(sink, 1, wide_rows(20))
    with place.load().update_spec() as update:
        update.remove_field("name")
        update.add_field("id", parse_transform("bucket[4]"), "id_4")
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert commit(sink, put(sink, 2, wide_rows(20)), 1).answers() == {Answer.COMMITTED}
    assert Counter(row["id"] for row in content(place)) == Counter([row["id"] for row in wide_rows(20)] * 2)


def test_columns_that_others_rename_or_drop_before_the_commit_never_mix(tmp_path: Path) -> None:
    place = sql_place(tmp_path)
    place.make()
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    with place.load().update_schema() as update:
        update.rename_column("name", "title")
    with place.load().update_schema() as update:
        update.add_column("name", LongType())
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    found = place.load().scan().to_arrow().to_pylist()
    assert Counter((row["id"], row["title"]) for row in found) == Counter(ROWS)
    assert {row["name"] for row in found} == {None}


def test_a_table_that_wants_other_files_by_the_time_of_the_commit_is_held_by_name(tmp_path: Path) -> None:
    place = sql_place(tmp_path)
    place.make()
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    with place.load().transaction() as others:
        others.set_properties({"write.format.default": "orc"})
    refused = commit(sink, staged)
    assert refused.answers() == {Answer.REFUSED}
    assert refused.aggregated[0].reason == "UnsupportedTableFeature"


def test_overwrite_partitions_replaces_what_it_writes_to_and_nothing_else(tmp_path: Path) -> None:
    place, sink = wide_place(tmp_path, partitionBy=["name"], write="overwritePartitions")
    rows = wide_rows(14)
    commit(sink, put(sink, 1, rows))
    new = [{**rows[0], "id": 100}]  # of the name of rows 0 and 7
    commit(sink, put(sink, 2, new), 1)
    kept = [row for row in rows if row["name"] != rows[0]["name"]]
    assert Counter(row["id"] for row in content(place)) == Counter(row["id"] for row in [*kept, *new])
    summary = place.load().metadata.snapshots[-1].summary
    assert summary is not None
    assert summary["deleted-records"] == "2"
    assert summary["total-records"] == str(len(kept) + 1)
    commit(sink, put(sink, 3, []), 2)
    assert len(content(place)) == len(kept) + 1


def test_overwrite_of_a_table_without_partitions_replaces_all_of_it(tmp_path: Path) -> None:
    place = sql_place(tmp_path, more={"write": "overwritePartitions"})
    place.make()
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    commit(sink, stage(sink, 2, MORE), 1)
    assert place.rows() == Counter(MORE)


def test_a_table_is_created_once_with_its_properties(tmp_path: Path) -> None:
    properties = {"write.parquet.compression-codec": "gzip", "commit.retry.num-retries": 3}
    place, sink = wide_place(tmp_path, tableProperties=properties)
    table = place.load()
    assert table.properties["write.parquet.compression-codec"] == "gzip"
    sink.prepare_target(WIDE)
    assert place.load().metadata.table_uuid == table.metadata.table_uuid
    commit(sink, put(sink, 1, wide_rows(1)))
    (file,) = table.refresh().inspect.files().column("file_path").to_pylist()
    footer = pa.parquet.read_metadata(str(file).removeprefix("file://"))
    assert footer.row_group(0).column(0).compression == "GZIP"


def test_the_schema_grows_widens_and_gets_looser(tmp_path: Path) -> None:
    place, sink = wide_place(tmp_path)
    with place.load().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("count", NestedField(1, "c", pa_int(), False).field_type)
        update.add_column("must", NestedField(1, "m", pa_int(), False).field_type)
    changed = pa.schema(
        [
            *[field for field in FIELDS if field.name not in ("place", "price")],
            pa.field("count", pa.int64()),
            pa.field("price", pa.decimal128(20, 2)),
            pa.field("more", pa.list_(pa.string())),
            pa.field("place", pa.struct([pa.field("country", pa.string()), pa.field("town", pa.string())])),
        ]
    )
    with pytest.raises(TargetError, match="column `count`: the table has int32, it would get int64"):
        sink.prepare_target(changed)
    evolving = place.sink(evolveSchema=True)
    commit(evolving, put(evolving, 1, wide_rows(1)))
    evolving.prepare_target(changed)
    evolving.prepare_target(changed)
    row = {"id": 77, "count": 2**40, "price": decimal.Decimal("123456789012345.67"), "more": ["x"]}
    commit(evolving, put(evolving, 2, [{**row, "place": {"country": "c", "town": "t"}}], changed), 1)
    found = next(item for item in content(place) if item["id"] == 77)
    assert found["count"] == 2**40
    assert found["place"] == {"country": "c", "zip": None, "town": "t"}
    assert found["more"] == ["x"]


def pa_int() -> Any:
    from pyiceberg.types import IntegerType

    return IntegerType()


def test_a_required_column_that_the_rows_lack_becomes_optional_where_that_is_wanted(tmp_path: Path) -> None:
    from tests.sinks.iceberg_places import COLUMNS

    place = sql_place(tmp_path)
    place.make(Schema(COLUMNS[0], COLUMNS[1].model_copy(update={"required": True})))
    only = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(TargetError, match="column `name`: the table requires string, the rows do not have it"):
        place.sink().prepare_target(only)
    sink = place.sink(evolveSchema=True)
    sink.prepare_target(only)
    commit(sink, put(sink, 1, [{"id": 1}], only))
    assert place.rows() == Counter([(1, None)])


def test_a_catalog_in_a_file_is_made_with_its_folder(tmp_path: Path) -> None:
    place = sql_place(tmp_path / "not" / "there", more={"createTable": True})
    place.sink().prepare_target(harness.SCHEMA)
    assert place.rows() == Counter()


def test_a_type_that_iceberg_lacks_is_refused_by_column(tmp_path: Path) -> None:
    sink = sql_place(tmp_path, more={"createTable": True}).sink()
    with pytest.raises(TargetError, match="UnsupportedType: column `how_long`: Iceberg has no type for duration"):
        sink.prepare_target(pa.schema([pa.field("how_long", pa.duration("us"))]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"partitionBy": ["nobody"]}, "options.partitionBy: SchemaMismatch: there is no column `nobody`"),
        ({"partitionBy": ["hour(day)"]}, "`day` is date, which `hour` does not take"),
        ({"sortBy": ["nobody"]}, "options.sortBy: SchemaMismatch"),
    ],
)
def test_partitioning_by_what_is_not_there_is_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        sql_place(tmp_path, more={"createTable": True, **more}).sink().prepare_target(WIDE)


def test_files_roll_at_their_target_size_and_few_are_open(tmp_path: Path) -> None:
    place, sink = wide_place(tmp_path, targetFileSize="1B", maxOpenFiles=1, partitionBy=["name"])
    commit(sink, put(sink, 1, wide_rows(20)))
    assert len(content(place)) == 21


def test_rows_are_spread_as_the_table_is_partitioned(tmp_path: Path) -> None:
    more = {"partitionBy": ["day(at)", "name", "bucket(4, id)", "void(price)"], "sortBy": ["truncate(2, name) desc"]}
    created = sql_place(tmp_path, more={"createTable": True, **more})
    hashed = Distribution(expressions=("date_trunc('day', `at`)", "`name`", "`id`"))
    ranged = ("date_trunc('day', `at`)", "`name`", "`id`", "substring(cast(`name` as string), 1, 2)")
    for _ in range(2):  # before the table is there, and after
        assert created.sink().distribution() is None
        assert created.sink(distributionMode="hash").distribution() == hashed
        assert created.sink(distributionMode="range").distribution() == Distribution(expressions=ranged, by_range=True)
        created.sink().prepare_target(WIDE)
    plain = sql_place(tmp_path, table="lake.plain")
    plain.make()
    assert plain.sink(distributionMode="hash").distribution() is None
