"""Maintenance of an Iceberg table after commits: it loses nothing, whatever happens meanwhile, and garbage goes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import maintenance, rewrite, upkeep
from sinkruntime.sinks.iceberg.snapshot import Unknown
from tests.servers.iceberg_rest import IcebergRest
from tests.sinks import harness
from tests.sinks.harness import OTHER_LEDGER, commit, stage
from tests.sinks.iceberg_places import Place, rest_place, sql_place
from tests.sinks.iceberg_upkeep import (
    EXPIRE,
    MERGE,
    ORPHANS,
    REWRITE,
    Killed,
    age,
    append,
    at_send,
    die,
    live_files,
    maintain,
    upkeep_files,
)
from tests.sinks.test_iceberg_faults import foreign_append, sent_twice


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = sql_place(tmp_path)
    made.make()
    return made


def test_nothing_is_done_unless_it_is_told_and_due(place: Place) -> None:
    append(place, 1, 8)
    before = place.load().metadata_location
    maintain(place, 8)
    maintain(place, 7, rewriteEvery=2, expireEvery=4, orphansEvery=8, mergeManifestsEvery=3)
    assert place.load().metadata_location == before


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


@pytest.mark.parametrize("told", [REWRITE, MERGE, EXPIRE], ids=["rewrite", "merge", "expire"])
def test_a_request_that_was_sent_twice_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    rows = append(place, 1, 6)
    with sent_twice(monkeypatch):
        maintain(place, 6, **told)
    assert place.rows() == rows
    assert append(place, 7, 7) == place.rows()


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
