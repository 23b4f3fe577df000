"""What a sink that routes must survive, whatever its tables' format: tests that each format's own class inherits.

Committers are the sink's own; `Flaky` stands between them and their tables, and dies or loses an answer at one step.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, CommitRequest, Lineage, Sink, WriterContext
from sinkruntime.errors import TargetError
from sinkruntime.tables.routing import RoutedCommitter
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import OTHER_LEDGER, Row, commit, stage

#: Three tables of two tasks; a fourth commit is the book's.
ROWS: tuple[list[Row], list[Row]] = ([(1, "one"), (2, "two"), (1, "uno")], [(3, "three"), (2, "due")])
ALL = Counter([*ROWS[0], *ROWS[1]])
STEPS = 4
DONE = {Answer.COMMITTED, Answer.ALREADY_COMMITTED}


class Killed(BaseException):
    """The process dies here: nobody catches it, nothing more runs."""


class Flaky:
    """A format whose commits are counted; `act(step, is_before)` is called around each, and may raise or answer."""

    def __init__(self, tables: Any, act: Callable[[int, bool, CommitRequest], None]) -> None:
        self._tables = tables
        self._act = act
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def committer(self, name: str) -> Any:
        return self._around(self._tables.committer(name))

    def book_committer(self) -> Any:
        return self._around(self._tables.book_committer())

    def _around(self, committer: Any) -> Any:
        flaky = self

        class Around:
            def __getattr__(self, name: str) -> Any:
                return getattr(committer, name)

            def commit(self, requests: Sequence[CommitRequest]) -> None:
                flaky._step += 1
                step = flaky._step
                flaky._act(step, True, requests[0])
                committer.commit(requests)
                flaky._act(step, False, requests[0])

        return Around()


def flaky_commit(sink: Any, staged: harness.Staged, act: Callable[[int, bool, CommitRequest], None]) -> CommitRequest:
    """Commit with `act` between committer and tables."""
    (request,) = harness.requests_for(sink, staged).aggregated
    committer = RoutedCommitter(Flaky(sink._many, act), sink.identity)
    try:
        committer.commit([request])
    finally:
        committer.close()
    return request


def rejecting(sink: Sink, rows: list[tuple[str, str, int]]) -> Callable[..., Any]:
    """`harness.open_writer`, where refused rows are noted: (reason, message, how many)."""

    def reject(refused: pa.RecordBatch, reason: str, message: str) -> None:
        rows.append((reason, message, refused.num_rows))

    def opened(schema: pa.Schema = harness.SCHEMA) -> Any:
        lineage = Lineage(1, 1, 0, 1, 0)
        plain = harness.writer_context(sink, lineage, schema)
        context = WriterContext(
            plain.identity, plain.lineage, plain.unique, schema, plain.count, plain.clock, reject=reject
        )  # fmt: skip
        writer = sink.create_writer(context)
        writer.open()
        return writer

    return opened


class RoutedContract(SinkContract):
    """The contract, where what one committable and one target are means many tables."""

    def test_state_and_commit_info_are_small(self, sink: Sink) -> None:
        rows: list[Row] = [(number % 10, "x" * 100) for number in range(harness.BATCH_ROWS)]
        ((_, committable),) = stage(sink, 1, rows).items
        assert committable is not None
        assert len(committable["tables"]) == 10
        assert len(sink.committable_serializer.serialize(committable)) < 6_000

    def test_target_keeps_its_identity_until_it_is_made_anew(self, sink: Sink, place: Any) -> None:
        """The book's, which is the sink's own: new tables do not change it, another ledger has another."""
        commit(sink, stage(sink, 1, [(1, "a")]))
        identity = self.identity_of(sink)
        assert identity not in ("", self.identity_of(self.make_sink(place, OTHER_LEDGER)))
        commit(sink, stage(sink, 2, [(2, "b")]), 1)
        sink.prepare_target(harness.SCHEMA)
        assert identity == self.identity_of(sink)
        self.recreate(place)
        sink.prepare_target(harness.SCHEMA)
        assert self.identity_of(sink) not in ("", identity)


class RoutingFaults:
    """Inherit it, give `prefix` (a table's name without its id) and a fixture `place`."""

    prefix: ClassVar[str]
    option: ClassVar[str]  # that has the fields

    @pytest.fixture
    def sink(self, place: Any) -> Any:
        return place.sink()

    @pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
    @pytest.mark.parametrize("step", range(1, STEPS + 1))
    def test_who_dies_between_two_tables_is_healed_by_the_next(
        self, sink: Any, place: Any, step: int, is_before: bool
    ) -> None:
        def die(at: int, before: bool, request: CommitRequest) -> None:
            if (at, before) == (step, is_before):
                raise Killed

        staged = stage(sink, 1, *ROWS)
        with pytest.raises(Killed):
            flaky_commit(sink, staged, die)
        whole = (step, is_before) == (STEPS, False)
        seen = harness.ask(sink, "probe", staged).answers()
        assert seen == ({Answer.ALREADY_COMMITTED} if whole else {Answer.ABSENT})
        landed = min(step - is_before, 3)
        assert sink.evidence().checkpoint == (1 if landed else 0)  # never less than what readers see
        made = commit(sink, staged, may_have_landed=True)
        assert made.answers() == ({Answer.ALREADY_COMMITTED} if whole else {Answer.COMMITTED})
        assert place.rows() == ALL
        assert all(place.checkpoints(name) == ["1"] for name in place.names())
        harness.clean(sink, 1)
        assert place.staged() == set()
        assert place.receipts() == []

    @pytest.mark.parametrize("step", range(1, STEPS + 1))
    def test_a_lost_answer_of_one_table_is_unknown_and_found_on_the_next_look(
        self, sink: Any, place: Any, step: int
    ) -> None:
        def lose(at: int, before: bool, request: CommitRequest) -> None:
            if at == step and not before:
                request.reply(Answer.UNKNOWN, "AnswerLost", "no answer")

        staged = stage(sink, 1, *ROWS)
        lost = flaky_commit(sink, staged, lose)
        assert (lost.answer, lost.reason) == (Answer.UNKNOWN, "AnswerLost")
        assert commit(sink, staged, may_have_landed=True).answers() <= DONE
        assert place.rows() == ALL

    def test_an_older_coordinator_that_wakes_between_two_tables_adds_nothing(self, sink: Any, place: Any) -> None:
        first, second = stage(sink, 1, *ROWS), stage(sink, 2, [(1, "later"), (4, "four")])

        def overtaken(at: int, before: bool, request: CommitRequest) -> None:
            if (at, before) == (2, True):
                assert commit(sink, first).answers() <= DONE
                assert commit(sink, second, 1).answers() <= DONE

        late = flaky_commit(sink, first, overtaken)
        assert late.answer in DONE
        assert place.rows() == ALL + Counter([(1, "later"), (4, "four")])
        assert sink.evidence().checkpoint == 2

    def test_zombies_racing_commit_each_table_once(self, sink: Any, place: Any) -> None:
        race(sink, place, rounds=3)

    @pytest.mark.exhaustive
    def test_zombies_racing_commit_each_table_once_in_a_thousand_races(self, sink: Any, place: Any) -> None:
        race(sink, place, rounds=1_000)

    def test_a_new_table_in_mid_stream_stands_beside_the_others(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a"), (2, "b")]))
        commit(sink, stage(sink, 2, [(2, "c"), (3, "d")]), 1)
        found = {name: place.checkpoints(name) for name in place.names()}
        assert found == {f"{self.prefix}1": ["1"], f"{self.prefix}2": ["1", "2"], f"{self.prefix}3": ["2"]}
        assert sink.evidence().checkpoint == 2
        assert sink.prove(2, 1)

    def test_a_dropped_table_is_noticed_and_the_others_go_on(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a"), (2, "b")]))
        place.drop(f"{self.prefix}1")
        evidence = sink.evidence()
        assert evidence.checkpoint == 0  # the start check says TargetBehindLedger
        assert f"{self.prefix}1" in evidence.detail
        assert commit(sink, stage(sink, 2, [(2, "c")]), 1).answers() == {Answer.COMMITTED}
        assert place.rows() == Counter([(2, "b"), (2, "c")])

    def test_a_table_that_is_dropped_before_the_commit_keeps_all_of_it_back(self, sink: Any, place: Any) -> None:
        staged = stage(sink, 1, *ROWS)
        place.drop(f"{self.prefix}3")
        made = commit(sink, staged)
        assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"TableMissing"})
        assert place.rows() == Counter()
        assert harness.ask(sink, "fence", staged).answers() == {Answer.FENCED}
        harness.ask(sink, "abort", staged)
        assert place.staged() == set()

    def test_a_table_that_is_made_anew_is_refused_until_that_is_accepted(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a"), (2, "b")]))
        self.make_anew(place, f"{self.prefix}1")
        self.forget_views()
        known = sink.evidence().checkpoint
        assert known == 0
        refused = commit(sink, stage(sink, 2, [(1, "c"), (2, "d")]), 1)
        assert (refused.answers(), refused.reasons()) == ({Answer.REFUSED}, {"TargetBehindLedger"})
        assert commit(sink, stage(sink, 2, [(1, "c"), (2, "d")]), known).answers() == {Answer.COMMITTED}
        assert sink.evidence().checkpoint == 2
        assert place.rows() == Counter([(1, "c"), (2, "b"), (2, "d")])

    def test_a_table_that_is_rolled_back_is_refused_until_that_is_accepted(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a"), (2, "b")]))
        commit(sink, stage(sink, 2, [(1, "c")]), 1)
        commit(sink, stage(sink, 3, [(2, "d")]), 2)
        self.roll_back(place, f"{self.prefix}1")
        known = sink.evidence().checkpoint
        assert known == 1  # checkpoint 2 is lost
        refused = commit(sink, stage(sink, 4, [(1, "e")]), 3)
        assert (refused.answers(), refused.reasons()) == ({Answer.REFUSED}, {"TargetBehindLedger"})
        assert commit(sink, stage(sink, 4, [(2, "e")]), known).answers() == {Answer.COMMITTED}
        assert sink.evidence().checkpoint == 4
        assert commit(sink, stage(sink, 5, [(1, "f")]), 4).answers() == {Answer.COMMITTED}
        assert place.rows() == Counter([(1, "a"), (2, "b"), (2, "d"), (2, "e"), (1, "f")])

    def test_a_book_that_is_gone_stops_the_sink(self, sink: Any, place: Any) -> None:
        staged = stage(sink, 1, *ROWS)
        place.drop_all()
        made = commit(sink, staged)
        assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"TargetReplaced"})
        assert sink.evidence().target == ""
        with pytest.raises(TargetError, match="gone"):
            harness.ask(sink, "probe", staged)

    def test_a_ledger_that_was_restored_is_behind_the_target(self, sink: Any) -> None:
        commit(sink, stage(sink, 1, *ROWS))
        commit(sink, stage(sink, 2, *ROWS), 1)
        assert commit(sink, stage(sink, 5, *ROWS), 1).reasons() == {"TargetAheadOfLedger"}

    def test_one_table_that_lost_its_files_keeps_all_of_the_checkpoint_back(self, sink: Any, place: Any) -> None:
        staged = stage(sink, 1, *ROWS)
        self.lose_one(place)
        made = commit(sink, staged)
        assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"CommittableLost"})
        assert place.rows() == Counter()
        assert place.checkpoints(f"{self.prefix}1") == []

    def test_an_abort_that_meets_a_table_with_its_part_commits_the_rest(self, sink: Any, place: Any) -> None:
        def die(at: int, before: bool, request: CommitRequest) -> None:
            if (at, before) == (2, True):
                raise Killed

        staged = stage(sink, 1, *ROWS)
        with pytest.raises(Killed):
            flaky_commit(sink, staged, die)
        assert harness.ask(sink, "fence", staged).answers() == {Answer.ALREADY_COMMITTED}
        assert place.rows() == ALL

    def test_an_abort_of_what_cannot_be_completed_says_so(self, sink: Any, place: Any) -> None:
        def die(at: int, before: bool, request: CommitRequest) -> None:
            if (at, before) == (2, True):
                raise Killed

        staged = stage(sink, 1, *ROWS)
        with pytest.raises(Killed):
            flaky_commit(sink, staged, die)
        place.drop(f"{self.prefix}3")
        made = harness.ask(sink, "fence", staged)
        assert (made.answers(), made.reasons()) == ({Answer.UNKNOWN}, {"PartlyLanded"})
        assert "TableMissing" in made.all[0].message

    def test_receipts_of_undecided_checkpoints_stay_for_one_epoch_more(self, sink: Any, place: Any) -> None:
        stage(sink, 1, [(1, "a")])
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))
        assert place.staged() == set()
        assert place.receipts() == [f"{self.prefix}1"]
        stage(sink, 1, [(1, "late")])  # an old writer, still at work
        harness.recover(sink, harness.garbage(epoch=3, firsts=[1, 1, 1]))
        assert place.staged() == set()
        assert place.receipts() == []

    def test_a_losing_attempt_that_comes_after_the_cleaning_is_removed(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a")]))
        harness.clean(sink, 1)
        stage(sink, 1, [(1, "a"), (2, "b")], attempt=1)
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 2]))
        assert place.staged() == set()
        assert place.receipts() == []
        assert place.rows() == Counter([(1, "a")])

    def test_rows_of_a_table_with_other_columns_are_refused_and_the_others_pass(self, sink: Any, place: Any) -> None:
        self.make_misfit(place, f"{self.prefix}2")
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(sink, refused)()
        for rows in ROWS:
            writer.write(harness.batch_of(rows))
        committable = harness.finish(sink, writer, 1)
        assert committable is not None
        assert sorted(committable["tables"]) == [f"{self.prefix}1", f"{self.prefix}3"]
        assert {(reason, count) for reason, _, count in refused} == {("SchemaMismatch", 1)}
        assert "column `name`" in refused[0][1]
        strict = harness.open_writer(sink)
        with pytest.raises(TargetError, match="column `name`"):
            strict.write(harness.batch_of(ROWS[0]))
        strict.abort_prepare()
        strict.close()

    def test_unknown_tables_are_refused_where_none_are_made(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "known")]))
        strict = place.sink(createTable=False)
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(strict, refused)()
        writer.write(harness.batch_of([(1, "a"), (9, "b"), (9, "c")]))
        committable = harness.finish(strict, writer, 1)
        assert committable is not None
        assert sorted(committable["tables"]) == [f"{self.prefix}1"]
        assert [(reason, count) for reason, _, count in refused] == [("TableMissing", 2)]
        with pytest.raises(TargetError, match="9"):
            stage(strict, 2, [(9, "b")])

    def test_too_many_tables_are_refused_by_name(self, place: Any) -> None:
        writer = harness.open_writer(place.sink(maxTables=2))
        with pytest.raises(TargetError, match="more than 2 tables") as caught:
            writer.write(harness.batch_of([(1, "a"), (2, "b"), (3, "c")]))
        assert (caught.value.reason, caught.value.path) == ("TooManyTables", "options.maxTables")
        writer.abort_prepare()
        writer.close()
        assert place.staged() == set()

    def test_open_files_are_bounded_over_all_tables(self, place: Any) -> None:
        sink = place.sink(maxOpenFiles=2)
        writer = harness.open_writer(sink)
        for number in range(6):
            writer.write(harness.batch_of([(number % 4, f"row {number}")]))
            assert sum(table.open_files() for table in writer._tables.values()) <= 2  # type: ignore[attr-defined]
        writer.abort_prepare()
        writer.close()
        assert place.staged() == set()
        rows: list[Row] = [(number % 4, f"row {number}") for number in range(20)]
        assert commit(sink, stage(sink, 1, rows)).answers() == {Answer.COMMITTED}
        assert place.rows() == Counter(rows)

    def test_rows_that_name_no_table_are_refused_and_the_others_pass(self, place: Any) -> None:
        sink = self.by_name(place)
        values = ["us", None, "", "a'b", 'a"b', "a/b", "..", "a.b", "é", "x" * 201, "us", "US"]
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(sink, refused)()
        writer.write(harness.batch_of([(number, value) for number, value in enumerate(values)]))
        committable = harness.finish(sink, writer, 1)
        assert committable is not None
        assert len(committable["tables"]) == 1
        assert {reason for reason, _, _ in refused} == {"BadTableName"}
        assert sum(count for _, _, count in refused) == len(values) - 2
        with pytest.raises(TargetError, match="letters A to Z"):
            stage(sink, 1, [(1, "../etc")])

    def test_a_column_that_only_routes_may_be_left_out(self, place: Any) -> None:
        sink = self.by_name(place, omit=["name"])
        assert commit(sink, stage(sink, 1, [(1, "us"), (2, "de")])).answers() == {Answer.COMMITTED}
        assert self.columns(place, place.names()[0]) == ["id"]

    def test_a_column_that_is_not_there_cannot_route(self, place: Any) -> None:
        sink = self.by_name(place)
        with pytest.raises(TargetError, match="there is no column `name`") as caught:
            sink.prepare_target(pa.schema([pa.field("id", pa.int64())]))
        assert caught.value.path == self.option
        with pytest.raises(TargetError, match="names no table"):
            sink.prepare_target(pa.schema([pa.field("name", pa.float64())]))

    def test_changes_are_applied_in_each_table(self, place: Any) -> None:
        sink = self.keyed(place)
        commit(sink, stage_changes(sink, 1, [(1, "a", "us"), (2, "b", "us")], [(3, "c", "de")]))
        commit(sink, stage_changes(sink, 2, [(1, "new", "us"), (1, "other", "de")]), 1)
        found = {name: sorted(self.changed_rows(place, name)) for name in place.names()}
        assert list(found.values()) == [[(1, "other"), (3, "c")], [(1, "new"), (2, "b")]]

    # --- what only the format knows

    def make_anew(self, place: Any, name: str) -> None:
        raise NotImplementedError

    def roll_back(self, place: Any, name: str) -> None:
        """Take the newest commit with rows away."""
        raise NotImplementedError

    def forget_views(self) -> None:
        """Drop what writers of this process remember of tables."""
        raise NotImplementedError

    def lose_one(self, place: Any) -> None:
        """Remove a staged file of the last table."""
        raise NotImplementedError

    def make_misfit(self, place: Any, name: str) -> None:
        """A table in which `name` is a whole number."""
        raise NotImplementedError

    def by_name(self, place: Any, **more: Any) -> Any:
        """A sink that routes by `name`."""
        raise NotImplementedError

    def keyed(self, place: Any) -> Any:
        """One that upserts by `id` and routes by `at`."""
        raise NotImplementedError

    def columns(self, place: Any, name: str) -> list[str]:
        raise NotImplementedError

    def changed_rows(self, place: Any, name: str) -> list[Row]:
        raise NotImplementedError


