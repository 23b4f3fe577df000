"""The paimon sink when others write, answers are lost, twins wake up, or the table is not what it was."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.sinks.paimon import PaimonSink, committer, manifests, snapshots
from sinkruntime.sinks.paimon.files import Files, LocalFiles
from sinkruntime.sinks.paimon.table import Table
from tests.servers.paimon import PaimonPeer
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import Row, commit, stage
from tests.sinks.test_paimon import TABLE, Place

pytestmark = pytest.mark.integration


@pytest.fixture
def place(paimon_peer: PaimonPeer, tmp_path: Path) -> Place:
    return Place(paimon_peer, tmp_path, str(tmp_path))


def prepared(place: Place, **options: Any) -> PaimonSink:
    sink = place.sink(**options)
    sink.prepare_target(harness.SCHEMA)
    return sink


def rows_of(place: Place) -> Counter[Row]:
    return Counter((row["id"], row["name"]) for row in place.rows())


def together(*actions: Any) -> None:
    """Run them at once."""
    barrier = threading.Barrier(len(actions))

    def run(action: Any) -> None:
        barrier.wait(timeout=20)
        action()

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)


@pytest.mark.parametrize("rounds", [25, pytest.param(1_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])])
def test_twins_racing_on_one_checkpoint_never_commit_it_twice(place: Place, rounds: int) -> None:
    sink = prepared(place)
    for checkpoint in range(1, rounds + 1):
        staged = stage(sink, checkpoint, [(checkpoint, "x")])
        made: list[harness.Round] = []
        twin = lambda: made.append(commit(sink, staged, checkpoint - 1, may_have_landed=True))  # noqa: B023, E731
        together(twin, twin, twin)
        answers = [found.aggregated[0].answer for found in made]
        assert set(answers) <= YES
        assert answers.count(Answer.COMMITTED) == 1
    assert rows_of(place) == Counter((number, "x") for number in range(1, rounds + 1))
    assert [found["commitIdentifier"] for found in place.snapshots()] == list(range(1, rounds + 1))
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_two_sinks_that_race_for_one_number_both_land(place: Place) -> None:
    sinks = [prepared(place, sink=name) for name in ("one", "two", "three")]
    for checkpoint in range(1, 11):
        staged = [stage(sink, checkpoint, [(checkpoint, sink.identity.sink)]) for sink in sinks]
        pairs = zip(sinks, staged, strict=True)
        together(*(lambda s=sink, p=part: commit(s, p, checkpoint - 1) for sink, part in pairs))  # noqa: B023
    assert [sink.evidence().checkpoint for sink in sinks] == [10, 10, 10]
    assert rows_of(place) == Counter((n, sink.identity.sink) for n in range(1, 11) for sink in sinks)
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_fences_and_commits_at_once_leave_one_winner(place: Place) -> None:
    sink = prepared(place)
    landed = 0
    for checkpoint in range(1, 16):
        staged = stage(sink, checkpoint, ROWS)
        early, late = harness.next_order(), harness.next_order()
        made: dict[str, harness.Round] = {}
        together(
            lambda: made.update(commit=commit(sink, staged, landed, order=early)),  # noqa: B023
            lambda: made.update(fence=harness.ask(sink, "fence", staged, order=late)),  # noqa: B023
        )
        if made["fence"].aggregated[0].answer is Answer.FENCED:
            assert made["commit"].reasons() == {"Fenced"}
            harness.ask(sink, "abort", staged)
        else:
            assert made["commit"].answers() == {Answer.COMMITTED}
            landed = checkpoint
    assert rows_of(place).total() == len(ROWS) * sum(
        found["properties"][snapshots.KIND] == snapshots.DATA for found in place.snapshots()
    )
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_fences_of_several_checkpoints_stand_together(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    second, third = stage(sink, 2, MORE), stage(sink, 3, MORE)
    early = harness.next_order()
    for staged in (third, second):
        harness.ask(sink, "fence", staged, 1)
    for staged in (second, third):
        assert commit(sink, staged, 1, order=early).reasons() == {"Fenced"}
    assert commit(sink, second, 1).answers() == {Answer.COMMITTED}
    assert commit(sink, third, 2, order=early).reasons() == {"Fenced"}
    assert sink.evidence().checkpoint == 2


class Dying(LocalFiles):
    """Files of a process that is killed at its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self._left = changes

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def create(self, path: str, data: bytes) -> bool:
        self._count()
        return super().create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def delete(self, paths: Any) -> None:
        self._count()
        super().delete(paths)


