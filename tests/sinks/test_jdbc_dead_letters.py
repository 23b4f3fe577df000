"""Rows that a database refuses, in the jdbc sink: each goes to the dead letters alone, before the decision."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage, SinkWriter
from sinkruntime.dead_letters import DEAD_LETTER_SCHEMA, DeadLetters
from sinkruntime.environment import SystemClock
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.jdbc.refusals import Sieve
from sinkruntime.spark.task import Feed, WriterTask
from tests.sinks import harness
from tests.sinks.harness import Row, Staged, commit
from tests.sinks.jdbc_places import Place, PostgreSQLPlace, SQLitePlace, make, visible

#: What each database is asked to refuse: the table, the kept rows, the refused ones.
STRICT = "(id integer NOT NULL CHECK (id <> 13), name varchar(5) NOT NULL)"
GOOD: list[Row] = [(number, f"n{number}") for number in (1, 2, 3, 5, 8, 21, 34)]
BAD: list[Row] = [(2**40, "big"), (13, "check"), (14, "too long"), (15, None)]
SQLITE = "(id integer NOT NULL, name text NOT NULL)"
KINDS = [("postgresql_place", "staging"), ("postgresql_place", "xa"), ("mariadb_place", "staging"),
         ("mariadb_place", "xa"), ("sqlite_place", "staging")]  # fmt: skip


@dataclass(slots=True)
class Letters:
    """Stands for the dead-letter sink: what it is handed, and when it says that it is enough."""

    rows_max: int = 100
    rows: list[Row] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def __call__(self, rows: pa.RecordBatch, reason: str, message: str) -> None:
        self.rows += [(row["id"], row["name"]) for row in rows.to_pylist()]
        self.reasons.add(reason)
        assert message
        if len(self.rows) > self.rows_max:
            raise TargetError("TooManyRefused", "enough")


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0].removesuffix('_place')}-{kind[1]}")
def kind(request: pytest.FixtureRequest) -> tuple[Any, str]:
    return request.getfixturevalue(request.param[0]), request.param[1]


def writer_of(sink: Any, letters: Letters, schema: pa.Schema = harness.SCHEMA) -> SinkWriter:
    context = replace(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0), schema), reject=letters)
    writer: SinkWriter = sink.create_writer(context)
    writer.open()
    return writer


def give_up(writer: SinkWriter) -> None:
    writer.abort_prepare()
    writer.close()


def remade(place: Place, columns: str) -> None:
    place.query("DROP TABLE ~.t")
    place.query(f"CREATE TABLE ~.t {columns}")


def staged_of(sink: Any, writer: SinkWriter) -> Staged:
    return Staged(1, 1, ((Lineage(1, 1, 0, 1, 0), harness.finish(sink, writer, 1)),))


@pytest.mark.integration
def test_refused_rows_are_dead_letters_and_all_others_are_written(kind: tuple[Any, str]) -> None:
    place, mode = kind
    is_file = "sqlite" in place.options()["url"]
    remade(place, SQLITE if is_file else STRICT)
    bad: list[Row] = [(15, None), (16, None)] if is_file else BAD
    sink = make(place, mode=mode)
    sink.prepare_target(harness.SCHEMA)
    letters = Letters()
    writer = writer_of(sink, letters)
    for rows in (GOOD[:4] + bad[:1] + GOOD[4:], bad[1:], GOOD, [*bad, *GOOD]):
        writer.write(harness.batch_of(rows))
    staged = staged_of(sink, writer)
    assert letters.rows == [*bad, *bad]
    assert letters.reasons == {"RowsRefused"}
    assert staged.present()[0][1]["rows"] == 3 * len(GOOD)
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter(GOOD * 3)
    assert place.staged() == place.prepared() == set()


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_a_task_counts_what_is_written_and_what_is_dead_in_one_decision(
    postgresql_place: PostgreSQLPlace, mode: str
) -> None:
    """With the runtime's own task and another table of the same database as the dead-letter sink."""
    place = postgresql_place
    remade(place, STRICT)
    sink = make(place, mode=mode)
    rejects = make(place, sink="rejects", table=f"{place.schema}.rejects")
    sink.prepare_target(harness.SCHEMA)
    rejects.prepare_target(DEAD_LETTER_SCHEMA)
    feeds = (
        Feed(sink, harness.SCHEMA, dead_letters=DeadLetters("rejects", len(BAD))),
        Feed(rejects, DEAD_LETTER_SCHEMA, index=1, takes_refused=True),
    )
    lineage = Lineage(1, 1, 0, 1, 0)
    task = WriterTask(feeds, 1, 1, SystemClock())
    found = {row["sink"]: row for row in task.stage([harness.batch_of([*GOOD, *BAD])], lineage).to_pylist()}
    assert {name: row["rows"] for name, row in found.items()} == {"lake": len(GOOD), "rejects": len(BAD)}
    assert found["lake"]["seen"] == len(GOOD) + len(BAD)
    for made, name in ((sink, "lake"), (rejects, "rejects")):
        committable = made.committable_serializer.deserialize(1, found[name]["committable"])
        assert commit(made, Staged(1, 1, ((lineage, committable),))).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter(GOOD)
    letters = place.query("SELECT sink, checkpoint, reason, message, row FROM ~.rejects ORDER BY row")
    assert [row[:3] for row in letters] == [("lake", 1, "RowsRefused")] * len(BAD)
    told = " ".join(row[3] for row in letters)
    assert "violates check constraint" in told
    assert "value too long for type character varying(5)" in told
    assert {(row["id"], row.get("name")) for row in (json.loads(letter[4]) for letter in letters)} == set(BAD)