_CHANGES: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "at": pa.string()}
CHANGES = pa.schema(_CHANGES)


def stage_changes(sink: Any, checkpoint: int, *tasks: list[tuple[int, str, str]]) -> harness.Staged:
    """One writer per task; rows must come sorted by id, and ids must not lie in two tasks."""
    items = []
    for subtask, rows in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, CHANGES))
        writer.open()
        for id_, name, at in rows:  # a batch each, so that a table is closed early and opened again
            writer.write(pa.RecordBatch.from_pylist([{"id": id_, "name": name, "at": at}], schema=CHANGES))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return harness.Staged(checkpoint, 1, tuple(items))


def race(sink: Any, place: Any, rounds: int) -> None:
    """Two coordinators commit one checkpoint at once, again and again; each table has each checkpoint once."""
    for checkpoint in range(1, rounds + 1):
        staged = stage(sink, checkpoint, [(1, str(checkpoint)), (2, str(checkpoint))])
        start = threading.Barrier(2)
        answers: list[Answer] = []

        threads = [threading.Thread(target=racer, args=(sink, staged, start, answers)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert set(answers) <= DONE, answers
        assert len(answers) == 2
        harness.clean(sink, checkpoint)
    numbers = [str(number) for number in range(1, rounds + 1)]
    for name in place.names():
        assert place.checkpoints(name) == numbers
    assert place.rows() == Counter([(table, number) for number in numbers for table in (1, 2)])


def racer(sink: Any, staged: harness.Staged, start: threading.Barrier, answers: list[Answer]) -> None:
    """Commit until it is there, as a coordinator would."""
    start.wait(timeout=30)
    for _ in range(20):
        made = commit(sink, staged, staged.checkpoint - 1, may_have_landed=True)
        if made.answers() <= DONE:
            break
    answers.extend(made.answers())