def test_a_commit_that_is_killed_at_any_step_is_ended_by_the_next_process(place: Place) -> None:
    sink = prepared(place)
    steps = 0
    for checkpoint in range(1, 40):
        staged = stage(sink, checkpoint, [(checkpoint, "kept")])
        stage(sink, checkpoint, [(checkpoint, "lost")], attempt=1)
        dying = Dying(place.table, changes=checkpoint - 1)
        if not killed(sink, staged, checkpoint - 1, dying):
            steps = checkpoint
            break
        answers = harness.ask(sink, "probe", staged, checkpoint - 1).answers()
        assert answers <= {Answer.ALREADY_COMMITTED, Answer.ABSENT}
        assert commit(sink, staged, checkpoint - 1, may_have_landed=True).answers() <= YES
        harness.clean(sink, checkpoint)
    assert steps > 8
    harness.clean(sink, steps)
    assert rows_of(place) == Counter((number, "kept") for number in range(1, steps + 1))
    assert place.peer.leftovers(place.folder, TABLE) == set()


def killed(sink: PaimonSink, staged: harness.Staged, previous: int, files: Files) -> bool:
    """Commit with these files; whether it was killed on the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "__init__", _table_with(Table.__init__, files))
        # A killed process tidies nothing up.
        patch.setattr(committer.Attempt, "__exit__", _unless_killed(committer.Attempt.__exit__))
        try:
            commit(sink, staged, previous)
        except KeyboardInterrupt:
            return True
    return False


def _table_with(make: Any, files: Files) -> Any:
    def init(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self.files = files

    return init


def _unless_killed(leave: Any) -> Any:
    def exit_(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if kind is not KeyboardInterrupt:
            leave(self, kind, error, trace)

    return exit_


class Failing(LocalFiles):
    """Files of which nothing can be read any more after a snapshot was made, which is told as not made."""

    broken = False

    def create(self, path: str, data: bytes) -> bool:
        super().create(path, data)
        self.broken = True
        return False

    def read(self, path: str) -> bytes | None:
        if self.broken:
            raise ConnectionError("away")
        return super().read(path)


def test_what_a_snapshot_names_stays_until_its_outcome_is_certain(place: Place) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "__init__", _table_with(Table.__init__, Failing(place.table)))
        assert commit(sink, staged).answers() == {Answer.RETRY_LATER}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    harness.clean(sink, 1)
    assert rows_of(place) == Counter(ROWS)
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_other_writers_come_between_and_nothing_is_lost(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    place.peer.append(place.folder, TABLE, [{"id": 7, "name": "theirs"}], times=3)
    commit(sink, stage(sink, 2, MORE), 1)
    assert rows_of(place) == Counter([*ROWS, *MORE, *[(7, "theirs")] * 3])
    assert sink.evidence().checkpoint == 2
    assert sink.prove(1, 1) == f"snapshot 1 of {TABLE} was made for checkpoint 1"


def test_many_small_manifests_become_one(place: Place) -> None:
    sink = prepared(place, partitionBy=["name"])
    for checkpoint in range(1, 45):
        commit(sink, stage(sink, checkpoint, [(checkpoint, f"{checkpoint % 3}")]), checkpoint - 1)
    assert rows_of(place) == Counter((number, f"{number % 3}") for number in range(1, 45))
    last = place.snapshots()[-1]
    files = LocalFiles(place.table)
    assert len(manifests.read_list(files, last["baseManifestList"])) < manifests.MERGE_MIN_COUNT
    assert place.peer.leftovers(place.folder, TABLE) == set()


def test_snapshots_that_expired_without_our_consumer_are_in_doubt(place: Place) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    commit(sink, staged)
    place.peer.append(place.folder, TABLE, [{"id": 7, "name": "theirs"}], times=2)
    (place.table / "snapshot" / "snapshot-1").unlink()
    assert commit(sink, staged, may_have_landed=True).reasons() == {"EvidenceExpired"}
    next(place.table.glob("consumer/*")).unlink()
    assert harness.ask(sink, "probe", staged).answers() == {Answer.UNKNOWN}
    assert harness.ask(sink, "fence", staged).answers() == {Answer.UNKNOWN}
    assert commit(sink, staged, may_have_landed=True).reasons() == {"EvidenceExpired"}
    assert sink.prove(1, 1) is None


def test_a_twin_that_slept_until_its_number_had_come_and_gone_is_in_doubt(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 1, ROWS))
    staged = stage(sink, 2, MORE)
    asleep = snapshots.standing(LocalFiles(place.table), sink.identity)
    commit(sink, staged, 1)
    commit(sink, stage(sink, 3, MORE), 2)
    for number in (1, 2):  # expired meanwhile
        (place.table / "snapshot" / f"snapshot-{number}").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "standing", lambda *_: asleep)
        made = commit(sink, staged, 1, may_have_landed=True)
    assert made.answers() == {Answer.UNKNOWN}
    assert harness.ask(sink, "probe", staged, 1).answers() == {Answer.ALREADY_COMMITTED}
    assert rows_of(place) == Counter(ROWS + MORE + MORE)
    assert sink.evidence().checkpoint == 3


def test_a_table_that_was_rolled_back_refuses_what_comes_after(place: Place) -> None:
    sink = prepared(place)
    for checkpoint in (1, 2):
        commit(sink, stage(sink, checkpoint, ROWS), checkpoint - 1)
    (place.table / "snapshot" / "snapshot-2").unlink()
    (place.table / "snapshot" / "LATEST").write_text("1")
    assert commit(sink, stage(sink, 3, MORE), 2).reasons() == {"TargetBehindLedger"}


def test_a_table_that_went_on_alone_refuses_what_was_not_told_of_it(place: Place) -> None:
    sink = prepared(place)
    commit(sink, stage(sink, 2, ROWS))
    assert commit(sink, stage(sink, 3, MORE), 1).reasons() == {"TargetAheadOfLedger"}


def test_a_table_made_anew_gets_no_rows_of_the_former_one(place: Place) -> None:
    sink = prepared(place)
    staged = stage(sink, 1, ROWS)
    shutil.rmtree(place.table)
    assert commit(sink, staged).reasons() == {"TargetReplaced"}
    sink.prepare_target(harness.SCHEMA)
    assert commit(sink, staged).reasons() == {"TargetReplaced"}


def test_another_number_of_buckets_gets_no_rows_of_the_former_one(place: Place) -> None:
    sink = prepared(place, write="upsert", key=["id"], bucket=2)
    staged = stage(sink, 1, [(1, "a")])
    schema = json.loads((place.table / "schema" / "schema-0").read_text())
    schema |= {"id": 1, "options": {"bucket": "4"}}
    (place.table / "schema" / "schema-1").write_text(json.dumps(schema))
    assert commit(place.sink(write="upsert", key=["id"]), staged).reasons() == {"BucketMismatch"}


def test_a_failed_writer_leaves_no_file(place: Place) -> None:
    sink = prepared(place, targetFileSize="1MiB")
    writer = harness.open_writer(sink)
    for number in range(3):
        writer.write(harness.batch_of([(number, os.urandom(2_000_000).hex())]))
    assert list(place.table.rglob("*.parquet"))
    writer.abort_prepare()
    writer.close()
    assert place.peer.leftovers(place.folder, TABLE) == set()
