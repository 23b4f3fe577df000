"""Maintenance of an Iceberg table after commits: it loses nothing, whatever happens meanwhile, and garbage goes."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyiceberg.types import LongType

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import expiry, maintenance, merging, rewrite, snapshot, upkeep
from sinkruntime.sinks.iceberg.snapshot import Unknown
from tests.servers.iceberg_rest import IcebergRest
from tests.sinks import harness
from tests.sinks.harness import OTHER_LEDGER, commit, stage
from tests.sinks.iceberg_places import Place, rest_place, sql_place
from tests.sinks.test_iceberg_changes import CHANGES, OPTIONS, change, expected, visible
from tests.sinks.test_iceberg_changes import put as put_changes
from tests.sinks.test_iceberg_faults import foreign_append
from tests.sinks.test_iceberg_partitions import WIDE, wide_rows
from tests.sinks.test_iceberg_partitions import put as put_wide

REWRITE = {"rewriteEvery": 1}
MERGE = {"mergeManifestsEvery": 1, "manifestsMin": 5}
EXPIRE = {"expireEvery": 1, "expireAge": "1ms"}
ORPHANS = {"orphansEvery": 1}
OLD_SECONDS = 100 * 3600.0


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards is done."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = sql_place(tmp_path)
    made.make()
    return made


def append(place: Place, first: int, last: int) -> Counter[harness.Row]:
    """Checkpoints of a row each; all rows that must be visible then."""
    sink = place.sink()
    for number in range(first, last + 1):
        assert commit(sink, stage(sink, number, [(number, "x")]), number - 1).answers() == {Answer.COMMITTED}
    return Counter((number, "x") for number in range(1, last + 1))


def maintain(place: Place, checkpoint: int = 1, **told: Any) -> None:
    place.sink(maintenance=told).post_commit(checkpoint, ())


def live_files(place: Place, content: int = 0) -> list[str]:
    found = [entry.data_file for entry in upkeep.live(place.load(), "main")]
    return [item.file_path for item in found if int(item.content) == content]


def age(folder: str) -> None:
    """All files there were written long ago."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            before = os.stat(path).st_mtime - OLD_SECONDS
            os.utime(path, (before, before))


def upkeep_files(place: Place) -> set[str]:
    return {path for path in place.data_files() if "/upkeep/" in path}


def at_send(monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[[], None]], None]) -> None:
    """`act` stands in for every request of maintenance; what it is given sends it."""
    original = snapshot.send

    def send(*arguments: Any) -> None:
        act(lambda: original(*arguments))

    for module in (snapshot, expiry):
        monkeypatch.setattr(module, "send", send)


