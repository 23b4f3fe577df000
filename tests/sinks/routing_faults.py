"""What commits of a sink that routes must survive, whatever its tables' format: tests that each format's class has.

Committers are the sink's own; `Flaky` stands between them and their tables, and dies or loses an answer at one step.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.errors import TargetError
from sinkruntime.tables import routing
from tests.sinks import harness
from tests.sinks.harness import commit, stage
from tests.sinks.routing_harness import (
    ALL,
    DONE,
    ROWS,
    STEPS,
    Killed,
    RoutingHooks,
    die_between_tables,
    flaky_commit,
    race,
)


class RoutingFaults(RoutingHooks):
    """Inherit it."""

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

    def test_a_process_that_is_killed_between_two_tables_is_healed_by_the_next(self, sink: Any, place: Any) -> None:
        staged = stage(sink, 1, *ROWS)
        process = multiprocessing.get_context("spawn").Process(target=die_between_tables, args=(sink, staged))
        process.start()
        process.join(timeout=60)
        assert process.exitcode == -signal.SIGKILL
        assert sum(bool(place.checkpoints(name)) for name in place.names()) == 2
        assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
        assert place.rows() == ALL

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
    @pytest.mark.timeout(3600)
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

    def test_the_book_forgets_what_was_written_longest_ago_and_such_tables_go_on(
        self, sink: Any, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routing, "BOOK_TABLES_MAX", 1)
        commit(sink, stage(sink, 1, [(1, "a")]))
        commit(sink, stage(sink, 2, [(2, "b")]), 1)
        assert "1 tables" in sink.evidence().detail
        assert commit(sink, stage(sink, 3, [(1, "c"), (3, "d")]), 2).answers() == {Answer.COMMITTED}
        place.drop(f"{self.prefix}2")
        assert sink.evidence().checkpoint == 3  # of such a table only its own evidence is asked
        assert place.rows() == Counter([(1, "a"), (1, "c"), (3, "d")])

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
