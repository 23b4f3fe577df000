"""Upserts and changes: what a reader that applies equality deletes sees, against changes applied one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record

from sinkruntime.api import Answer, Distribution, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import catalog, changes
from tests.sinks import harness
from tests.sinks.harness import Staged, commit
from tests.sinks.iceberg_places import Place, sql_place

FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("region", pa.string()),
    pa.field("name", pa.string()),
    pa.field("at", pa.int64()),
    pa.field("op", pa.string()),
]
CHANGES = pa.schema(FIELDS)
OPTIONS: dict[str, Any] = {
    "createTable": True,
    "write": "changes",
    "key": ["id", "region"],
    "orderBy": ["at"],
    "deleteWhen": "op = 'D'",
    "omit": ["op", "at"],
}
Change = dict[str, Any]


def change(number: int, name: str | None, at: int = 0, op: str = "U", region: str = "r") -> Change:
    return {"id": number, "region": region, "name": name, "at": at, "op": op}


def put(sink: Sink, checkpoint: int, *tasks: Sequence[Change], size: int = 1_000) -> Staged:
    """One writer per task, rows in batches of `size`."""
    items = []
    for subtask, rows in enumerate(tasks):
        lineage = Lineage(checkpoint, 1, subtask, len(tasks), 0)
        context = replace(harness.writer_context(sink, lineage), schema=CHANGES)
        writer = sink.create_writer(context)
        writer.open()
        for start in range(0, len(rows), size):
            writer.write(pa.RecordBatch.from_pylist(list(rows[start : start + size]), schema=CHANGES))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return Staged(checkpoint, 1, tuple(items))


def visible(place: Place) -> list[tuple[Any, ...]]:
    """What Iceberg's specification says that a reader sees: a delete file reaches the data files with a smaller
    sequence number in its partition. pyiceberg's own scan does not read equality deletes."""
    table = place.load()
    head = table.current_snapshot()
    entries = [
        (entry.sequence_number or 0, entry.data_file)
        for manifest in ([] if head is None else head.manifests(table.io))
        for entry in manifest.fetch_manifest_entry(table.io)
    ]

    def rows_of(path: str) -> list[dict[str, Any]]:
        return pyarrow.parquet.read_table(path.removeprefix("file://")).to_pylist()

    deletes = []
    for sequence, file in entries:
        if file.equality_ids:
            names = [table.schema().find_column_name(number) or "" for number in file.equality_ids]
            gone = {tuple(row[name] for name in names) for row in rows_of(file.file_path)}
            deletes.append((sequence, file.partition, names, gone))
    seen = []
    for sequence, file in entries:
        if file.equality_ids:
            continue
        mine = [item for item in deletes if item[0] > sequence and item[1] in (file.partition, Record())]
        seen += [
            tuple(row.values())
            for row in rows_of(file.file_path)
            if not any(tuple(row[name] for name in names) in gone for _, _, names, gone in mine)
        ]
    return sorted(seen, key=repr)


def expected(batches: Sequence[Sequence[Change]]) -> list[tuple[Any, ...]]:
    """The changes, one by one."""
    rows: dict[tuple[int, str], tuple[Any, ...]] = {}
    for batch in batches:
        for item in sorted(batch, key=lambda row: row["at"]):
            key = item["id"], item["region"]
            rows.pop(key, None)
            if item["op"] != "D":
                rows[key] = (*key, item["name"])
    return sorted(rows.values(), key=repr)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return sql_place(tmp_path, more=OPTIONS)


def test_changes_replace_and_delete_rows_by_key(place: Place) -> None:
    sink = place.sink()
    sink.prepare_target(CHANGES)
    batches = [
        [change(1, "one"), change(2, "two"), change(3, "three"), change(1, "eins", region="s")],
        [change(1, "uno", 5), change(1, "late", 4), change(2, None, op="D"), change(9, None, op="D")],
        [change(2, "again"), change(3, None), change(3, "no", -1)],
    ]
    for number, batch in enumerate(batches, start=1):
        assert commit(sink, put(sink, number, batch), number - 1).answers() == {Answer.COMMITTED}
        assert visible(place) == expected(batches[:number])
    snapshots = place.load().metadata.snapshots
    assert [item.summary and item.summary.operation.value for item in snapshots] == ["overwrite"] * 3


def test_each_checkpoint_of_changes_has_a_snapshot_of_its_own(place: Place) -> None:
    sink = place.sink()
    sink.prepare_target(CHANGES)
    batches = [[change(1, "one")], [change(1, "two")], [change(1, None, op="D"), change(2, "x")]]
    staged = [put(sink, number, batch) for number, batch in enumerate(batches, start=1)]
    committer = sink.create_aggregated_committer()
    assert committer is not None
    requests = [harness.requests_for(sink, item, max(0, item.checkpoint - 1)).aggregated[0] for item in staged]
    committer.commit(requests)
    committer.close()
    assert {request.answer for request in requests} == {Answer.COMMITTED}
    assert visible(place) == expected(batches)
    assert len(place.load().metadata.snapshots) == 3