def die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cleaned up any more."""
    for kind in (rewrite.Made, snapshot.Draft):
        monkeypatch.setattr(kind, "discard", lambda *_: None)
    raise Killed


def test_nothing_is_done_unless_it_is_told_and_due(place: Place) -> None:
    append(place, 1, 8)
    before = place.load().metadata_location
    maintain(place, 8)
    maintain(place, 7, rewriteEvery=2, expireEvery=4, orphansEvery=8, mergeManifestsEvery=3)
    assert place.load().metadata_location == before


def test_small_files_become_one_and_rows_and_evidence_stay(place: Place) -> None:
    rows = append(place, 1, 8)
    maintain(place, 8, **REWRITE)
    assert len(live_files(place)) == 1
    assert place.rows() == rows
    head = place.load().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    assert (head.summary.get("total-records"), head.summary.get("total-data-files")) == ("8", "1")
    found = place.sink().evidence()
    assert found is not None
    assert found.checkpoint == 8
    for number in range(1, 9):
        harness.clean(place.sink(), number)
    assert append(place, 9, 10) == place.rows()


def test_few_small_files_are_left_as_they_are(place: Place) -> None:
    append(place, 1, 4)
    before = place.load().metadata_location
    maintain(place, 4, **REWRITE)
    assert place.load().metadata_location == before


def test_partitions_are_rewritten_each_for_itself(tmp_path: Path) -> None:
    more = {"createTable": True, "partitionBy": ["bucket(3, id)", "place.country"], "sortBy": ["id desc"]}
    place = sql_place(tmp_path, more=more)
    sink, rows = place.sink(), wide_rows(40)
    sink.prepare_target(WIDE)
    for number in range(1, 7):
        commit(sink, put_wide(sink, number, rows, WIDE), number - 1)
    before = sorted(map(str, place.load().scan().to_arrow().to_pylist()))
    files = len(live_files(place))
    maintain(place, 6, **REWRITE)
    assert len(live_files(place)) * 6 == files
    assert sorted(map(str, place.load().scan().to_arrow().to_pylist())) == before


def test_rewritten_files_have_the_columns_of_today(place: Place) -> None:
    rows = append(place, 1, 6)
    with place.load().update_schema() as update:
        update.rename_column("name", "title")
        update.add_column("size", LongType())
    maintain(place, 6, **REWRITE)
    found = place.load().scan().to_arrow().to_pylist()
    assert Counter((row["id"], row["title"]) for row in found) == rows
    assert {row["size"] for row in found} == {None}


def changes_place(folder: Path, **more: Any) -> Place:
    made = sql_place(folder, more={**OPTIONS, **more})
    made.sink().prepare_target(CHANGES)
    return made


@pytest.mark.parametrize("more", [{}, {"partitionBy": ["bucket(3, id)"]}], ids=["whole", "partitioned"])
def test_deletes_are_applied_and_go(tmp_path: Path, more: dict[str, Any]) -> None:
    place, dice = changes_place(tmp_path, **more), random.Random(5)
    sink, batches = place.sink(), []
    for number in range(1, 25):
        batches.append([change(dice.randrange(9), str(number), i, dice.choice("UUD")) for i in range(6)])
        ordered = sorted(batches[-1], key=lambda row: (row["id"], row["at"]))
        assert commit(sink, put_changes(sink, number, ordered), number - 1).answers() == {Answer.COMMITTED}
        if number % 6 == 0:
            maintain(place, number, **REWRITE)
            assert more or live_files(place, content=2) == []
        assert visible(place) == expected(batches)
    assert upkeep_files(place)


def test_deletes_that_come_meanwhile_reach_rewritten_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = changes_place(tmp_path)
    sink = place.sink()
    batches = [[change(number, "old")] for number in range(1, 7)] + [[change(2, "new"), change(3, None, op="D")]]
    for number, batch in enumerate(batches[:6], start=1):
        commit(sink, put_changes(sink, number, batch), number - 1)
    original, raced = rewrite._content, list[int]()

    def late(*arguments: Any) -> Any:
        made = original(*arguments)
        if not raced:
            raced.append(1)
            assert commit(sink, put_changes(sink, 7, batches[6]), 6).answers() == {Answer.COMMITTED}
        return made

    monkeypatch.setattr(rewrite, "_content", late)
    maintain(place, 6, **REWRITE)
    assert raced
    assert len(live_files(place)) == 2
    assert visible(place) == expected(batches)


def test_a_rewrite_whose_files_are_gone_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1, 6)
    original = rewrite._write

    def overtaken(*arguments: Any) -> None:
        original(*arguments)
        place.load().overwrite(pa.Table.from_pylist([{"id": 7, "name": "theirs"}], schema=harness.SCHEMA))

    monkeypatch.setattr(rewrite, "_write", overtaken)
    maintain(place, 6, **REWRITE)
    assert place.rows() == Counter([(7, "theirs")])
    assert upkeep_files(place) == set()
    assert not [path for path in place.orphan_manifests() if "/upkeep/" in path]


def test_a_rewrite_that_loses_each_race_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = append(place, 1, 6)

    def lose(send: Callable[[], None]) -> None:
        foreign_append(place, {"id": 0, "name": "foreign"})
        send()

    with monkeypatch.context() as patch:
        at_send(patch, lose)
        maintain(place, 6, **REWRITE)
    assert place.rows() == rows + Counter({(0, "foreign"): upkeep.ATTEMPTS_MAX})
    assert upkeep_files(place) == set()


@pytest.mark.parametrize("told", [REWRITE, MERGE, EXPIRE], ids=["rewrite", "merge", "expire"])
@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
def test_a_kill_around_the_request_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], lands: bool
) -> None:
    rows = append(place, 1, 6)

    def killed(send: Callable[[], None]) -> None:
        if lands:
            send()
        die(monkeypatch)

    with monkeypatch.context() as patch:
        at_send(patch, killed)
        with pytest.raises(Killed):
            maintain(place, 6, **told)
    monkeypatch.undo()
    assert place.rows() == rows
    maintain(place, 6, **told)
    rows = append(place, 7, 8)
    for number in range(1, 9):
        harness.clean(place.sink(), number)
    age(place.local(place.load().location()))
    maintain(place, 8, **ORPHANS)
    assert place.rows() == rows
    assert (place.staged(), place.orphan_manifests()) == (set(), set())


@pytest.mark.parametrize("told", [REWRITE, MERGE, EXPIRE], ids=["rewrite", "merge", "expire"])
@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
def test_a_lost_answer_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], lands: bool
) -> None:
    rows = append(place, 1, 6)
    there = place.data_files()

    def lost(send: Callable[[], None]) -> None:
        if lands:
            send()
        raise Unknown("no answer")

    with monkeypatch.context() as patch:
        at_send(patch, lost)
        with pytest.raises(Unknown):
            maintain(place, 6, **told)
    assert place.data_files() >= there
    assert place.rows() == rows
    assert append(place, 7, 7) == place.rows()


def test_what_killed_rewrites_left_goes_with_a_later_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1, 6)
    with monkeypatch.context() as patch:
        at_send(patch, lambda send: die(monkeypatch))
        with pytest.raises(Killed):
            maintain(place, 6, **REWRITE)
    monkeypatch.undo()
    left = upkeep_files(place)
    assert left
    maintain(place, 6, **REWRITE)
    assert upkeep_files(place) > left  # it may still be at work
    age(place.local(place.load().location()))
    maintain(place, 6, **REWRITE)
    assert not upkeep_files(place) & left
    assert append(place, 7, 7) == place.rows()
    assert len(live_files(place)) == 2


def test_manifests_that_pile_up_are_merged_and_numbers_stay(tmp_path: Path) -> None:
    place = changes_place(tmp_path)
    sink = place.sink()
    batches = [[change(number % 5, str(number))] for number in range(1, 13)]
    for number, batch in enumerate(batches, start=1):
        commit(sink, put_changes(sink, number, batch), number - 1)
    before = {entry.data_file.file_path: entry.sequence_number for entry in upkeep.live(place.load(), "main")}
    maintain(place, 12, **MERGE)
    head = place.load().current_snapshot()
    assert head is not None
    assert len(head.manifests(place.load().io)) == 2
    after = {entry.data_file.file_path: entry.sequence_number for entry in upkeep.live(place.load(), "main")}
    assert after == before
    assert visible(place) == expected(batches)
    batches.append([change(1, "later"), change(2, None, op="D")])
    assert commit(sink, put_changes(sink, 13, batches[-1]), 12).answers() == {Answer.COMMITTED}
    assert visible(place) == expected(batches)
    location = place.load().metadata_location
    maintain(place, 13, **MERGE)
    assert place.load().metadata_location == location


def test_merging_is_done_pack_by_pack_within_its_bounds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = append(place, 1, 12)
    monkeypatch.setattr(merging, "FILES_MAX", 8)
    maintain(place, 12, **MERGE)
    head = place.load().current_snapshot()
    assert head is not None
    assert len(head.manifests(place.load().io)) == 5
    assert place.rows() == rows


def test_snapshots_expire_with_their_files_and_proofs_stay(place: Place) -> None:
    rows = append(place, 1, 8)
    maintain(place, 8, **REWRITE)
    foreign_append(place, {"id": 0, "name": "foreign"})
    maintain(place, 8, **EXPIRE)
    table = place.load()
    kept = [item.summary.get("sinkjob.checkpoint") for item in table.metadata.snapshots if item.summary]
    assert kept == ["8", None]  # the proof, and the foreign head
    assert place.rows() == rows + Counter([(0, "foreign")])
    found = place.sink().evidence()
    assert found is not None
    assert found.checkpoint == 8
    maintain(place, 8, **EXPIRE)
    assert len(place.load().metadata.snapshots) == 2
    assert append(place, 9, 9) + Counter([(0, "foreign")]) == place.rows()
    maintain(place, 9, **EXPIRE)
    assert len(place.load().metadata.snapshots) == 1
    assert place.data_files() == place.referred()
    assert place.orphan_manifests() == set()
    assert append(place, 10, 10) + Counter([(0, "foreign")]) == place.rows()


def test_what_branches_and_tags_hold_does_not_expire(place: Place) -> None:
    append(place, 1, 3)
    table = place.load()
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "audit").commit()
    other = place.sink(OTHER_LEDGER, "other", branch="side")
    commit(other, stage(other, 1, [(100, "side")]))
    maintain(place, 3, **EXPIRE)
    assert len(place.load().metadata.snapshots) == 3
    assert place.rows("side") == Counter([(1, "x"), (2, "x"), (3, "x"), (100, "side")])
    assert place.load().scan(snapshot_id=first).to_arrow().num_rows == 1


def test_young_snapshots_and_the_newest_ones_stay(place: Place) -> None:
    append(place, 1, 6)
    maintain(place, 6, expireEvery=1)
    assert len(place.load().metadata.snapshots) == 6
    maintain(place, 6, keepSnapshots=4, **EXPIRE)
    assert len(place.load().metadata.snapshots) == 4


def test_an_expiry_that_others_overtake_looks_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = append(place, 1, 4)
    raced: list[int] = []

    def overtaken(send: Callable[[], None]) -> None:
        if not raced:
            raced.append(1)
            foreign_append(place, {"id": 0, "name": "foreign"})
        send()

    with monkeypatch.context() as patch:
        at_send(patch, overtaken)
        maintain(place, 4, **EXPIRE)
    assert place.rows() == rows + Counter([(0, "foreign")])
    assert len(place.load().metadata.snapshots) == 2


def test_orphans_go_and_what_may_be_pending_young_or_anothers_stays(place: Place) -> None:
    sink, other = place.sink(), place.sink(OTHER_LEDGER, "other")
    lost = stage(sink, 1, [(1, "lost")])
    rows = append(place, 1, 2)
    pending, foreign = stage(sink, 3, [(3, "x")]), stage(other, 1, [(7, "theirs")])
    folder = place.local(place.load().location())
    for name in ("data/left.parquet", "metadata/left.avro", "metadata/00009-left.metadata.json", "data/notes.txt"):
        Path(folder, name).write_text("left")
    age(folder)
    Path(folder, "data/young.parquet").write_text("young")
    before = place.data_files()
    maintain(place, 2, **ORPHANS)
    gone = {os.path.relpath(path, folder) for path in before - place.data_files()}
    assert {name for name in gone if "sinkjob" not in name} == {"data/left.parquet"}
    assert len(gone) == 1 + len(lost.present())
    assert not Path(folder, "metadata/left.avro").exists()
    assert not Path(folder, "metadata/00009-left.metadata.json").exists()
    assert place.rows() == rows
    assert commit(sink, pending, 2).answers() == {Answer.COMMITTED}
    assert commit(other, foreign).answers() == {Answer.COMMITTED}
    assert place.rows() == rows + Counter([(3, "x"), (7, "theirs")])


def test_a_table_that_forbids_it_keeps_all_files(place: Place) -> None:
    append(place, 1, 3)
    with place.load().transaction() as change_properties:
        change_properties.set_properties({"gc.enabled": "false"})
    folder = place.local(place.load().location())
    Path(folder, "data/left.parquet").write_text("left")
    age(folder)
    maintain(place, 3, **ORPHANS, **EXPIRE)
    assert Path(folder, "data/left.parquet").exists()
    assert len(place.load().metadata.snapshots) == 3


def test_what_does_not_fit_into_the_time_is_left_for_the_next_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    rows = append(place, 1, 6)
    seconds = iter(range(1_000_000))

    class Hurried(upkeep.Limit):
        def __init__(self, limit_seconds: float) -> None:
            super().__init__(limit_seconds, lambda: float(next(seconds)))

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "Limit", Hurried)
        for limit in range(1, 12):
            maintain(place, 6, timeLimit=f"{limit}s", **REWRITE, **MERGE, **EXPIRE, **ORPHANS)
            assert place.rows() == rows
    maintain(place, 6, **REWRITE)
    assert len(live_files(place)) == 1
    assert len(upkeep_files(place)) == 1


def test_a_task_that_fails_is_told_and_keeps_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1, 6)

    def broken(*_: object) -> None:
        raise TargetError("PermissionDenied", "no", path="options.catalog")

    monkeypatch.setattr(rewrite, "_write", broken)
    with pytest.raises(TargetError, match="no"):
        maintain(place, 6, **REWRITE, **EXPIRE)
    assert len(place.load().metadata.snapshots) == 1


@pytest.mark.integration
def test_maintenance_by_a_rest_catalog(iceberg_rest: IcebergRest) -> None:
    place = rest_place(iceberg_rest)
    place.make()
    rows = append(place, 1, 8)
    maintain(place, 8, **REWRITE, **MERGE, **EXPIRE, **ORPHANS)
    assert len(live_files(place)) == 1
    assert len(place.load().metadata.snapshots) == 2
    assert place.rows() == rows
    rows = append(place, 9, 16)
    maintain(place, 16, **MERGE, **EXPIRE)
    assert place.rows() == rows
    assert append(place, 17, 17) == place.rows()


@pytest.mark.parametrize(
    ("told", "message"),
    [({"orphanAge": "1h"}, "expected at least 24h"), ({"timeLimit": "1h"}, "expected at most 10m")],
)
def test_bounds_that_are_not_safe_are_refused(place: Place, told: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        place.options(maintenance=told)


def test_a_rewrite_reads_rows_and_so_is_the_drivers(place: Place) -> None:
    remote = place.options(catalog={"type": "rest", "uri": "http://lake", "warehouse": "s3://lake"})
    told = remote.maintenance.model_copy(update={"rewrite_every": 5})
    kind = type(place.sink())
    assert kind.default_run_on(remote) == "Operator"
    assert kind.default_run_on(remote.model_copy(update={"maintenance": told})) == "Driver"
