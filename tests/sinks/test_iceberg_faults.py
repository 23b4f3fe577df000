"""What befalls an Iceberg table from outside: zombies, other writers, expiry, rollback, replacement."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sinkruntime.api import Answer, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import snapshot
from tests.servers.iceberg_rest import IcebergRest
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import Staged, commit, stage
from tests.sinks.iceberg_places import Place, rest_place, sql_place

RACES = 25


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = sql_place(tmp_path)
    made.make()
    return made


def foreign_append(place: Place, *rows: dict[str, Any]) -> None:
    """Another writer's snapshot, without evidence."""
    table = place.load()
    table.append(pa.Table.from_pylist(list(rows), schema=harness.SCHEMA))


def expire_ours(place: Place) -> None:
    """Forget every snapshot with evidence, as an expiry does after its time."""
    table = place.load()
    ours = [item.snapshot_id for item in table.metadata.snapshots if item.summary and item.summary.get("sinkjob.sink")]
    table.maintenance.expire_snapshots().by_ids(ours).commit()


def evidence_of(place: Place) -> Counter[str]:
    """How often each checkpoint stands in a summary."""
    snapshots = place.load().metadata.snapshots
    found = [item.summary.get("sinkjob.checkpoint") for item in snapshots if item.summary]
    return Counter(str(number) for number in found if number is not None)


def race(place: Place, races: int) -> None:
    sink, barrier = place.sink(), threading.Barrier(2)

    def one(staged: Staged, previous: int) -> set[Answer]:
        barrier.wait(60)
        return commit(sink, staged, previous).answers()

    with ThreadPoolExecutor(2) as pool:
        for number in range(1, races + 1):
            staged = stage(sink, number, [(number, "x")])
            answers = [future.result() for future in [pool.submit(one, staged, number - 1) for _ in range(2)]]
            assert answers[0] | answers[1] <= YES
            assert Answer.COMMITTED in answers[0] | answers[1]
    assert evidence_of(place) == Counter(str(number) for number in range(1, races + 1))
    assert place.rows() == Counter((number, "x") for number in range(1, races + 1))


def test_two_committers_of_one_checkpoint_commit_it_once(place: Place) -> None:
    race(place, RACES)


@pytest.mark.integration
def test_two_committers_of_one_checkpoint_commit_it_once_by_rest(iceberg_rest: IcebergRest) -> None:
    place = rest_place(iceberg_rest)
    place.make()
    race(place, RACES)


def test_the_loser_of_a_race_leaves_no_metadata_files(place: Place) -> None:
    race(place, 5)
    assert place.orphan_manifests() == set()


def test_what_a_killed_committer_leaves_is_removed_after_the_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "send", kill)
        with pytest.raises(Killed):
            commit(sink, staged)
    assert place.orphan_manifests()
    harness.ask(sink, "fence", staged)
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    harness.clean(sink, 1)
    assert place.orphan_manifests() == set()
    assert place.rows() == Counter(ROWS)
    for item in place.load().metadata.snapshots:  # the fence's is whole, too
        item.manifests(place.load().io)


