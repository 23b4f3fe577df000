"""The delta sink with `write: upsert`: the contract, and the state of the table after changes of many kinds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.delta import DeltaSink
from sinkruntime.sinks.delta.upsert import bounds
from tests.servers.s3 import S3Server
from tests.sinks import contract, harness
from tests.sinks.harness import Row, commit
from tests.sinks.test_delta import DeltaContract, Place, s3_place

_FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "at": pa.int64(), "op": pa.string()}
CHANGES = pa.schema(_FIELDS)
CDC: dict[str, Any] = {
    "write": "upsert",
    "key": ["id"],
    "orderBy": ["at"],
    "deleteWhen": "op = 'D'",
    "omit": ["at", "op"],
}
Change = tuple[int, str | None, int, str]
ROWS: list[Row] = [(1, "one"), (2, None), (3, "ünïcødé ✈"), (4, "")]  # the contract's, with a key of its own each


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "table", str(tmp_path / "table"), {})


class UpsertContract(DeltaContract):
    more: ClassVar = {"write": "upsert", "key": ["id"]}

    @pytest.fixture(autouse=True)
    def _distinct_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "ROWS", ROWS)

    # Its rows have ten keys in no order: staging more is no matter of keys.
    def test_state_and_commit_info_are_small(self, sink: Sink) -> None:
        rows: list[Row] = [(number, "x" * 100) for number in range(harness.BATCH_ROWS)]
        ((_, committable),) = harness.stage(sink, 1, rows).items
        assert len(sink.committable_serializer.serialize(committable)) < 4_096


class TestUpsert(UpsertContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(tmp_path / "table", str(tmp_path / "table"), {})


@pytest.mark.integration
class TestUpsertOnS3(UpsertContract):
    @pytest.fixture
    def place(self, s3_server: S3Server) -> Place:
        return s3_place(s3_server, s3_server.endpoint)


def stage_changes(sink: Sink, checkpoint: int, *tasks: Sequence[Change], batch_rows: int = 3) -> harness.Staged:
    """One writer per task; its rows sorted as the runtime sorts them, in small batches."""
    items = []
    for subtask, changes in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, CHANGES))
        writer.open()
        rows = sorted(changes, key=lambda change: (change[0], change[2]))
        for start in range(0, len(rows), batch_rows):
            part = [dict(zip(CHANGES.names, row, strict=True)) for row in rows[start : start + batch_rows]]
            writer.write(pa.RecordBatch.from_pylist(part, schema=CHANGES))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return harness.Staged(checkpoint, 1, tuple(items))


def content(place: Place) -> dict[int, str | None]:
    rows = place.rows()
    found = {row[0]: row[1] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def cdc_sink(place: Place, **more: Any) -> Sink:
    sink = place.sink(**{**CDC, **more})
    sink.prepare_target(CHANGES)
    return sink


def test_the_last_change_of_a_key_counts_and_deletes_delete(place: Place) -> None:
    sink = cdc_sink(place)
    first: list[Change] = [(1, "a", 5, "I"), (1, "b", 7, "U"), (1, "c", 6, "U"), (2, "x", 1, "I"), (3, "y", 1, "I")]
    assert commit(sink, stage_changes(sink, 1, first)).answers() == {Answer.COMMITTED}
    assert content(place) == {1: "b", 2: "x", 3: "y"}
    second: list[Change] = [(2, None, 9, "D"), (3, None, 2, "U"), (9, "never", 1, "D"), (4, "new", 1, "I")]
    assert commit(sink, stage_changes(sink, 2, second), 1).answers() == {Answer.COMMITTED}
    assert content(place) == {1: "b", 3: None, 4: "new"}
    assert set(DeltaTable(place.path).schema().to_arrow().names) == {"id", "name"}


def test_changes_that_change_nothing_move_the_evidence_all_the_same(place: Place) -> None:
    sink = cdc_sink(place)
    made = commit(sink, stage_changes(sink, 1, [(9, None, 1, "D")]))
    assert made.answers() == {Answer.COMMITTED}
    evidence = sink.evidence()
    assert evidence is not None
    assert evidence.checkpoint == 1
    assert commit(sink, stage_changes(sink, 2, [(1, "a", 1, "I")]), 1).answers() == {Answer.COMMITTED}


@pytest.mark.parametrize("partition_by", [[], ["name"]])
def test_random_changes_end_as_a_dictionary_does(place: Place, partition_by: list[str]) -> None:
    chance = random.Random(7)
    sink = cdc_sink(place, partitionBy=partition_by)
    expected: dict[int, str | None] = {}
    clock = 0
    for checkpoint in range(1, 9):
        tasks: list[list[Change]] = [[], [], []]
        for _ in range(40):
            clock += 1
            key, kind = chance.randrange(30), "D" if chance.random() < 0.2 else "U"
            name = chance.choice(["a", "b'c", None])
            tasks[key % 3].append((key, name, clock, kind))
            if kind == "D":
                expected.pop(key, None)
            else:
                expected[key] = name
        for task in tasks:
            chance.shuffle(task)
        assert commit(sink, stage_changes(sink, checkpoint, *tasks), checkpoint - 1).answers() == {Answer.COMMITTED}
        assert content(place) == expected
    assert place.versions(f"sinkjob/{harness.LEDGER}/lake") == [(number, number) for number in range(1, 9)]


def test_a_merge_that_another_writer_overtakes_is_made_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, other = cdc_sink(place), place.sink(sink="other", **CDC)
    commit(sink, stage_changes(sink, 1, [(1, "a", 1, "I"), (2, "b", 1, "I")]))
    overtaking = stage_changes(other, 1, [(1, "theirs", 1, "U")])
    merge, waiting = DeltaTable.merge, [overtaking]

    def overtaken(self: DeltaTable, *args: Any, **more: Any) -> Any:
        while waiting:
            assert commit(other, waiting.pop()).answers() == {Answer.COMMITTED}
        return merge(self, *args, **more)

    monkeypatch.setattr(DeltaTable, "merge", overtaken)
    assert commit(sink, stage_changes(sink, 2, [(2, None, 2, "D")]), 1).answers() == {Answer.COMMITTED}
    assert content(place) == {1: "theirs"}


def test_a_key_without_a_value_or_twice_without_an_order_is_refused(place: Place) -> None:
    sink = cdc_sink(place)
    with pytest.raises(TargetError, match="NullInKey"):
        stage_changes(sink, 1, [(None, "a", 1, "I")])  # type: ignore[list-item]
    unordered = place.sink(write="upsert", key=["id"], omit=["at", "op"])
    with pytest.raises(TargetError, match=r"options.orderBy: KeyTwice: two rows of a checkpoint have one key"):
        stage_changes(unordered, 1, [(1, "a", 1, "I"), (1, "b", 2, "U")])


def test_rows_that_are_not_sorted_by_key_are_refused(place: Place) -> None:
    sink = cdc_sink(place)
    writer = sink.create_writer(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0), CHANGES))
    writer.open()
    rows = [dict(zip(CHANGES.names, (key, "a", 1, "I"), strict=True)) for key in (2, 1)]
    with pytest.raises(TargetError, match="RowsOutOfOrder"):
        writer.write(pa.RecordBatch.from_pylist(rows, schema=CHANGES))
    writer.abort_prepare()
    writer.close()


def test_only_changes_that_write_need_what_the_table_requires(place: Place) -> None:
    required: list[Any] = [pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False)]
    DeltaTable.create(place.path, pa.schema(required))
    sink = cdc_sink(place)
    assert commit(sink, stage_changes(sink, 1, [(1, None, 1, "D"), (2, "b", 1, "I")])).answers() == {Answer.COMMITTED}
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `name`"):
        stage_changes(sink, 2, [(3, None, 1, "I")])


def test_distribution_and_place_follow_from_upsert(place: Place) -> None:
    distribution = place.sink(**CDC).distribution()
    assert distribution is not None
    assert (distribution.keys, distribution.sort_by) == (("id",), ("id", "at"))
    assert place.sink().distribution() is None
    assert DeltaSink.default_run_on(place.options(**CDC)) == "Driver"


def test_bounds_hold_all_keys_and_only_of_types_that_the_log_says_exactly() -> None:
    files = [
        {"stats": '{"minValues":{"id":3,"s":"a","d":"2024-01-01"},"maxValues":{"id":9,"s":"it\'s","d":"2024-01-02"}}'},
        {"stats": '{"minValues":{"id":-4,"s":"b","d":"2024-01-01"},"maxValues":{"id":5,"s":"c","d":"2024-01-02"}}'},
    ]
    committable = {"files": files, "columns": {"id": "long", "s": "string", "d": "date"}}
    found = list(bounds(("id", "s", "d"), committable))
    assert found == ['target."id" BETWEEN -4 AND 9', "target.\"s\" BETWEEN 'a' AND 'it''s'"]


def test_staged_changes_are_gone_after_the_commit(place: Place) -> None:
    sink = cdc_sink(place)
    staged = stage_changes(sink, 1, [(1, "a", 1, "I")])
    assert any("_sinkjob/changes-" in name for name in place.unnamed())
    commit(sink, staged)
    assert place.unnamed() == set()
    assert content(place) == {1: "a"}
