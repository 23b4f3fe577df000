"""Upserts and changes of the jdbc sink in real databases: the table equals what a dict would hold."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from tests.sinks import harness
from tests.sinks.harness import Staged, commit
from tests.sinks.jdbc_places import Place, PostgreSQLPlace, SQLitePlace, make

_FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "op": pa.string()}
SCHEMA = pa.schema(_FIELDS)
PLACES = ["postgresql_place", "mariadb_place", "sqlite_place", "duckdb_place"]
Change = tuple[int, str | None, str]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def stage(sink: Any, checkpoint: int, *tasks: list[Change], schema: pa.Schema = SCHEMA) -> Staged:
    items = []
    for subtask, changes in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, schema))
        writer.open()
        for start in range(0, len(changes), 7):
            rows = [dict(zip(SCHEMA.names, change, strict=True)) for change in changes[start : start + 7]]
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return Staged(checkpoint, 1, tuple(items))


@pytest.mark.integration
@pytest.mark.parametrize("write", ["upsert", "changes"])
def test_the_table_equals_a_reference_with_four_writers(place: Place, write: str) -> None:
    options = {"write": write, "key": ["id"], "table": place.options()["table"][:-1] + "c"}
    if write == "changes":
        options["deleteWhen"] = "op = 'D'"
    sink = make(place, **options)
    sink.prepare_target(SCHEMA)
    reference: dict[int, Change] = {}
    chance = random.Random(write)
    for checkpoint in range(1, 5):
        tasks: list[list[Change]] = [[] for _ in range(4)]
        for number in range(200):
            key = chance.randrange(60)
            change: Change = (key, f"n{checkpoint}-{number}", "D" if chance.random() < 0.2 else "U")
            tasks[key % 4].append(change)  # as the sink's distribution has it
            if write == "changes" and change[2] == "D":
                reference.pop(key, None)
            else:
                reference[key] = change
        assert commit(sink, stage(sink, checkpoint, *tasks), checkpoint - 1).answers() == {Answer.COMMITTED}
    assert sorted(tuple(row) for row in place.query("SELECT id, name, op FROM ~.c")) == sorted(reference.values())
    assert place.staged() == set()
    distribution = sink.distribution()
    assert distribution is not None
    assert distribution.keys == ("id",)


@pytest.mark.integration
def test_a_null_in_the_key_and_a_table_without_one_are_refused(place: Place) -> None:
    sink = make(place, write="upsert", key=["id"])
    with pytest.raises(TargetError, match="KeyNotUnique") as caught:
        sink.prepare_target(harness.SCHEMA)
    assert caught.value.path == "options.key"
    writer = sink.create_writer(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0)))
    with pytest.raises(TargetError, match="NullInKey"):
        writer.write(pa.RecordBatch.from_pylist([{"id": None, "name": "x"}], schema=harness.SCHEMA))
    writer.abort_prepare()
    writer.close()
    assert place.staged() == set()


@pytest.mark.integration
@pytest.mark.parametrize(
    "keys",
    ["CONSTRAINT k PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED", "CONSTRAINT k UNIQUE (id) DEFERRABLE"],
    ids=["primary", "unique"],
)
def test_a_key_that_postgresql_checks_late_is_refused_at_the_start(
    postgresql_place: PostgreSQLPlace, keys: str
) -> None:
    """`ON CONFLICT` takes no such key: each checkpoint would be held, after its decision."""
    sink = make(postgresql_place, write="upsert", key=["id"])
    postgresql_place.query(f"DROP TABLE ~.t; CREATE TABLE ~.t (id bigint, name text, {keys})")
    with pytest.raises(TargetError, match="KeyNotUnique"):
        sink.prepare_target(harness.SCHEMA)


@pytest.mark.integration
def test_columns_that_a_postgresql_index_only_includes_are_no_part_of_the_key(
    postgresql_place: PostgreSQLPlace,
) -> None:
    postgresql_place.query("DROP TABLE ~.t; CREATE TABLE ~.t (id bigint, name text)")
    postgresql_place.query("CREATE UNIQUE INDEX ON ~.t (id) INCLUDE (name)")
    with pytest.raises(TargetError, match="KeyNotUnique"):
        make(postgresql_place, write="upsert", key=["id", "name"]).prepare_target(harness.SCHEMA)
    sink = make(postgresql_place, write="upsert", key=["id"])
    sink.prepare_target(harness.SCHEMA)
    assert commit(sink, harness.stage(sink, 1, [(1, "a")]), 0).answers() == {Answer.COMMITTED}
    assert postgresql_place.query("SELECT id, name FROM ~.t") == [(1, "a")]


MADE = [
    ("postgresql_place", "staging", "name text GENERATED ALWAYS AS ('x') STORED", True),
    ("postgresql_place", "xa", "name text GENERATED ALWAYS AS ('x') STORED", True),
    ("postgresql_place", "staging", "name text, id bigint GENERATED ALWAYS AS IDENTITY", True),
    ("postgresql_place", "xa", "name text, id bigint GENERATED ALWAYS AS IDENTITY", False),
    ("postgresql_place", "staging", "name text, id bigint GENERATED BY DEFAULT AS IDENTITY", False),
    ("mariadb_place", "staging", "name text GENERATED ALWAYS AS ('x') STORED", True),
    ("mariadb_place", "staging", "name text DEFAULT (concat('x', 'y'))", False),
]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "mode", "columns", "is_refused"), MADE)
def test_columns_that_the_database_makes_itself_are_refused_at_the_start(
    name: str, mode: str, columns: str, is_refused: bool, request: pytest.FixtureRequest
) -> None:
    """Else the first checkpoint would be refused after its decision."""
    place = request.getfixturevalue(name)
    place.query("DROP TABLE ~.t")
    place.query(f"CREATE TABLE ~.t ({columns if ' id ' in columns else f'id bigint, {columns}'})")
    sink = make(place, mode=mode)
    if is_refused:
        with pytest.raises(TargetError, match="makes its values itself; leave it out by `select`"):
            sink.prepare_target(harness.SCHEMA)
        return
    sink.prepare_target(harness.SCHEMA)
    assert commit(sink, harness.stage(sink, 1, [(7, "a")]), 0).answers() == {Answer.COMMITTED}
    assert place.query("SELECT id, name FROM ~.t") == [(7, "a")]


def test_sqlite_has_one_table_however_its_name_is_written(sqlite_place: SQLitePlace) -> None:
    sqlite_place.query("DROP TABLE ~.t")
    sqlite_place.query("CREATE TABLE ~.T (id integer, name text)")
    sink = make(sqlite_place)
    sink.prepare_target(harness.SCHEMA)
    known = sink.evidence().target
    sink.prepare_target(harness.SCHEMA)
    assert known == sink.evidence().target != ""
    assert commit(sink, harness.stage(sink, 1, [(1, "a")]), 0).answers() == {Answer.COMMITTED}
    assert sqlite_place.query("SELECT id, name FROM ~.t") == [(1, "a")]
