"""The contract that every exactly-once sink keeps, as tests that each sink's own test class inherits.

A sink's test file subclasses `SinkContract`, says how to make the sink, how an *independent* reader sees the
target, and how to look at what is staged. Each test drives writers and committers as the runtime does
(`tests.sinks.harness`), one step at a time, and looks at the target in between.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Answer, CommitRequest, Lineage, Sink
from tests.sinks import harness
from tests.sinks.harness import LEDGER, OTHER_LEDGER, Row, commit, stage

ROWS: list[Row] = [(1, "one"), (2, None), (2, None), (3, "ünïcødé ✈"), (4, "")]
MORE: list[Row] = [(10, "ten"), (11, "eleven")]
YES = {Answer.COMMITTED, Answer.ALREADY_COMMITTED}


class SinkContract:
    """Inherit it, fill the hooks, and provide a fixture `place` (an empty target)."""

    crosses_processes: ClassVar[bool] = True
    fences: ClassVar[bool] = True  # False: it says that it cannot
    golden_version: ClassVar[int]
    golden_bytes: ClassVar[bytes]  # a committable as release `golden_version` wrote it, never to change
    golden_value: ClassVar[Any]

    @abstractmethod
    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        """The sink under test, writing to `place`."""

    @abstractmethod
    def read_visible(self, place: Any) -> Counter[Row]:
        """What a reader sees in the target, read by something that shares no code with the sink."""

    @abstractmethod
    def list_staged(self, place: Any) -> set[str]:
        """Names of all that is staged in the target, of any job."""

    @abstractmethod
    def lose_staged(self, place: Any) -> None:
        """Take away all that is staged, as an expiry would."""

    @abstractmethod
    def recreate(self, place: Any) -> None:
        """Drop the target and make it anew, empty."""

    @pytest.fixture
    def sink(self, place: Any) -> Sink:
        return self.make_sink(place)

    def test_prepare_has_no_visible_side_effects(self, sink: Sink, place: Any) -> None:
        stage(sink, 1, ROWS, MORE)
        assert self.read_visible(place) == Counter()
        assert self.list_staged(place)

    def test_prepare_empty_returns_none(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, [])
        assert staged.items[0][1] is None
        assert self.list_staged(place) == set()

    def test_abort_prepare_then_retry_same_rows_commits_once(self, sink: Sink, place: Any) -> None:
        writer = harness.open_writer(sink)
        writer.write(harness.batch_of(ROWS))
        writer.flush(end_of_input=True)
        writer.prepare_commit(1)
        writer.abort_prepare()
        writer.close()
        assert self.list_staged(place) == set()
        assert commit(sink, stage(sink, 1, ROWS, attempt=1)).answers() <= YES
        assert self.read_visible(place) == Counter(ROWS)

    def test_abort_prepare_without_write_is_noop(self, sink: Sink, place: Any) -> None:
        writer = harness.open_writer(sink)
        writer.abort_prepare()
        writer.abort_prepare()
        writer.close()
        assert self.read_visible(place) == Counter()

    def test_close_without_prepare_publishes_nothing(self, sink: Sink, place: Any) -> None:
        writer = harness.open_writer(sink)
        writer.write(harness.batch_of(ROWS))
        writer.close()
        writer.close()
        assert self.read_visible(place) == Counter()

    def test_close_of_a_writer_that_never_opened_is_noop(self, sink: Sink) -> None:
        lineage = Lineage(1, 1, 0, 1, 0)
        sink.create_writer(harness.writer_context(sink, lineage)).close()

    def test_abort_removes_what_was_staged_and_is_repeatable(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        harness.ask(sink, "abort", staged)
        assert self.list_staged(place) == set()
        harness.ask(sink, "abort", staged)
        assert self.read_visible(place) == Counter()

    def test_abort_of_unknown_commit_info_is_noop(self, sink: Sink, place: Any) -> None:
        committed, unknown = stage(sink, 1, ROWS), stage(sink, 2, MORE)
        commit(sink, committed)
        self.lose_staged(place)
        harness.ask(sink, "abort", unknown, 1)
        assert self.read_visible(place) == Counter(ROWS)

    def test_abort_never_touches_previously_committed_data(self, sink: Sink, place: Any) -> None:
        first, second = stage(sink, 1, ROWS), stage(sink, 2, MORE)
        commit(sink, first)
        harness.ask(sink, "abort", second, 1)
        harness.ask(sink, "abort", first)
        assert self.read_visible(place) == Counter(ROWS)

    def test_commit_makes_every_writers_rows_visible(self, sink: Sink, place: Any) -> None:
        assert commit(sink, stage(sink, 1, ROWS, [], MORE)).answers() == {Answer.COMMITTED}
        assert self.read_visible(place) == Counter(ROWS + MORE)
        assert self.list_staged(place) == set()

    def test_commit_is_idempotent_on_the_same_committers(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        first, second = (harness.requests_for(sink, staged) for _ in range(2))

        def twice(committer: Any, whole: bool) -> None:
            committer.commit(first.aggregated if whole else first.writers)
            committer.commit(second.aggregated if whole else second.writers)

        harness.with_committers(sink, twice)
        assert first.answers() == {Answer.COMMITTED}
        assert second.answers() <= YES  # S3 answers a repeated completion as the first one
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_commit_is_idempotent_from_fresh_committers(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        assert commit(sink, staged).answers() == {Answer.COMMITTED}
        assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)

    def test_commit_is_idempotent_from_another_process(self, sink: Sink, place: Any) -> None:
        if not self.crosses_processes:
            pytest.skip("by design: this target lives in one process")
        staged = stage(sink, 1, ROWS)
        assert harness.in_another_process(sink, staged, 0)["answers"] == {Answer.COMMITTED}
        assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
        assert harness.in_another_process(sink, staged, 0)["answers"] == {Answer.ALREADY_COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)

    def test_commit_after_a_part_of_it_landed_adds_the_rest(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        committer = sink.create_committer()
        if committer is None:
            pytest.skip("by design: all writers commit in one operation")
        committer.open()
        committer.commit(harness.requests_for(sink, staged).writers[:1])
        committer.close()
        made = commit(sink, staged, may_have_landed=True)
        assert made.answers() <= YES
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_commit_of_a_lost_committable_is_refused_by_name(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        self.lose_staged(place)
        made = commit(sink, staged)
        assert made.answers() == {Answer.REFUSED}
        assert made.reasons() == {"CommittableLost"}
        assert self.read_visible(place) == Counter()

    def test_commit_with_a_later_predecessor_is_refused(self, sink: Sink, place: Any) -> None:
        assert commit(sink, stage(sink, 7, ROWS), 6).reasons() == {"TargetBehindLedger"}

    def test_commit_of_an_older_checkpoint_is_already_committed(self, sink: Sink, place: Any) -> None:
        first, second = stage(sink, 1, ROWS), stage(sink, 2, MORE)
        commit(sink, first)
        commit(sink, second, 1)
        assert commit(sink, first, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_two_attempts_of_one_subtask_never_collide(self, sink: Sink, place: Any) -> None:
        lost, kept = stage(sink, 1, ROWS), stage(sink, 1, ROWS)
        assert len(self.list_staged(place)) >= 2
        assert commit(sink, kept).answers() == {Answer.COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)
        assert self.list_staged(place)
        harness.clean(sink, 1)
        assert self.list_staged(place) == set()
        assert self.read_visible(place) == Counter(ROWS)
        assert lost.items != kept.items

    def test_combine_is_order_independent_and_deterministic(self, sink: Sink) -> None:
        aggregated = sink.create_aggregated_committer()
        if aggregated is None:
            pytest.skip("by design: no aggregated committer")
        items = stage(sink, 1, ROWS, [], MORE, [(99, "x")]).present()
        serialize = sink.committable_serializer.serialize
        there, back = aggregated.combine(items), aggregated.combine(items[::-1])
        assert serialize(there) == serialize(back) == serialize(aggregated.combine(items))

    def test_combine_of_empty_partitions_commits(self, sink: Sink, place: Any) -> None:
        made = commit(sink, stage(sink, 1, [], []))
        assert made.answers() <= YES
        assert self.read_visible(place) == Counter()
        evidence = sink.evidence()
        assert evidence is not None
        assert evidence.checkpoint == (1 if made.aggregated and made.aggregated[0].evidence else 0)
        assert commit(sink, stage(sink, 2, ROWS), evidence.checkpoint).answers() == {Answer.COMMITTED}

    def test_probe_says_absent_before_and_already_after(self, sink: Sink) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        assert harness.ask(sink, "probe", staged).answers(Answer.ABSENT) == {Answer.ABSENT}
        commit(sink, staged)
        assert harness.ask(sink, "probe", staged).answers(Answer.ABSENT) == {Answer.ALREADY_COMMITTED}

    def test_probe_changes_nothing(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        before = self.list_staged(place)
        harness.ask(sink, "probe", staged)
        assert self.list_staged(place) == before
        assert self.read_visible(place) == Counter()

    def test_fence_then_late_commit_fails(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS, MORE)
        late = harness.next_order()
        fenced = harness.ask(sink, "fence", staged)
        if not self.fences:
            assert Answer.UNKNOWN in fenced.answers(Answer.FENCED)
            assert fenced.reasons() == {"CannotFence"}
            return
        assert fenced.answers(Answer.FENCED) == {Answer.FENCED}
        for landed in (False, True):
            made = commit(sink, staged, order=late, may_have_landed=landed)
            assert made.answers() == {Answer.REFUSED}
            assert made.reasons() == {"Fenced"}
        assert self.read_visible(place) == Counter()

    def test_fence_removes_nothing_and_a_commit_above_it_lands(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        for _ in range(2):
            harness.ask(sink, "fence", staged)
        assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)
        assert self.list_staged(place) == set()

    def test_fence_of_a_committed_checkpoint_says_so(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        commit(sink, staged)
        assert harness.ask(sink, "fence", staged).answers(Answer.FENCED) == {Answer.ALREADY_COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)

    def test_abort_after_fence_leaves_nothing_staged(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        harness.ask(sink, "fence", staged)
        harness.ask(sink, "abort", staged)
        assert self.list_staged(place) == set()
        assert not commit(sink, staged, may_have_landed=True).answers() & YES
        assert self.read_visible(place) == Counter()

    def test_restore_commit_commits_persisted_infos_once(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 1, ROWS)
        commit_writers_only(sink, staged)
        for _ in range(2):
            harness.ask(sink, "restore_commit", staged)
            assert self.read_visible(place) == Counter(ROWS)

    def test_recover_removes_undecided_older_epochs_staged(self, sink: Sink, place: Any) -> None:
        commit(sink, stage(sink, 1, ROWS))
        stage(sink, 2, MORE)
        for _ in range(2):
            harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 2]))
            assert self.list_staged(place) == set()
        assert self.read_visible(place) == Counter(ROWS)

    def test_recover_never_touches_range_decided(self, sink: Sink, place: Any) -> None:
        staged = stage(sink, 2, ROWS)
        before = self.list_staged(place)
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 3], unsettled=[2]))
        assert self.list_staged(place) == before
        assert commit(sink, staged).answers() == {Answer.COMMITTED}
        assert self.read_visible(place) == Counter(ROWS)

    def test_recover_never_touches_an_epoch_without_a_range(self, sink: Sink, place: Any) -> None:
        stage(sink, 2, ROWS, epoch=2)
        stage(sink, 2, ROWS, epoch=3)
        before = self.list_staged(place)
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))
        assert self.list_staged(place) == before

    def test_recover_never_touches_another_jobs_or_sinks_staged(self, sink: Sink, place: Any) -> None:
        stage(self.make_sink(place, OTHER_LEDGER), 1, ROWS)
        stage(self.make_sink(place, sink="other"), 1, ROWS)
        before = self.list_staged(place)
        harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))
        harness.clean(sink, 1)
        assert self.list_staged(place) == before

    def test_clean_removes_losers_of_that_checkpoint_only(self, sink: Sink, place: Any) -> None:
        pending = stage(sink, 2, MORE)
        before = self.list_staged(place)
        winner = stage(sink, 1, ROWS)
        stage(sink, 1, ROWS, attempt=1)
        commit(sink, winner)
        for _ in range(2):
            harness.clean(sink, 1)
            assert self.list_staged(place) == before
        commit(sink, pending, 1)
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_evidence_grows_to_the_committed_checkpoint(self, sink: Sink) -> None:
        assert self.checkpoint_of(sink) == 0
        staged = stage(sink, 1, ROWS)
        assert self.checkpoint_of(sink) == 0
        commit(sink, staged)
        assert self.checkpoint_of(sink) == 1
        commit(sink, stage(sink, 5, MORE), 1)
        assert self.checkpoint_of(sink) == 5
        assert sink.prove(5, 1)
        assert sink.prove(6, 1) is None

    def test_evidence_is_keyed_by_ledger_and_sink(self, sink: Sink, place: Any) -> None:
        commit(sink, stage(sink, 3, ROWS))
        assert self.checkpoint_of(self.make_sink(place, OTHER_LEDGER)) == 0
        assert self.checkpoint_of(self.make_sink(place, sink="other")) == 0
        commit(self.make_sink(place, sink="other"), stage(self.make_sink(place, sink="other"), 1, MORE))
        assert self.checkpoint_of(sink) == 3
        assert self.read_visible(place) == Counter(ROWS + MORE)

    def test_evidence_never_goes_back(self, sink: Sink) -> None:
        first, second = stage(sink, 1, ROWS), stage(sink, 2, MORE)
        commit(sink, first)
        commit(sink, second, 1)
        commit(sink, first, may_have_landed=True)
        assert self.checkpoint_of(sink) == 2

    def test_target_keeps_its_identity_until_it_is_made_anew(self, sink: Sink, place: Any) -> None:
        sink.prepare_target(harness.SCHEMA)
        commit(sink, stage(sink, 1, ROWS))
        identity = self.identity_of(sink)
        assert identity
        assert identity == self.identity_of(self.make_sink(place, OTHER_LEDGER))
        sink.prepare_target(harness.SCHEMA)
        assert identity == self.identity_of(sink)
        self.recreate(place)
        sink.prepare_target(harness.SCHEMA)
        assert self.identity_of(sink) not in ("", identity)

    def checkpoint_of(self, sink: Sink) -> int:
        evidence = sink.evidence()
        assert evidence is not None
        return evidence.checkpoint

    def identity_of(self, sink: Sink) -> str:
        evidence = sink.evidence()
        assert evidence is not None
        return evidence.target

    def test_old_committables_stay_readable(self, sink: Sink) -> None:
        serializer = sink.committable_serializer
        assert serializer.deserialize(self.golden_version, self.golden_bytes) == self.golden_value
        lineage = Lineage(1, 1, 0, 1, 0)
        for committer in filter(None, (sink.create_committer(), sink.create_aggregated_committer())):
            combined = getattr(committer, "combine", lambda items: items[0][1])([(lineage, self.golden_value)])
            request = CommitRequest(combined, lineage, 0)
            committer.open()
            committer.probe([request])
            committer.close()
            assert request.answer in (None, Answer.ABSENT)

    def test_unknown_versions_of_committables_are_refused(self, sink: Sink) -> None:
        with pytest.raises(ValueError, match="version"):
            sink.committable_serializer.deserialize(10**6, self.golden_bytes)

    def test_state_and_commit_info_are_small(self, sink: Sink) -> None:
        rows: list[Row] = [(number % 10, "x" * 100) for number in range(harness.BATCH_ROWS)]
        ((_, committable),) = stage(sink, 1, rows).items
        assert len(sink.committable_serializer.serialize(committable)) < 4_096

    def test_a_pickled_sink_is_the_same_sink(self, sink: Sink, place: Any) -> None:
        copy = pickle.loads(pickle.dumps(sink))
        commit(copy, stage(copy, 1, ROWS))
        assert self.checkpoint_of(sink) == 1
        assert self.read_visible(place) == Counter(ROWS)


def commit_writers_only(sink: Sink, staged: harness.Staged) -> None:
    """What a process has done that dies between the committer and the aggregated committer."""
    committer = sink.create_committer()
    if committer is not None:
        committer.open()
        committer.commit(harness.requests_for(sink, staged).writers)
        committer.close()