@settings(max_examples=12)
@given(
    batches=st.lists(
        st.lists(
            st.builds(
                change,
                st.integers(0, 6),
                st.one_of(st.none(), st.text(max_size=3)),
                st.integers(0, 10**6),
                st.sampled_from("UUUD"),
                st.sampled_from(["r", "s"]),
            ),
            max_size=14,
            unique_by=lambda row: (row["id"], row["region"], row["at"]),
        ),
        min_size=1,
        max_size=3,
    ),
    partitioned=st.booleans(),
    buffer=st.integers(1, 300),
)
def test_any_changes_end_as_if_they_were_applied_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Change]], partitioned: bool, buffer: int
) -> None:
    more = OPTIONS | ({"partitionBy": ["bucket(2, id)", "region"]} if partitioned else {})
    place = sql_place(tmp_path_factory.mktemp("changes"), more=more)
    sink = place.sink()
    sink.prepare_target(CHANGES)
    previous = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "BUFFER_BYTES_MAX", buffer)
        for number, batch in enumerate(batches, start=1):
            ordered = sorted(batch, key=lambda row: (row["id"], row["region"], row["at"]))
            halves = [row for row in ordered if row["id"] % 2], [row for row in ordered if not row["id"] % 2]
            made = commit(sink, put(sink, number, *halves, size=2), previous)
            assert made.answers() == {Answer.COMMITTED}
            previous = number if made.aggregated[0].evidence else previous
    assert visible(place) == expected(batches)


def test_rows_of_a_key_come_to_one_task_in_order(place: Place) -> None:
    assert place.sink().distribution() == Distribution(("id", "region"), 0, ("id", "region", "at"))


def test_a_key_that_changes_twice_without_an_order_is_refused(tmp_path: Path) -> None:
    more = {key: value for key, value in OPTIONS.items() if key != "orderBy"}
    sink = sql_place(tmp_path, more=more).sink()
    sink.prepare_target(CHANGES)
    with pytest.raises(TargetError, match=r"options\.orderBy: KeyTwice"):
        put(sink, 1, [change(1, "a"), change(1, "b")])


def test_rows_that_are_not_sorted_over_several_buffers_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "BUFFER_BYTES_MAX", 1)
    sink = place.sink()
    sink.prepare_target(CHANGES)
    with pytest.raises(TargetError, match=r"options\.key: RowsOutOfOrder"):
        put(sink, 1, [change(1, "a"), change(3, "b"), change(2, "c"), change(1, "d")], size=2)


def test_a_key_without_a_value_is_refused(place: Place) -> None:
    sink = place.sink()
    sink.prepare_target(CHANGES)
    with pytest.raises(TargetError, match="NullInKey: column `id` of the key"):
        put(sink, 1, [{**change(1, "a"), "id": None}])


def test_a_table_partitioned_by_what_is_not_in_the_key_is_refused(tmp_path: Path) -> None:
    sink = sql_place(tmp_path, more=OPTIONS | {"partitionBy": ["name"]}).sink()
    with pytest.raises(TargetError, match=r"options\.key: PartitionOutsideKey: the table is partitioned by `name`"):
        sink.prepare_target(CHANGES)


def partition_anew(table: Table, buckets: int) -> None:
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(buckets), f"id_{buckets}")


def test_deletes_reach_rows_of_the_time_before_a_table_was_partitioned(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(catalog, "TABLE_AGE_SECONDS", 0)
    sink = place.sink()
    sink.prepare_target(CHANGES)
    batches = [[change(number, "old") for number in range(1, 6)]]
    commit(sink, put(sink, 1, batches[0]))
    partition_anew(place.load(), 3)
    sink.prepare_target(CHANGES)
    for checkpoint in (2, 3):
        batches.append([change(checkpoint, "new"), change(checkpoint + 1, None, op="D")])
        assert commit(sink, put(sink, checkpoint, batches[-1]), checkpoint - 1).answers() == {Answer.COMMITTED}
        assert visible(place) == expected(batches)


def test_a_table_whose_older_rows_deletes_would_not_reach_is_refused(tmp_path: Path) -> None:
    place = sql_place(tmp_path, more={**OPTIONS, "partitionBy": ["bucket(2, id)"]})
    sink = place.sink()
    sink.prepare_target(CHANGES)
    batches = [[change(number, "old") for number in range(1, 6)], [change(1, "new")]]
    commit(sink, put(sink, 1, batches[0]))
    staged = put(sink, 2, batches[1])
    partition_anew(place.load(), 7)
    late = commit(sink, staged, 1)
    assert late.answers() == {Answer.REFUSED}
    assert late.aggregated[0].reason == "UnsupportedTableFeature"
    assert visible(place) == expected(batches[:1])
    with pytest.raises(TargetError, match="partitioned otherwise before"):
        sink.prepare_target(CHANGES)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"write": "upsert"}, "`write: upsert` needs `key`"),
        ({"write": "changes", "key": ["id"]}, "`deleteWhen` and `write: changes` belong together"),
        ({"write": "changes", "key": ["id"], "deleteWhen": "op <> 1"}, "`deleteWhen`: cannot read `op <> 1`"),
        ({"key": ["id"]}, "`key` belongs to `write: upsert`"),
        ({"orderBy": ["at"]}, "`orderBy` belongs to `write: upsert`"),
        ({"write": "upsert", "key": ["id"], "omit": ["id"]}, "`omit`: `id` is in `key`"),
        ({"write": "upsert", "key": ["id"], "distributionMode": "hash"}, "`distributionMode` cannot be set"),
        ({"partitionBy": ["id"]}, "`partitionBy` belongs to `createTable: true`"),
        (
            {"createTable": True, "partitionBy": ["bucket(id)"]},
            r"`partitionBy`: cannot read `bucket\(id\)`: expected a",
        ),
        ({"createTable": True, "sortBy": ["day(at) down"]}, r"`sortBy`: cannot read `day\(at\) down`"),
        ({"table": "rows"}, "`table`: `rows` is not a name with a namespace"),
    ],
)
def test_options_that_contradict_themselves_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        sql_place(tmp_path).options(**more)
