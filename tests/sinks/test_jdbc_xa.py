"""The jdbc sink's contract, `mode: xa`: prepared transactions in real servers."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Answer, Sink
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.jdbc.prepared import check_limit
from tests.servers import postgresql
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES, SinkContract
from tests.sinks.harness import LEDGER, OTHER_LEDGER, Row, commit, stage
from tests.sinks.jdbc_places import MariaDBPlace, Place, PostgreSQLPlace, make, visible

pytestmark = pytest.mark.integration
#: Less than its `lockTimeout`, and more than a busy machine takes.
RESTART_SECONDS_MAX = 30.0
XID = f"sinkjob_{LEDGER}_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"


class XaContract(SinkContract):
    """What is the same in both."""

    golden_version: ClassVar[int] = 1
    golden_bytes: ClassVar[bytes] = b'{"rows":5,"xid":"%s"}' % XID.encode()
    golden_value: ClassVar[Any] = {"rows": 5, "xid": XID}

    def make_sink(self, place: Place, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        return make(place, ledger_id, sink, mode="xa", lockTimeout="3s")

    def read_visible(self, place: Place) -> Counter[Row]:
        return visible(place)

    def list_staged(self, place: Place) -> set[str]:
        return place.prepared()

    def lose_staged(self, place: Place) -> None:
        for xid in place.prepared():
            place.roll_back(xid)

    def recreate(self, place: Place) -> None:
        place.query("DROP TABLE ~.t")

    def test_clean_removes_losers_of_that_checkpoint_only(self, sink: Sink, place: Any) -> None:
        """As the suite's, with attempts of one number: a later one rolls back those before it by itself."""
        pending = stage(sink, 2, MORE)
        before = self.list_staged(place)
        winner = stage(sink, 1, ROWS)
        stage(sink, 1, ROWS)
        commit(sink, winner)
        for _ in range(2):
            harness.clean(sink, 1)
            assert self.list_staged(place) == before
        commit(sink, pending, 1)
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_what_is_left_prepared_is_gauged_whoevers_it_is(self, sink: Any, place: Any) -> None:
        stage(sink, 2, MORE)
        stage(make(place, OTHER_LEDGER, mode="xa"), 1, MORE)
        stage(sink, 1, ROWS)
        committer = sink.create_committer()
        first = committer.clean(1, 1)
        time.sleep(0.01)
        second = committer.clean(1, 1)
        committer.close()
        assert first["prepared_transactions"] == second["prepared_transactions"] == 2
        assert second["prepared_oldest_seconds"] > first["prepared_oldest_seconds"] >= 0

    def test_a_retry_rolls_back_its_own_lower_attempts_only(self, sink: Sink, place: Any) -> None:
        other = stage(sink, 2, MORE)
        stage(sink, 1, ROWS)
        kept = stage(sink, 1, ROWS, attempt=1)
        assert self.list_staged(place) == {item["xid"] for made in (other, kept) for _, item in made.present()}

    def test_an_unknown_transaction_never_means_committed(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        place.roll_back(staged.present()[0][1]["xid"])
        made = commit(sink, staged, may_have_landed=True)
        assert [request.answer for request in made.writers] == [Answer.REFUSED, Answer.COMMITTED]
        assert made.writers[0].reason == "CommittableLost"
        assert self.checkpoint_of(sink) == 0

    def test_a_writers_commit_without_an_answer_is_proved_by_its_row(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        place.commit_prepared(staged.present()[0][1]["xid"])
        assert harness.ask(sink, "probe", staged).writers[0].answer is Answer.ALREADY_COMMITTED
        assert commit(sink, staged, may_have_landed=True).answers() <= YES
        assert self.read_visible(place) == Counter(ROWS)
        assert place.query("SELECT count(*) FROM ~._sinkjob_writers") in ([(0,)], ((0,),))

    @pytest.mark.parametrize("ask", ["commit", "probe"])
    def test_evidence_that_moves_while_a_successor_looks_is_no_loss(self, sink: Any, place: Any, ask: str) -> None:
        """A former committer ends its round between two looks, and the row that proved the writer's commit goes."""
        staged = stage(sink, 1, ROWS)
        place.commit_prepared(staged.present()[0][1]["xid"])
        committer, former = sink.create_committer(), sink.create_aggregated_committer()
        former_round = harness.requests_for(sink, staged)
        evidence = committer._evidence

        def then_it_moves(look: Any) -> Any:
            def first_look(*arguments: Any) -> Any:
                found = look(*arguments)
                if former_round.aggregated[0].answer is None:
                    former.commit(former_round.aggregated)
                return found

            return first_look

        evidence.read, evidence.has_writer = then_it_moves(evidence.read), then_it_moves(evidence.has_writer)
        made = harness.requests_for(sink, staged, may_have_landed=True)
        getattr(committer, ask)(made.writers)
        committer.close()
        former.close()
        assert former_round.aggregated[0].answer is Answer.COMMITTED
        assert [request.answer for request in made.writers] == [Answer.ALREADY_COMMITTED]

    def test_a_restart_prepares_the_table_without_waiting_for_its_own_transactions(
        self, sink: Sink, place: Any
    ) -> None:
        """No DDL that our own prepared transaction keeps away: not of save modes, not of what the sink itself makes."""
        table = place.options()["table"]
        pre, post = f"CREATE TABLE {table}_log (what varchar(9))", f"INSERT INTO {table}_log VALUES ('after')"
        sink = make(
            place, mode="xa", lockTimeout="60s", dataSaveMode="Drop", preSql=[pre], postSql=[post], sink="other"
        )
        sink.prepare_target(harness.SCHEMA)
        staged = stage(sink, 1, ROWS, MORE)
        started = time.monotonic()
        sink.prepare_target(harness.SCHEMA)
        assert time.monotonic() - started < RESTART_SECONDS_MAX, "it waited for a lock"
        assert commit(sink, staged).answers() == {Answer.COMMITTED}
        assert commit(sink, staged, may_have_landed=True).answers() <= YES
        assert self.read_visible(place) == Counter(ROWS + MORE)
        assert [tuple(row) for row in place.query("SELECT what FROM ~.t_log")] == [("after",)]


class TestPostgreSQL(XaContract):
    @pytest.fixture
    def place(self, postgresql_place: PostgreSQLPlace) -> Place:
        return postgresql_place


class TestMariaDB(XaContract):
    @pytest.fixture
    def place(self, mariadb_place: MariaDBPlace) -> Place:
        return mariadb_place


@pytest.mark.parametrize("table", ["t", "_sinkjob_evidence", "_sinkjob_writers"])
@pytest.mark.parametrize("mode", ["xa", "staging"])
def test_a_table_that_takes_no_part_in_transactions_is_refused(
    mariadb_place: MariaDBPlace, mode: str, table: str
) -> None:
    """Its rows would be visible before the decision, and come again with each try of a commit that is rolled back."""
    mariadb_place.query(f"ALTER TABLE ~.{table} ENGINE=MyISAM")
    with pytest.raises(TargetError, match=f"the table {table} has the engine MyISAM") as caught:
        make(mariadb_place, mode=mode).prepare_target(harness.SCHEMA)
    assert caught.value.reason == "NotTransactional"
    assert "ENGINE=InnoDB" in caught.value.advice


def test_tables_that_are_made_take_part_in_transactions_whatever_the_server_prefers(
    mariadb_place: MariaDBPlace,
) -> None:
    place = mariadb_place
    place.query("DROP TABLE ~.t, ~._sinkjob_evidence, ~._sinkjob_writers")
    place.query("SET GLOBAL default_storage_engine = MyISAM")
    try:
        sink = make(place)
        sink.prepare_target(harness.SCHEMA)
        stage(sink, 1, ROWS)
    finally:
        place.query("SET GLOBAL default_storage_engine = InnoDB")
    engines = place.query("SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = DATABASE()")
    assert [row[0] for row in engines] == ["InnoDB"]


def test_ddl_that_another_jobs_transaction_keeps_away_ends_by_name(postgresql_place: PostgreSQLPlace) -> None:
    place = postgresql_place
    stage(make(place, mode="xa"), 1, ROWS)
    second = make(place, OTHER_LEDGER, mode="xa", lockTimeout="100ms", schemaSaveMode="Recreate")
    with pytest.raises(TargetError, match="LockTimeout") as caught:
        second.prepare_target(harness.SCHEMA)
    assert "prepared transaction of another job" in caught.value.advice
    assert "sinkjob doctor" in caught.value.advice
    assert len(place.prepared()) == 1


def test_a_server_that_prepares_nothing_is_refused_by_what_to_set(jdbc_postgresql: Any) -> None:
    with postgresql.serve(prepared_max=0) as server:
        server.make_database("sinkjob")
        place = PostgreSQLPlace(server, "public")
        with pytest.raises(ConfigurationError, match="TooFewPreparedTransactions") as caught:
            make(place, mode="xa").prepare_target(harness.SCHEMA)
    assert "set max_prepared_transactions in postgresql.conf to 2 or more" in caught.value.advice


@pytest.mark.parametrize(
    ("limit", "writers", "pending_max", "fits"),
    [(20, 4, 4, True), (19, 4, 4, False), (8, 4, 1, True), (None, 1_000, 16, True), (0, 1, 1, False)],
)
def test_the_limit_holds_all_pending_checkpoints_and_the_next_one(
    limit: int | None, writers: int, pending_max: int, fits: bool
) -> None:
    try:
        check_limit(limit, writers, pending_max, "x")
    except ConfigurationError:
        assert not fits
    else:
        assert fits