@contextmanager
def sent_twice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As by a proxy or a client that repeats what was not answered in time: the first request lands, and the answer
    that arrives is that of the second."""
    original = SqlCatalog.commit_table

    def twice(*given: Any) -> Any:
        original(*given)
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", twice)
        yield


def test_a_request_that_was_sent_twice_has_landed_although_it_was_turned_down(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    with sent_twice(monkeypatch):
        harness.ask(sink, "fence", stage(sink, 2, ROWS))
        assert commit(sink, staged).answers() <= YES
    harness.clean(sink, 1)
    assert place.rows() == Counter(ROWS)
    for item in place.load().metadata.snapshots:
        item.manifests(place.load().io)
    assert place.orphan_manifests() == set()


def test_a_stale_committer_is_never_moved_onto_a_newer_head(place: Place) -> None:
    """It has looked at the table, sleeps, and wakes after another committed the same checkpoint."""
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    committer = sink.create_aggregated_committer()
    request = harness.requests_for(sink, staged).aggregated[0]
    original = committer._load  # type: ignore[union-attr]
    looks: list[Any] = []

    def late() -> Any:
        table = original()
        if not looks:
            commit(sink, staged)
        looks.append(table)
        return table

    committer._load = late  # type: ignore[union-attr]
    committer.commit([request])  # type: ignore[union-attr]
    committer.close()  # type: ignore[union-attr]
    assert request.answer is Answer.ALREADY_COMMITTED
    assert len(looks) == 2
    assert place.rows() == Counter(ROWS)


def test_other_writers_between_our_checkpoints_change_nothing(place: Place) -> None:
    sink = place.sink()
    for number in range(1, 4):
        foreign_append(place, {"id": -number, "name": "foreign"})
        assert commit(sink, stage(sink, number, [(number, "x")]), number - 1).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter([(number, "x") for number in (1, 2, 3)] + [(-n, "foreign") for n in (1, 2, 3)])


def test_other_writers_at_the_same_time_only_cost_another_attempt(place: Place) -> None:
    sink, number = place.sink(), 10
    failed: list[Exception] = []

    def others() -> None:
        try:
            for index in range(number):
                foreign_append(place, {"id": -index, "name": "foreign"})
        except Exception as error:  # noqa: BLE001  (told by the assertion)
            failed.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    for checkpoint in range(1, number + 1):
        assert commit(sink, stage(sink, checkpoint, [(checkpoint, "x")]), checkpoint - 1).answers() <= YES
    thread.join(60)
    assert not failed
    assert sum(place.rows().values()) == 2 * number
    assert evidence_of(place) == Counter(str(checkpoint) for checkpoint in range(1, number + 1))


def test_evidence_survives_the_expiry_of_its_snapshot(place: Place) -> None:
    sink = place.sink()
    first = stage(sink, 1, ROWS)
    commit(sink, first)
    foreign_append(place, {"id": 0, "name": "foreign"})
    expire_ours(place)
    found = sink.evidence()
    assert found is not None
    assert found.checkpoint == 1
    assert commit(sink, first, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter([*ROWS, *MORE, (0, "foreign")])


def test_cleaning_after_an_expiry_keeps_what_is_committed(place: Place) -> None:
    sink = place.sink()
    stage(sink, 1, MORE)  # a losing attempt
    commit(sink, stage(sink, 1, ROWS))
    foreign_append(place, {"id": 0, "name": "foreign"})
    expire_ours(place)
    harness.clean(sink, 1)
    assert place.rows() == Counter([*ROWS, (0, "foreign")])
    assert place.staged() == set()


def test_a_rollback_is_seen_although_the_property_remains(place: Place) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    before = place.load().metadata.current_snapshot_id
    assert before is not None
    commit(sink, stage(sink, 2, MORE), 1)
    place.load().manage_snapshots().rollback_to_snapshot(before).commit()
    found = sink.evidence()
    assert found is not None
    assert found.checkpoint == 1
    refused = commit(sink, stage(sink, 3, MORE), 2)
    assert refused.reasons() == {"TargetBehindLedger"}
    assert place.rows() == Counter(ROWS)


def test_a_rollback_to_before_all_evidence_is_seen(place: Place) -> None:
    foreign_append(place, {"id": 0, "name": "foreign"})
    before = place.load().metadata.current_snapshot_id
    assert before is not None
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    place.load().manage_snapshots().rollback_to_snapshot(before).commit()
    foreign_append(place, {"id": 1, "name": "foreign"})
    found = sink.evidence()
    assert found is not None
    assert found.checkpoint == 0


def test_a_recreated_table_gets_no_older_files(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    place.drop()
    place.make()
    refused = commit(sink, staged)
    assert refused.reasons() == {"TargetReplaced"}
    assert place.rows() == Counter()


def test_a_dropped_table_is_said_by_name_and_left_alone(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    place.drop()
    assert commit(sink, staged).reasons() == {"TableMissing"}
    assert harness.ask(sink, "probe", staged).answers(Answer.ABSENT) == {Answer.UNKNOWN}
    harness.ask(sink, "abort", staged)
    harness.clean(sink, 1)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 1]))


def test_pending_appends_share_one_snapshot_and_each_is_proved(place: Place) -> None:
    sink = place.sink()
    all_staged = [stage(sink, number, [(number, "x")]) for number in (1, 2, 3)]
    committer = sink.create_aggregated_committer()
    assert committer is not None
    requests = [harness.requests_for(sink, staged, 0).aggregated[0] for staged in all_staged]
    committer.commit(requests)
    committer.close()
    assert {request.answer for request in requests} == {Answer.COMMITTED}
    assert len(place.load().metadata.snapshots) == 1
    assert place.rows() == Counter((number, "x") for number in (1, 2, 3))
    for number in (1, 2, 3):
        assert "in its summary" in (sink.prove(number, 1) or "")
        harness.clean(sink, number)
    assert sum(place.rows().values()) == 3


def test_empty_checkpoints_leave_evidence_now_and_then(place: Place) -> None:
    sink = place.sink(emptyCheckpoints=3)
    previous, proved = 0, []
    for number in range(1, 8):
        made = commit(sink, stage(sink, number, []), previous)
        assert made.answers() == {Answer.COMMITTED}
        if made.aggregated[0].evidence:
            previous = number
            proved.append(number)
    assert proved == [3, 6]
    assert evidence_of(place) == Counter(["3", "6"])
    assert commit(sink, stage(sink, 8, ROWS), previous).answers() == {Answer.COMMITTED}


def test_a_branch_is_written_and_main_stays(place: Place) -> None:
    foreign_append(place, {"id": 0, "name": "main"})
    sink = place.sink(branch="audit")
    commit(sink, stage(sink, 1, ROWS))
    commit(sink, stage(sink, 2, MORE), 1)
    assert place.rows() == Counter([(0, "main")])
    assert place.rows("audit") == Counter([(0, "main"), *ROWS, *MORE])


def two_columns(first: str, kind: Any, second: str) -> pa.Schema:
    return pa.schema([pa.field(first, kind), pa.field(second, pa.string())])


REFUSED: list[tuple[pa.Schema, str]] = [
    (two_columns("id", pa.string(), "name"), "column `id`: the table has int64, it would get string"),
    (two_columns("id", pa.int64(), "nmae"), "column `nmae`: the table has no such column"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_rows_that_do_not_fit_are_refused_by_column(place: Place, schema: pa.Schema, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        place.sink().prepare_target(schema)


def test_a_missing_table_and_a_missing_catalog_are_said_by_name(place: Place, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"TableMissing: there is no table `lake\.other`"):
        place.sink(table="lake.other").prepare_target(harness.SCHEMA)
    nowhere = sql_place(tmp_path / "nowhere")
    with pytest.raises(OSError, match="the catalog's database"):
        nowhere.sink().prepare_target(harness.SCHEMA)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match="CatalogMissing: the database has no Iceberg catalog"):
        sql_place(tmp_path / "empty").sink().prepare_target(harness.SCHEMA)


def test_a_format_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    for properties, what in [({"format-version": "1"}, "version 1"), ({"write.format.default": "orc"}, "as orc")]:
        place = sql_place(tmp_path, table=f"lake.t{len(what)}")
        place.make(properties=properties)
        with pytest.raises(TargetError, match=f"UnsupportedTableFeature: .*{what}"):
            place.sink().prepare_target(harness.SCHEMA)


def test_a_null_in_a_required_column_is_refused_by_name(tmp_path: Path) -> None:
    from pyiceberg.schema import Schema

    from tests.sinks.iceberg_places import COLUMNS

    place = sql_place(tmp_path)
    required = COLUMNS[1].model_copy(update={"required": True})
    place.make(Schema(COLUMNS[0], required))
    sink: Sink = place.sink()
    sink.prepare_target(harness.SCHEMA)
    writer = harness.open_writer(sink)
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `name`"):
        writer.write(harness.batch_of(ROWS))
    writer.abort_prepare()
    writer.close()
    assert place.staged() == set()
