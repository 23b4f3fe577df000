"""What the paimon sink turns down, and in which words: tables of other kinds, damaged ones, columns that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.errors import TargetError
from tests.servers.paimon import PaimonPeer
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.test_paimon import TABLE, Place
from tests.sinks.test_paimon_faults import prepared

pytestmark = pytest.mark.integration


@pytest.fixture
def place(paimon_peer: PaimonPeer, tmp_path: Path) -> Place:
    return Place(paimon_peer, tmp_path, str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", '{"version": 4}', "[]", '{"version": 3}'])
def test_damaged_snapshots_and_schemas_are_never_guessed(place: Place, text: str) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    staged = stage(sink, 2, MORE)
    (place.table / "snapshot" / "snapshot-1").write_text(text)
    assert commit(sink, staged, 1).reasons() == {"TableDamaged"}
    with pytest.raises(TargetError, match="TableDamaged: snapshot/snapshot-1"):
        sink.evidence()
    (place.table / "schema" / "schema-0").write_text(text)
    with pytest.raises(TargetError, match="TableDamaged: schema/schema-0"):
        sink.prepare_target(harness.SCHEMA)


def test_damaged_manifests_and_consumers_are_never_guessed(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    first = place.snapshots()[0]
    staged = stage(sink, 2, MORE)
    path = place.table / "manifest" / first["deltaManifestList"]
    path.write_bytes(b"no avro")
    assert commit(sink, staged, 1).reasons() == {"TableDamaged"}
    path.unlink()
    assert commit(sink, staged, 1).reasons() == {"TableDamaged"}
    next(place.table.glob("consumer/*")).write_text("[]")
    with pytest.raises(TargetError, match="EvidenceDamaged"):
        sink.evidence()


def test_a_missing_table_is_said_by_name(place: Place) -> None:
    with pytest.raises(TargetError, match=r"options.table: TableMissing: there is no table db.rows in"):
        prepared(place, createTable=False)
    assert place.sink().evidence().checkpoint == 0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"changelog-producer": "input"}, "changelog-producer"),
        ({"deletion-vectors.enabled": "true"}, "deletion-vectors.enabled"),
        ({"merge-engine": "partial-update"}, "merge-engine"),
        ({"sequence.field": "name"}, "sequence.field"),
        ({"file.format": "orc"}, "file.format"),
        ({"bucket": "-1"}, "dynamic buckets"),
        ({"bucket": "-2"}, "postponed buckets"),
        ({"rowkind.field": "name"}, "rowkind.field"),
        ({"fields.name.aggregate-function": "max"}, "aggregate-function"),
    ],
)
def test_kinds_of_tables_that_are_not_written_are_refused_by_name(
    place: Place, options: dict[str, str], name: str
) -> None:
    sink = prepared(place, write="upsert", key=["id"])
    path = place.table / "schema" / "schema-0"
    schema = json.loads(path.read_text())
    schema["options"] |= options
    path.write_text(json.dumps(schema))
    with pytest.raises(TargetError, match=rf"options.table: UnsupportedTable: .*{name}"):
        sink.prepare_target(harness.SCHEMA)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write": "append"}, r"options.write: KeyMismatch: the table has a primary key \(id\)"),
        ({"write": "upsert", "key": ["name"]}, "options.key: KeyMismatch: the table's primary key is id"),
        ({"write": "upsert", "key": ["id"], "bucket": 3}, "options.bucket: BucketMismatch: the table has 2 buckets"),
        (
            {"write": "upsert", "key": ["id", "name"], "partitionBy": ["name"]},
            "options.key: KeyMismatch",
        ),
        ({"write": "upsert", "key": ["there"]}, "options.key: SchemaMismatch: there is no column `there`"),
    ],
)
def test_options_that_are_not_the_tables_are_said(place: Place, options: dict[str, Any], message: str) -> None:
    place.peer.create(
        place.folder,
        TABLE,
        [("id", "int64", False), ("name", "string", True)],
        primary_keys=["id"],
        options={"bucket": "2"},
    )
    with pytest.raises(TargetError, match=message):
        prepared(place, **options)


def test_columns_that_do_not_fit_are_said(place: Place) -> None:
    sink = prepared(place)
    cases: dict[str, dict[str, pa.DataType]] = {
        "column `id`: the table has int64, it would get string": {"id": pa.string(), "name": pa.string()},
        "column `more`: the table has no such column": {"id": pa.int64(), "name": pa.string(), "more": pa.int64()},
    }
    for message, fields in cases.items():
        with pytest.raises(TargetError, match=f"options.table: SchemaMismatch: {message}"):
            sink.prepare_target(pa.schema(fields))
    with pytest.raises(TargetError, match=r"column `name`: .* has no type in Paimon"):
        place.sink(table="db.other").prepare_target(pa.schema({"name": pa.time64("us")}))


def test_a_null_in_a_required_column_is_said(place: Place) -> None:
    place.peer.create(place.folder, TABLE, [("id", "int64", False), ("name", "string", False)])
    sink = prepared(place)
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `name`"):
        stage(sink, 1, ROWS)
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_a_place_that_cannot_be_one_is_said(place: Place) -> None:
    (place.folder / "db.db").write_text("a file")
    with pytest.raises(TargetError, match=r"options.catalog.warehouse: NotADirectory: .*db.db"):
        prepared(place)
