"""The delta sink while others change its table: made anew, rolled back, with other columns, compacted."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sinkruntime.api import Answer, Sink
from sinkruntime.errors import TargetError
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.test_delta import Place, append_theirs, ready, rows_of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "table", str(tmp_path / "table"), {})


def test_a_table_that_was_made_anew_gets_no_old_files(place: Place) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    place.drop()
    ready(place)
    made = commit(sink, staged)
    assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"TargetReplaced"})
    assert rows_of(place) == Counter()


def test_a_table_that_is_gone_is_said_by_name(place: Place) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    place.drop()
    requests = harness.requests_for(sink, staged).aggregated
    made_for = sink.create_aggregated_committer()
    assert made_for is not None
    made_for.commit(requests)
    assert (requests[0].answer, requests[0].reason) == (Answer.REFUSED, "TableMissing")


def evidence_in(sink: Sink) -> int:
    found = sink.evidence()
    assert found is not None
    return found.checkpoint


def test_a_table_that_is_rolled_back_proves_what_it_then_holds_and_no_more(place: Place) -> None:
    sink = ready(place)
    for checkpoint in (1, 2, 3):
        commit(sink, stage(sink, checkpoint, [(checkpoint, "row")]), checkpoint - 1)
    staged = stage(sink, 4, MORE)
    DeltaTable(place.path).restore(1)
    append_theirs(place)
    assert evidence_in(sink) == 1
    assert sink.prove(2, 1) is None
    assert harness.ask(sink, "probe", harness.Staged(3, 1, ())).answers() == {Answer.ALREADY_COMMITTED}
    made = commit(sink, staged, 3)
    assert (made.answers(), made.reasons()) == ({Answer.REFUSED}, {"TargetBehindLedger"})
    harness.clean(sink, 3)
    DeltaTable(place.path).restore(3)
    assert evidence_in(sink) == 3, "nothing that it took away was removed"
    assert commit(sink, staged, 3).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter([(1, "row"), (2, "row"), (3, "row"), *MORE])
    assert evidence_in(sink) == 4


def test_a_restore_to_a_time_says_what_to_do(place: Place) -> None:
    sink = ready(place)
    commit(sink, stage(sink, 1, ROWS))
    DeltaTable(place.path).restore(0)
    newest = place.directory / "_delta_log" / f"{2:020d}.json"
    newest.write_text(newest.read_text().replace('{"version":"0"}', '{"version":null,"timestamp":"2024-01-01"}'))
    with pytest.raises(TargetError, match=r"TableRefused: version 2 .* went back to a time, not to a version"):
        sink.evidence()


def test_evidence_outlives_the_versions_that_wrote_it(place: Place) -> None:
    sink = ready(place, tableProperties={"delta.logRetentionDuration": "interval 0 days"})
    for checkpoint in (1, 2):
        commit(sink, stage(sink, checkpoint, [(checkpoint, "row")]), checkpoint - 1)
    append_theirs(place)
    log = place.directory / "_delta_log"
    for path in log.glob("*.json"):
        os.utime(path, (0, 0))
    table = DeltaTable(place.path)
    table.create_checkpoint()
    table.cleanup_metadata()
    assert [path.name for path in log.glob("*.json")] == [f"{3:020d}.json"]
    assert evidence_in(sink) == 2
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, stage(sink, 3, MORE), 2).answers() == {Answer.COMMITTED}


def test_a_table_that_changed_its_columns_is_not_given_files_of_the_old_ones(place: Place) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    other = pa.table({"id": ["text"], "name": ["theirs"]})
    write_deltalake(place.path, other, mode="overwrite", schema_mode="overwrite")
    requests = commit(sink, staged).aggregated
    assert (requests[0].answer, requests[0].reason) == (Answer.REFUSED, "SchemaMismatch")
    assert requests[0].message == 'column `id`: the table now has "string", the files have "long"'


def test_a_column_that_another_adds_meanwhile_is_no_obstacle(place: Place) -> None:
    sink = ready(place)
    staged = stage(sink, 1, ROWS)
    wider = pa.table({"id": [77], "name": ["theirs"], "more": [1]})
    write_deltalake(place.path, wider, mode="append", schema_mode="merge")
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert rows_of(place) == Counter([*ROWS, (77, "theirs")])


def test_compaction_between_commit_and_clean_up_loses_nothing(place: Place) -> None:
    sink = ready(place)
    commit(sink, stage(sink, 1, ROWS))
    stage(sink, 2, MORE)  # a losing attempt
    commit(sink, stage(sink, 2, MORE), 1)
    before = place.active().keys()
    DeltaTable(place.path).optimize.compact()
    assert not before & place.active().keys()
    losers = place.unnamed() - before
    assert len(losers) == 1
    harness.clean(sink, 2)
    assert losers.isdisjoint(place.unnamed())
    assert before <= place.unnamed(), "files of older versions stay for time travel"
    assert rows_of(place) == Counter(ROWS + MORE)
    assert DeltaTable(place.path, version=2).to_pyarrow_table().num_rows == len(ROWS + MORE)
