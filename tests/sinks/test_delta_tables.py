"""The delta sink and the tables that it meets: columns that do not fit, features, partitions, schema merge, upkeep."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.delta.features import refusals
from sinkruntime.sinks.delta.options import Write
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import SCHEMA, commit, stage
from tests.sinks.test_delta import Place, s3_place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "table", str(tmp_path / "table"), {})


def schema_of(**types: pa.DataType) -> pa.Schema:
    return pa.schema(types)


def write(sink: Sink, checkpoint: int, rows: pa.Table, previous: int = 0) -> harness.Staged:
    """Stage and commit any rows."""
    sink.prepare_target(rows.schema)
    lineage = Lineage(checkpoint, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, rows.schema))
    writer.open()
    for batch in rows.to_batches():
        writer.write(batch)
    staged = harness.Staged(checkpoint, 1, ((lineage, harness.finish(sink, writer, checkpoint)),))
    assert commit(sink, staged, previous).answers() == {Answer.COMMITTED}
    return staged


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (schema_of(id=pa.string(), name=pa.string()), "column `id`: the table has int64, it would get string"),
        (schema_of(id=pa.int64(), more=pa.int64()), "column `more`: the table has no such column, it would get int64"),
        (schema_of(ID=pa.int64(), name=pa.string()), r"`ID`: .* \(it has `id`: names are compared as they are written"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(place: Place, rows: pa.Schema, message: str) -> None:
    place.sink().prepare_target(SCHEMA)
    with pytest.raises(TargetError, match=message) as caught:
        place.sink().prepare_target(rows)
    assert caught.value.reason == "SchemaMismatch"


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (pa.duration("us"), "duration"),
        (pa.null(), "null"),
        (pa.list_(pa.time64("us")), "time64"),
        (pa.struct([("a", pa.month_day_nano_interval())]), "month_day_nano_interval"),
    ],
)
def test_types_that_delta_does_not_have_are_refused_with_the_column(place: Place, kind: pa.DataType, word: str) -> None:
    with pytest.raises(TargetError, match=f"UnsupportedType: column `x`: Delta has no type for {word}"):
        place.sink().prepare_target(schema_of(id=pa.int64(), x=kind))
    assert not place.directory.exists()


def test_a_null_where_the_table_requires_a_value_is_refused(place: Place) -> None:
    required: list[Any] = [pa.field("id", pa.int64(), False), pa.field("name", pa.string())]
    DeltaTable.create(place.path, pa.schema(required))
    sink = place.sink()
    sink.prepare_target(SCHEMA)
    writer = harness.open_writer(sink)
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `id`"):
        writer.write(pa.RecordBatch.from_pylist([{"id": None, "name": "x"}], SCHEMA))
    writer.abort_prepare()
    writer.close()
    assert place.unnamed() == set()


def test_narrow_columns_fit_wide_ones_and_missing_ones_become_null(place: Place) -> None:
    place.sink().prepare_target(SCHEMA)
    write(place.sink(), 1, pa.table({"id": pa.array([7], pa.int16())}))
    assert place.rows() == [(7, None)]


def test_merge_schema_adds_columns_and_old_rows_have_null(place: Place) -> None:
    sink = place.sink(mergeSchema=True)
    write(sink, 1, pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]}))
    write(sink, 2, pa.table({"id": pa.array([2], pa.int64()), "name": ["b"], "more": [0.5]}), 1)
    assert DeltaTable(place.path).to_pyarrow_table().sort_by("id").to_pylist() == [
        {"id": 1, "name": "a", "more": None},
        {"id": 2, "name": "b", "more": 0.5},
    ]
    with pytest.raises(TargetError, match="column `more`: the table has double, it would get string"):
        sink.prepare_target(schema_of(id=pa.int64(), name=pa.string(), more=pa.string()))


def test_a_checkpoint_that_was_staged_before_a_column_was_added_still_commits(place: Place) -> None:
    sink = place.sink(mergeSchema=True)
    sink.prepare_target(SCHEMA)
    staged = stage(sink, 1, ROWS)
    sink.prepare_target(schema_of(id=pa.int64(), name=pa.string(), more=pa.int64()))
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert DeltaTable(place.path).to_pyarrow_table().num_rows == len(ROWS)


@pytest.mark.parametrize(
    ("table", "wanted", "reason"),
    [
        (["id"], ["name"], "PartitionMismatch: the table is partitioned by id, it would get name"),
        ([], ["name"], "PartitionMismatch: the table is partitioned by no columns"),
        (None, ["no"], "SchemaMismatch: there is no column `no`; the rows have id, name"),
        (None, ["id", "name"], "every column is a partition column"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(
    place: Place, table: Sequence[str] | None, wanted: list[str], reason: str
) -> None:
    if table is not None:
        DeltaTable.create(place.path, SCHEMA, partition_by=list(table))
    with pytest.raises(TargetError, match=reason):
        place.sink(partitionBy=wanted).prepare_target(SCHEMA)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.float64(), pa.binary()])
def test_partition_values_that_readers_take_differently_are_refused(place: Place, kind: pa.DataType) -> None:
    rows = schema_of(id=pa.int64(), at=kind)
    with pytest.raises(TargetError, match=r"partition column `at` is .*; expected strings, whole numbers, dates"):
        place.sink(partitionBy=["at"]).prepare_target(rows)
    assert not place.directory.exists()


def test_partition_values_come_back_as_they_were(place: Place) -> None:
    rows = pa.table(
        {
            "n": pa.array([1, -2, None], pa.int32()),
            "s": ["a b/c=%'é", None, "x"],
            "d": [datetime.date(2024, 2, 29), None, datetime.date(1969, 12, 31)],
            "b": [True, None, False],
            "v": [1, 2, 3],
        }
    )
    write(place.sink(partitionBy=["n", "s", "d", "b"]), 1, rows)
    found = DeltaTable(place.path).to_pyarrow_table().sort_by("v").select(rows.column_names)
    assert found.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("properties", "write_mode", "message"),
    [
        ({"delta.appendOnly": "true"}, "complete", "the table is append-only"),
        ({"delta.enableChangeDataFeed": "true"}, "upsert", "change data feed"),
        ({"delta.enableDeletionVectors": "true"}, "append", "table feature `deletionVectors` is not supported"),
    ],
)
def test_tables_that_demand_what_we_cannot_do_are_refused_at_the_start(
    place: Place, properties: dict[str, str], write_mode: str, message: str
) -> None:
    DeltaTable.create(place.path, SCHEMA, configuration=properties)
    more: dict[str, Any] = {"key": ["id"]} if write_mode == "upsert" else {}
    with pytest.raises(TargetError, match=message) as caught:
        place.sink(write=write_mode, **more).prepare_target(SCHEMA)
    assert caught.value.reason == "TableFeature"


def test_a_feature_that_is_added_while_we_run_is_refused_before_the_commit(place: Place) -> None:
    sink = place.sink()
    sink.prepare_target(SCHEMA)
    staged = stage(sink, 1, ROWS)
    DeltaTable(place.path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    made = commit(sink, staged)
    assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"TableFeature"})
    assert place.rows() == []


def test_a_constraint_is_refused_by_its_name(place: Place) -> None:
    place.sink().prepare_target(SCHEMA)
    DeltaTable(place.path).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(TargetError, match="check constraint `positive` is not supported"):
        place.sink().prepare_target(SCHEMA)


COLUMN = {"name": "x", "type": "long", "nullable": True}


@pytest.mark.parametrize(
    ("protocol", "properties", "metadata", "message"),
    [
        ((3, 7, ["columnMapping"], ["columnMapping"]), {}, {}, "`columnMapping`"),
        ((1, 7, ["rowTracking", "domainMetadata"], None), {}, {}, "`domainMetadata`"),
        ((1, 7, ["neverHeardOf"], None), {}, {}, "`neverHeardOf`"),
        ((4, 8, None, None), {}, {}, "protocol version 4/8: at most 3/7 is known"),
        ((2, 5, None, None), {"delta.columnMapping.mode": "name"}, {}, "column mapping"),
        ((1, 2, None, None), {"delta.setTransactionRetentionDuration": "interval 1 day"}, {}, "expire"),
        ((1, 4, None, None), {}, {"delta.generationExpression": "1"}, "column `x`: a generation expression"),
        ((1, 6, None, None), {}, {"delta.identity.start": 1}, "column `x`: an identity column"),
        ((1, 2, None, None), {}, {"delta.invariants": "{}"}, "column `x`: an invariant"),
        ((1, 2, None, None), {}, {"CURRENT_DEFAULT": "1"}, "column `x`: a default"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    protocol: Any, properties: dict[str, str], metadata: dict[str, Any], message: str
) -> None:
    schema = json.dumps({"type": "struct", "fields": [{**COLUMN, "metadata": metadata}]})
    plain = json.dumps({"type": "struct", "fields": [{**COLUMN, "metadata": {}}]})
    assert message in next(refusals(protocol, properties, schema, Write.APPEND))
    assert list(refusals((1, 2, None, None), {"delta.appendOnly": "true"}, plain, Write.APPEND)) == []


VALUES = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(width=64),
        "s": st.none() | st.text(max_size=40) | st.just("x" * 32 + "\U0010ffff"),
        "t": st.none() | st.datetimes(),
        "d": st.none() | st.dates(),
        "m": st.none() | st.decimals(-(10**14), 10**14, allow_nan=False, places=4),
    }
)
KINDS = schema_of(
    n=pa.int64(), f=pa.float64(), s=pa.string(), t=pa.timestamp("us"), d=pa.date32(), m=pa.decimal128(38, 4)
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, min_size=1, max_size=8))
def test_statistics_never_leave_out_a_value_of_the_file(tmp_path_factory: Any, rows: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("table") / "t"
    place = Place(folder, str(folder), {})
    write(place.sink(), 1, pa.Table.from_pylist(rows, KINDS))
    (add,) = place.active().values()
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == len(rows)
    for name in KINDS.names:
        values = [row[name] for row in rows if row[name] is not None]
        assert stats["nullCount"][name] == len(rows) - len(values)
        if name not in stats["minValues"]:
            continue
        low, high = (_read(stats[side][name], name) for side in ("minValues", "maxValues"))
        assert all(low <= value <= high for value in values), (name, low, high, values)


def _read(value: Any, name: str) -> Any:
    """A bound, as a reader takes it."""
    if name == "t":
        return datetime.datetime.fromisoformat(value)
    if name == "d":
        return datetime.date.fromisoformat(value)
    return decimal.Decimal(str(value)) if name == "m" else value


def test_files_are_rolled_and_the_log_says_their_sizes(place: Place) -> None:
    sink = place.sink(targetFileSize="64KiB", compression="none")
    sink.prepare_target(SCHEMA)
    staged = stage(sink, 1, [(number, f"{number:x}" * 30) for number in range(5_000)])
    files = staged.present()[0][1]["files"]
    assert len(files) > 2
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert sum(json.loads(add["stats"])["numRecords"] for add in place.active().values()) == 5_000
    for path, add in place.active().items():
        assert (place.directory / path).stat().st_size == add["size"]


def test_upkeep_compacts_and_vacuums_when_it_is_due_and_spares_what_is_staged(place: Place) -> None:
    sink = place.sink(maintenance={"optimizeEvery": 2, "vacuumEvery": 2, "vacuumRetention": "168h"})
    sink.prepare_target(SCHEMA)
    for checkpoint, rows in ((1, ROWS), (2, MORE)):
        commit(sink, stage(sink, checkpoint, rows), checkpoint - 1)
    staged = stage(sink, 3, [(99, "later")])
    sink.post_commit(1, ())
    assert len(place.active()) == 2
    sink.post_commit(2, ())
    assert len(place.active()) == 1
    assert commit(sink, staged, 2).answers() == {Answer.COMMITTED}
    assert len(place.rows()) == len(ROWS + MORE) + 1


def given_up_long_ago(place: Place) -> None:
    """What the log has given up so far, it has given up at the beginning of time."""
    for path in (place.directory / "_delta_log").glob("*.json"):
        path.write_text(re.sub(r'"deletionTimestamp":\d+', '"deletionTimestamp":1', path.read_text()))


def test_a_vacuum_removes_what_was_given_up_for_long_enough_and_nothing_else(place: Place) -> None:
    sink = place.sink(maintenance={"optimizeEvery": 3, "vacuumEvery": 3})
    sink.prepare_target(SCHEMA)
    for checkpoint, rows in ((1, ROWS), (2, MORE)):
        commit(sink, stage(sink, checkpoint, rows), checkpoint - 1)
    long_ago, pending = set(place.active()), stage(sink, 4, [(99, "pending")])
    for _, committable in pending.present():
        os.utime(place.directory / committable["files"][0]["path"], (0, 0))
    sink.post_commit(3, ())
    assert long_ago <= place.unnamed(), "a reader may still be at them"
    given_up_long_ago(place)
    commit(sink, stage(sink, 3, [(5, "five")]), 2)
    recently = set(place.active())
    sink.post_commit(6, ())
    assert {name for name in place.unnamed() if name in long_ago | recently} == recently
    assert commit(sink, pending, 3).answers() == {Answer.COMMITTED}
    assert len(place.rows()) == len(ROWS + MORE) + 2


def test_upkeep_that_fails_says_why_and_takes_nothing_away(place: Place) -> None:
    sink = place.sink(maintenance={"vacuumEvery": 1, "vacuumRetention": "1h"})
    sink.prepare_target(SCHEMA)
    assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
    with pytest.raises(ConnectionError, match=r"vacuuming the table: .* minimum retention .* 168 hours, got 1 hours"):
        sink.post_commit(1, ())
    assert len(place.rows()) == len(ROWS)


@pytest.mark.integration
def test_wrong_keys_and_missing_buckets_are_said_by_name_and_no_secret_is(s3_server: S3Server) -> None:
    place = s3_place(s3_server, s3_server.endpoint)
    wrong = Place(place.directory, place.path, {**place.storage, "secretKey": "wrong-secret"})
    with pytest.raises(TargetError, match="PermissionDenied") as caught:
        wrong.sink().prepare_target(SCHEMA)
    assert "wrong-secret" not in str(caught.value)
    nowhere = Place(place.directory, "s3://no-such-bucket/table", place.storage)
    with pytest.raises(TargetError, match="BucketMissing"):
        nowhere.sink().prepare_target(SCHEMA)


@pytest.mark.integration
def test_what_is_removed_leaves_no_object_behind(s3_server: S3Server) -> None:
    place = s3_place(s3_server, s3_server.endpoint)
    sink = place.sink()
    sink.prepare_target(SCHEMA)
    harness.ask(sink, "abort", stage(sink, 1, ROWS))
    client = s3_server.client()
    found = client.list_objects_v2(Bucket=place.path.split("/")[2])["Contents"]
    client.close()
    assert [entry["Key"] for entry in found] == [f"some/table/_delta_log/{0:020d}.json"]


@pytest.mark.integration
def test_the_environment_of_the_process_is_not_used(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3_place(s3_server, s3_server.endpoint)
    poison = {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "x", "AWS_DEFAULT_REGION": "x",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_PROFILE": "none",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_SKIP_SIGNATURE": "true",
    }  # fmt: skip
    for name, value in poison.items():
        monkeypatch.setenv(name, value)
    sink = place.sink()
    sink.prepare_target(SCHEMA)
    assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "x")
    with pytest.raises(ConfigurationError, match="AmbientCredentials: AWS_SESSION_TOKEN is set"):
        sink.prepare_target(SCHEMA)
    keyless = Place(place.directory, place.path, {"endpoint": s3_server.endpoint})
    with pytest.raises(ConfigurationError, match="MissingCredentials"):
        keyless.sink().prepare_target(SCHEMA)