@pytest.mark.integration
def test_a_writer_whose_rows_are_all_refused_commits_none(kind: tuple[Any, str]) -> None:
    place, mode = kind
    remade(place, SQLITE)
    sink = make(place, mode=mode)
    sink.prepare_target(harness.SCHEMA)
    letters = Letters()
    writer = writer_of(sink, letters)
    writer.write(harness.batch_of([(1, None), (2, None), (3, None)]))
    assert commit(sink, staged_of(sink, writer)).answers() == {Answer.COMMITTED}
    assert (len(letters.rows), visible(place)) == (3, Counter())


@pytest.mark.integration
def test_more_than_agreed_ends_the_task_and_leaves_nothing(kind: tuple[Any, str]) -> None:
    place, mode = kind
    remade(place, SQLITE)
    sink = make(place, mode=mode)
    sink.prepare_target(harness.SCHEMA)
    writer = writer_of(sink, Letters(rows_max=2))
    with pytest.raises(TargetError, match="TooManyRefused"):
        writer.write(harness.batch_of([(number, None) for number in range(64)]))
    give_up(writer)
    assert place.staged() == place.prepared() == set()
    assert visible(place) == Counter()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["postgresql_place", "mariadb_place"])
def test_duplicate_keys_and_foreign_ones_are_dead_letters_in_mode_xa(name: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(name)
    place.query("CREATE TABLE ~.parents (name varchar(9) PRIMARY KEY)")
    place.query("INSERT INTO ~.parents VALUES ('a'), ('b')")
    remade(place, "(id bigint PRIMARY KEY, name varchar(9) REFERENCES ~.parents (name))")
    sink = make(place, mode="xa")
    sink.prepare_target(harness.SCHEMA)
    place.query("INSERT INTO ~.t VALUES (1, 'a')")
    letters = Letters()
    writer = writer_of(sink, letters)
    writer.write(harness.batch_of([(1, "b"), (2, "a"), (2, "b"), (3, "none"), (4, None)]))
    assert commit(sink, staged_of(sink, writer)).answers() == {Answer.COMMITTED}
    assert letters.rows == [(1, "b"), (2, "b"), (3, "none")]
    assert visible(place) == Counter([(1, "a"), (2, "a"), (4, None)])
    place.query("DROP TABLE ~.t")


@pytest.mark.integration
@pytest.mark.parametrize("with_letters", [True, False])
def test_a_key_that_our_own_prepared_transaction_holds_is_waited_for_and_no_dead_letter(
    postgresql_place: PostgreSQLPlace, with_letters: bool
) -> None:
    place = postgresql_place
    remade(place, "(id bigint PRIMARY KEY, name text)")
    sink = make(place, mode="xa", lockTimeout="200ms")
    sink.prepare_target(harness.SCHEMA)
    pending = harness.stage(sink, 1, [(1, "a")])
    letters = Letters()
    writer = writer_of(sink, letters) if with_letters else harness.open_writer(sink, 2)
    with pytest.raises(ConnectionError, match=r"LockTimeout: postgresql://127\.0\.0\.1:"):
        written(writer, [(1, "b")])
    give_up(writer)
    assert letters.rows == []
    assert commit(sink, pending).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter([(1, "a")])


def written(writer: SinkWriter, rows: list[Row]) -> None:
    writer.write(harness.batch_of(rows))
    writer.prepare_commit(2)


@pytest.mark.integration
def test_a_rule_that_would_wait_for_the_end_is_met_at_once(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    remade(place, "(id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)")
    sink = make(place, mode="xa")
    sink.prepare_target(harness.SCHEMA)
    letters = Letters()
    writer = writer_of(sink, letters)
    writer.write(harness.batch_of([(1, "a"), (1, "b")]))
    assert commit(sink, staged_of(sink, writer)).answers() == {Answer.COMMITTED}
    assert (letters.rows, visible(place)) == ([(1, "b")], Counter([(1, "a")]))


LATE = [
    ("postgresql_place", "(id bigint PRIMARY KEY, name text)", "unique index t_pkey"),
    ("postgresql_place", "(id bigint, name text, other int DEFAULT 1 CHECK (other < id))", "check t_check"),
    ("postgresql_place", "(id bigint, name text, EXCLUDE (name WITH =))", "unique index t_name_excl"),
    ("postgresql_place", "(id bigint REFERENCES ~.parents (id), name text)", "foreign key t_id_fkey"),
    ("mariadb_place", "(id bigint REFERENCES ~.parents (id), name text)", "foreign key t_ibfk_1"),
    ("mariadb_place", "(id bigint PRIMARY KEY, name text)", "the unique index of id"),
    ("mariadb_place", "(id bigint, name text, other int DEFAULT 1, CONSTRAINT c CHECK (other < id))", "check c"),
    ("sqlite_place", "(id integer PRIMARY KEY, name text)", "the primary key"),
    ("sqlite_place", "(id integer, name text UNIQUE)", "unique index sqlite_autoindex_t_1"),
    ("sqlite_place", "(id integer CHECK (id > 0), name text)", "a CHECK"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "columns", "said"), LATE)
def test_rules_that_are_met_after_the_decision_are_refused_with_dead_letters(
    name: str, columns: str, said: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(name)
    place.query("CREATE TABLE ~.parents (id bigint PRIMARY KEY)")
    remade(place, columns)
    sink = make(place)
    sink.prepare_target(harness.SCHEMA)
    writer = writer_of(sink, Letters())
    with pytest.raises(ConfigurationError, match=f"InvalidDeadLetter: .*: {said}") as caught:
        writer.write(harness.batch_of(GOOD))
    assert caught.value.path == "deadLetter"
    assert "mode: xa" in caught.value.advice
    give_up(writer)
    assert place.staged() == set()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["postgresql_place", "mariadb_place"])
def test_a_row_that_others_refer_to_may_refuse_to_be_deleted_too_late(
    name: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(name)
    remade(place, "(id bigint PRIMARY KEY, name varchar(9))")
    place.query("CREATE TABLE ~.children (parent bigint, CONSTRAINT kept FOREIGN KEY (parent) REFERENCES ~.t (id))")
    for write in ({"write": "upsert"}, {"write": "changes", "deleteWhen": "name = 'x'"}):
        writer = writer_of(make(place, key=["id"], **write), Letters())
        if write["write"] == "upsert":
            writer.write(harness.batch_of(GOOD))
        else:
            with pytest.raises(ConfigurationError, match=r"InvalidDeadLetter: .*: foreign key kept"):
                writer.write(harness.batch_of(GOOD))
        give_up(writer)
    place.query("DROP TABLE ~.children")


@pytest.mark.integration
@pytest.mark.parametrize("name", ["postgresql_place", "mariadb_place", "sqlite_place"])
def test_the_key_of_an_upsert_refuses_none_and_a_null_in_it_is_a_dead_letter(
    name: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(name)
    remade(place, "(id bigint PRIMARY KEY, name varchar(9))")
    sink = make(place, write="upsert", key=["id"])
    sink.prepare_target(harness.SCHEMA)
    letters = Letters()
    writer = writer_of(sink, letters)
    for rows in ([(1, "a"), (None, "b")], [(1, "c"), (2, "d")]):
        writer.write(pa.RecordBatch.from_pylist([{"id": n, "name": t} for n, t in rows], schema=harness.SCHEMA))
    assert commit(sink, staged_of(sink, writer)).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter([(1, "c"), (2, "d")])
    assert [(str(number), name) for number, name in letters.rows] == [("None", "b")]
    assert letters.reasons == {"NullInKey"}


def test_the_dead_letters_of_a_file_may_go_into_that_very_file(sqlite_place: SQLitePlace) -> None:
    """One process at a time writes to it: they are handed on when the writer has let go of it."""
    place = sqlite_place
    remade(place, SQLITE)
    sink, dead = make(place), make(place, sink="rejects", table="rejects", lockTimeout="1s")
    sink.prepare_target(harness.SCHEMA)
    dead.prepare_target(harness.SCHEMA)
    into = harness.open_writer(dead)
    letters = Letters()

    def reject(rows: pa.RecordBatch, reason: str, message: str) -> None:
        letters(rows, reason, message)
        into.write(rows)

    writer = sink.create_writer(replace(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0)), reject=reject))
    writer.write(harness.batch_of([(1, "a"), (2, None), (3, None)]))
    for made, by in ((sink, writer), (dead, into)):
        assert commit(made, staged_of(made, by)).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter([(1, "a")])
    assert place.query("SELECT id FROM ~.rejects") == [(2,), (3,)]


def test_duckdb_says_that_it_refuses_no_row_in_time(duckdb_place: Any) -> None:
    writer = writer_of(make(duckdb_place), Letters())
    with pytest.raises(ConfigurationError, match="InvalidDeadLetter: rows of duckdb are staged in files"):
        writer.write(harness.batch_of(GOOD))
    give_up(writer)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["postgresql_place", "mariadb_place"])
def test_a_check_of_the_table_fails_the_task_and_spares_rows_that_delete(
    name: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(name)
    columns = "(id bigint PRIMARY KEY, name varchar(9) NOT NULL, op varchar(1), CONSTRAINT c CHECK (name <> 'x'))"
    remade(place, columns)
    schema = pa.schema([*harness.SCHEMA, pa.field("op", pa.string())])
    sink = make(place, write="changes", key=["id"], deleteWhen="op = 'D'")
    sink.prepare_target(schema)
    place.query("INSERT INTO ~.t VALUES (1, 'old', 'I')")

    def write(rows: list[tuple[int, str | None, str]]) -> SinkWriter:
        writer: SinkWriter = sink.create_writer(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0), schema))
        writer.open()
        values = [dict(zip(schema.names, row, strict=True)) for row in rows]
        writer.write(pa.RecordBatch.from_pylist(values, schema=schema))
        return writer

    for bad in ((2, "x", "U"), (2, None, "U")):
        with pytest.raises(TargetError, match="RowsRefused"):
            give_up_after(write, bad)
    writer = write([(1, None, "D"), (2, "y", "I"), (3, "x", "D")])
    assert commit(sink, staged_of(sink, writer)).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter([(2, "y")])


def give_up_after(write: Any, row: tuple[int, str | None, str]) -> None:
    writer = write([row])  # MariaDB refuses here
    try:
        writer.prepare_commit(1)
    finally:
        give_up(writer)


def test_few_bad_rows_cost_few_statements() -> None:
    """One of 4,096 rows is found with two statements for each halving, and not by going through all of them."""

    class Counting:
        statements = 0

        def run(self, sql: str) -> None:
            self.statements += 1

    def write(piece: pa.RecordBatch, first: int) -> None:
        assert piece.column(0)[0].as_py() == first
        if 77 in piece.column(0).to_pylist():
            raise TargetError("RowsRefused", "no")

    session: Any = Counting()
    letters = Letters()
    rows: list[Row] = [(number, "") for number in range(4096)]
    assert Sieve(session, write).take(harness.batch_of(rows), 0, letters) == 4095
    assert letters.rows == [(77, "")]
    assert session.statements <= 2 * (1 + 2 * 12)
