"""Small files rewritten and manifests merged in an Iceberg table: rows and deletes stay, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.types import LongType

from sinkruntime.api import Answer
from sinkruntime.sinks.iceberg import merging, rewrite, upkeep
from tests.sinks import harness
from tests.sinks.harness import commit, stage
from tests.sinks.iceberg_places import Place, sql_place
from tests.sinks.iceberg_upkeep import (
    MERGE,
    REWRITE,
    Killed,
    age,
    append,
    at_send,
    delete_position,
    die,
    live_files,
    maintain,
    upkeep_files,
)
from tests.sinks.test_iceberg_changes import CHANGES, OPTIONS, change, expected, visible
from tests.sinks.test_iceberg_changes import put as put_changes
from tests.sinks.test_iceberg_faults import foreign_append
from tests.sinks.test_iceberg_partitions import WIDE, wide_rows
from tests.sinks.test_iceberg_partitions import put as put_wide


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = sql_place(tmp_path)
    made.make()
    return made


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


def test_positions_that_others_have_deleted_stay_deleted(place: Place) -> None:
    rows = append(place, 1, 6)
    delete_position(place, live_files(place)[0], 0)
    left = place.rows()
    assert sum((rows - left).values()) == 1
    maintain(place, 6, **REWRITE)
    assert len(live_files(place)) == 1
    assert place.rows() == left


def test_positions_that_others_delete_meanwhile_are_not_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1, 6)
    original = rewrite._write

    def overtaken(*arguments: Any) -> None:
        original(*arguments)
        delete_position(place, live_files(place)[0], 0)

    monkeypatch.setattr(rewrite, "_write", overtaken)
    maintain(place, 6, **REWRITE)
    assert len(live_files(place)) == 6
    assert sum(place.rows().values()) == 5
    assert upkeep_files(place) == set()


def test_partitions_that_are_overwritten_lose_their_position_deletes(place: Place) -> None:
    append(place, 1, 2)
    delete_position(place, live_files(place)[0], 0)
    sink = place.sink(write="overwritePartitions")
    assert commit(sink, stage(sink, 3, [(3, "x")]), 2).answers() == {Answer.COMMITTED}
    assert live_files(place, content=1) == []
    assert place.rows() == Counter([(3, "x")])


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
