"""The jdbc sink when answers are lost, committers race, values do not fit, and when a message could tell a password."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import ConfigurationError, TargetError, TargetUnavailable
from sinkruntime.sinks.jdbc.database import Passing
from sinkruntime.spark.failure import TaskFailure
from tests.servers import postgresql
from tests.servers.postgresql import PASSWORD
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import commit, stage
from tests.sinks.jdbc_places import MariaDBPlace, PostgreSQLPlace, make, visible

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(toxiproxy: Toxiproxy, postgresql_place: PostgreSQLPlace) -> Iterator[Proxy]:
    with toxiproxy.proxy(postgresql_place.server.address) as proxy:
        yield proxy


@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_a_commit_whose_answer_is_lost_is_found_by_its_evidence(
    postgresql_place: PostgreSQLPlace, proxy: Proxy, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgresql_place
    sink = make(place, mode=mode)
    through = make(place, address=proxy.listen, mode=mode)
    staged = stage(sink, 1, ROWS, MORE)
    losing = "COMMIT" if mode == "staging" else "COMMIT PREPARED"
    lose_answers_of(losing, proxy, monkeypatch)
    made = commit(through, staged)
    assert Answer.UNKNOWN in made.answers()
    monkeypatch.undo()
    harness.ask(sink, "probe", staged)
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert visible(place) == Counter(ROWS + MORE)
    assert sink.evidence().checkpoint == 1


def lose_answers_of(statement: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first such statement on, requests arrive and no answer comes back."""
    from sinkruntime.sinks.jdbc.postgresql import PostgreSQLSession

    former = PostgreSQLSession.run

    def run(self: PostgreSQLSession, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if sql.startswith(statement):
            proxy.add_toxic("limit_data", bytes=0)
        return former(self, sql, *values)

    monkeypatch.setattr(PostgreSQLSession, "run", run)


def test_a_prepare_whose_answer_is_lost_is_rolled_back_by_the_retry(
    postgresql_place: PostgreSQLPlace, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgresql_place
    through, sink = make(place, address=proxy.listen, mode="xa"), make(place, mode="xa")
    writer = harness.open_writer(through)
    writer.write(harness.batch_of(ROWS))
    lose_answers_of("PREPARE", proxy, monkeypatch)
    with pytest.raises(Passing, match="AnswerLost"):
        writer.prepare_commit(1)
    monkeypatch.undo()
    writer.close()
    assert len(place.prepared()) == 1
    kept = stage(sink, 1, ROWS, attempt=1)
    assert place.prepared() == {kept.present()[0][1]["xid"]}
    assert commit(sink, kept).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter(ROWS)


def test_a_server_that_is_not_reached_is_tried_again_and_tells_no_password(
    postgresql_place: PostgreSQLPlace, proxy: Proxy
) -> None:
    staged = stage(make(postgresql_place), 1, ROWS)
    proxy.disable()
    sink = make(postgresql_place, address=proxy.listen)
    committer = sink.create_aggregated_committer()
    request = harness.requests_for(sink, staged).aggregated[0]
    committer.commit([request])
    assert request.answer is Answer.RETRY_LATER
    with pytest.raises(TargetUnavailable, match="NotReached") as caught:
        sink.evidence()
    assert PASSWORD not in f"{request.message} {caught.value!r} {caught.value}"
    committer.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_a_writer_without_its_server_says_where_it_is_and_no_password(
    kind: str, mode: str, postgresql_place: PostgreSQLPlace, mariadb_place: MariaDBPlace, toxiproxy: Toxiproxy
) -> None:
    place = postgresql_place if kind == "postgresql" else mariadb_place
    with toxiproxy.proxy(place.server.address) as proxy:
        sink = make(place, address=proxy.listen, mode=mode)
        writer = harness.open_writer(sink)
        proxy.disable()
        with pytest.raises(ConnectionError) as caught:
            writer.write(harness.batch_of(ROWS))
        said = TaskFailure.wrap("lake", 0, caught.value)
        writer.close()
    assert proxy.listen in str(said)
    assert "TargetUnavailable" in str(said)
    assert PASSWORD not in f"{said} {caught.value!r}"


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_wrong_password_is_refused_and_not_told(
    kind: str, postgresql_place: PostgreSQLPlace, mariadb_place: MariaDBPlace
) -> None:
    place = postgresql_place if kind == "postgresql" else mariadb_place
    url = place.options()["url"].replace(PASSWORD, "wrong-secret")
    sink = make(place, url=url)
    with pytest.raises(TargetError) as caught:
        sink.prepare_target(harness.SCHEMA)
    assert caught.value.reason in ("ConnectionRefused", "PermissionDenied")
    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {sink.options!r} {sink.options.address!r}"
    assert "wrong-secret" not in told


def test_a_commit_that_ends_in_a_deadlock_is_tried_again(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    place.query("DROP TABLE ~.t")
    sink = make(place, write="upsert", key=["id"])
    sink.prepare_target(harness.SCHEMA)
    commit(sink, stage(sink, 1, [(1, "a"), (2, "b")]))
    staged = stage(sink, 2, [(2, "d"), (1, "c")])
    made: list[harness.Round] = []
    committing = threading.Thread(target=lambda: made.append(commit(sink, staged, 1)))
    with place.server.connect("sinkjob") as other, other.transaction():
        other.execute("SET LOCAL deadlock_timeout = '60s'")  # the committer finds it out first
        other.execute(f'UPDATE "{place.schema}".t SET name = name WHERE id = 2'.encode())
        committing.start()
        wait_for_a_lock(place)
        other.execute(f'UPDATE "{place.schema}".t SET name = name WHERE id = 1'.encode())
        committing.join(timeout=60)
    assert (made[0].answers(), made[0].reasons()) == ({Answer.RETRY_LATER}, {"Deadlock"})
    assert commit(sink, staged, 1).answers() == {Answer.COMMITTED}
    assert visible(place) == Counter([(1, "c"), (2, "d")])


def wait_for_a_lock(place: PostgreSQLPlace) -> None:
    """Until the committer waits for the row that another session holds."""
    for _ in range(200):
        waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sinkjob' AND wait_event_type = 'Lock'"
        if place.query(waits):
            return
        time.sleep(0.05)
    raise AssertionError("nobody waits")


def test_many_committers_at_once_commit_once(postgresql_place: PostgreSQLPlace) -> None:
    sink = make(postgresql_place)
    staged = stage(sink, 1, ROWS, MORE)
    rounds: list[harness.Round] = []
    barrier = threading.Barrier(5)

    def run() -> None:
        barrier.wait(timeout=20)
        rounds.append(commit(sink, staged, may_have_landed=True))

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    answers = [made.aggregated[0].answer for made in rounds]
    assert sorted(answer or "" for answer in answers) == ["already_committed"] * 4 + ["committed"]
    assert visible(postgresql_place) == Counter(ROWS + MORE)


@pytest.mark.parametrize("mode", ["staging", "xa"])
def test_a_zombie_inside_its_commit_and_a_fence_leave_one_winner(postgresql_place: PostgreSQLPlace, mode: str) -> None:
    sink = make(postgresql_place, mode=mode)
    for checkpoint in range(1, 6):
        staged = stage(sink, checkpoint, ROWS)
        early, late = harness.next_order(), harness.next_order()
        made: dict[str, harness.Round] = {}
        threads = [
            threading.Thread(target=lambda: made.update(commit=commit(sink, staged, checkpoint - 1, order=early))),  # noqa: B023
            threading.Thread(target=lambda: made.update(fence=harness.ask(sink, "fence", staged, order=late))),  # noqa: B023
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        if made["fence"].all[0].answer is Answer.FENCED:
            assert made["commit"].reasons() == {"Fenced"}
        assert commit(sink, staged, checkpoint - 1, may_have_landed=True).answers() <= YES
    assert visible(postgresql_place) == Counter(ROWS * 5)


def test_a_value_that_does_not_fit_fails_the_task_before_the_decision(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    place.query("DROP TABLE ~.t")
    place.query("CREATE TABLE ~.t (id integer, name varchar(5) NOT NULL)")
    sink = make(place)
    sink.prepare_target(harness.SCHEMA)
    bad: list[list[harness.Row]] = [[(2**40, "x")], [(1, "too long")], [(1, None)], [(1, "a\0b")]]
    for rows in bad:
        writer = harness.open_writer(sink)
        with pytest.raises(TargetError, match="RowsRefused"):
            fill(writer, rows)
        writer.abort_prepare()
        writer.close()
    assert place.staged() == set()


def fill(writer: Any, rows: list[harness.Row]) -> None:
    writer.write(harness.batch_of(rows))
    writer.prepare_commit(1)


def test_other_columns_and_missing_tables_are_refused_by_name(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    more = pa.schema([*harness.SCHEMA, pa.field("more", pa.int64())])
    with pytest.raises(TargetError, match="column `more`: the target has no such column, it would get int64"):
        make(place).prepare_target(more)
    place.query("ALTER TABLE ~.t ADD COLUMN must integer NOT NULL")
    with pytest.raises(TargetError, match="column `must`: the target has integer NOT NULL, the rows do not have it"):
        make(place).prepare_target(harness.SCHEMA)
    place.query("DROP TABLE ~.t")
    with pytest.raises(TargetError, match="TableMissing"):
        make(place, sink="third", schemaSaveMode="ErrorWhenNotExists").prepare_target(harness.SCHEMA)
    odd: dict[str, pa.DataType] = {"id": pa.duration("us")}
    with pytest.raises(TargetError, match="UnsupportedType: column `id`"):
        make(place, sink="fourth").prepare_target(pa.schema(odd))


def test_save_modes_and_statements_run_once_per_job(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    place.query("INSERT INTO ~.t VALUES (7, 'old')")
    with pytest.raises(TargetError, match="TargetNotEmpty"):
        make(place, sink="second", dataSaveMode="ErrorWhenExists").prepare_target(harness.SCHEMA)
    table = f'"{place.schema}".log'
    options: dict[str, Any] = {
        "dataSaveMode": "Drop",
        "preSql": [f"CREATE TABLE IF NOT EXISTS {table} (what text)", f"INSERT INTO {table} VALUES ('100 % before?')"],
        "postSql": [f"INSERT INTO {table} VALUES ('after')"],
    }
    sink = make(place, sink="third", **options)
    for _ in range(2):
        sink.prepare_target(harness.SCHEMA)
        assert place.query("SELECT count(*) FROM ~.t") in ([(0,)], [(len(ROWS),)])
        commit(sink, stage(sink, 1, ROWS), may_have_landed=True)
    assert visible(place) == Counter(ROWS)
    assert place.query("SELECT what FROM ~.log") == [("100 % before?",), ("after",)]


def test_an_evidence_that_is_gone_or_ahead_stops_by_name(postgresql_place: PostgreSQLPlace) -> None:
    sink = make(postgresql_place)
    commit(sink, stage(sink, 2, ROWS))
    assert commit(sink, stage(sink, 3, MORE), 1).reasons() == {"TargetAheadOfLedger"}
    postgresql_place.query("DELETE FROM ~._sinkjob_evidence")
    assert commit(sink, stage(sink, 3, MORE), 2).reasons() == {"TargetBehindLedger"}
    assert visible(postgresql_place) == Counter(ROWS)


def test_a_server_with_too_little_room_is_told_by_the_first_writer_what_to_set(
    postgresql_place: PostgreSQLPlace,
) -> None:
    sink = make(postgresql_place, mode="xa")
    context = replace(harness.writer_context(sink, Lineage(1, 1, 0, 13, 0)), pending_max=4)
    writer = sink.create_writer(context)
    with pytest.raises(ConfigurationError, match=r"at most 64 prepared transactions; 13 writers .* = 65") as caught:
        writer.write(harness.batch_of(ROWS))
    assert "max_prepared_transactions in postgresql.conf to 65 or more" in caught.value.advice
    writer.abort_prepare()
    writer.close()


@pytest.mark.slow
def test_what_is_staged_outlives_a_crash_where_the_database_commits_without_waiting() -> None:
    with postgresql.serve() as server:
        server.make_database("sinkjob")
        place = PostgreSQLPlace(server, "public")
        for setting in ("wal_writer_delay = '10s'", "wal_writer_flush_after = '100MB'"):
            place.query(f"ALTER SYSTEM SET {setting}")
        place.query("ALTER DATABASE sinkjob SET synchronous_commit = off")
        place.query("SELECT pg_reload_conf()")
        sink = make(place)
        sink.prepare_target(harness.SCHEMA)
        staged = stage(sink, 1, ROWS)
        server.kill()
        server.start()
        assert commit(sink, staged).answers() == {Answer.COMMITTED}
        assert visible(place) == Counter(ROWS)
