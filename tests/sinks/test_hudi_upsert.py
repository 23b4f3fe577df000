"""Upserts of the hudi sink: the table equals what DuckDB makes of the changes, and is never built on a stale one."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import ManifestError, TargetError
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from tests.servers.hudi_reader import HudiReader
from tests.sinks import harness
from tests.sinks.harness import LEDGER, commit

pytestmark = pytest.mark.integration

FIELDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "label": pa.string(),
    "ts": pa.int64(),
    "op": pa.string(),
    "text": pa.string(),
}
SCHEMA = pa.schema(FIELDS)
BUCKETS = 3
LABELS = (None, "a", "b/c")


def upserting(path: Path, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> HudiSink:
    given = {
        "path": str(path),
        "table": "flights",
        "write": "upsert",
        "recordKey": ["id"],
        "orderingField": "ts",
        "partitionBy": ["label"],
        "buckets": BUCKETS,
        "deleteWhen": "op = 'D'",
        **more,
    }
    options = Options.model_validate(given)
    made = HudiSink(options, harness.identity(ledger_id, sink))
    made.prepare_target(SCHEMA)
    return made


def stage(sink: HudiSink, checkpoint: int, rows: Iterable[dict[str, Any]]) -> harness.Staged:
    """As Spark distributes them: a task for each bucket, its rows sorted by partition."""
    tasks: list[list[dict[str, Any]]] = [[] for _ in range(BUCKETS)]
    for row in rows:
        tasks[zlib.crc32(str(row["id"]).encode()) % BUCKETS].append(row)
    items = []
    for subtask, some in enumerate(tasks):
        some.sort(key=lambda row: (row["label"] is not None, row["label"] or ""))
        lineage = Lineage(checkpoint, 1, subtask, BUCKETS, 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, SCHEMA))
        writer.open()
        for start in range(0, len(some), 50):
            writer.write(pa.RecordBatch.from_pylist(some[start : start + 50], schema=SCHEMA))
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return harness.Staged(checkpoint, 1, tuple(items))


def change(chance: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": chance.randrange(60),
        "label": chance.choice(LABELS),
        "ts": number + chance.randrange(-30, 30),
        "op": "D" if chance.random() < 0.05 else "U",
        "text": f"{number}",
    }


def reference(batches: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """What DuckDB makes of the changes: checkpoint by checkpoint, the highest order of a key counts, of equal ones the
    later row; a deletion leaves nothing behind."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t(id BIGINT, label VARCHAR, ts BIGINT, op VARCHAR, text VARCHAR)")
        for rows in batches:
            arrived = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("n", pa.array(range(len(rows))))
            connection.register("arrived", arrived)
            connection.execute(
                "CREATE OR REPLACE TABLE t AS SELECT id, label, ts, op, text FROM ("
                " SELECT *, row_number() OVER (PARTITION BY id, label ORDER BY ts DESC, n DESC) AS rank FROM ("
                "  SELECT id, label, ts, op, text, -1 AS n FROM t UNION ALL SELECT * FROM arrived)"
                ") WHERE rank = 1 AND op <> 'D'"
            )
            connection.unregister("arrived")
        return sorted(connection.execute("SELECT * FROM t").fetchall(), key=repr)


def seen(reader: HudiReader, path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in SCHEMA.names) for row in reader.rows(str(path))), key=repr)


@pytest.mark.parametrize("seed", range(3))
def test_the_final_state_equals_the_reference(tmp_path: Path, hudi_reader: HudiReader, seed: int) -> None:
    chance = random.Random(seed)
    sink = upserting(tmp_path)
    batches = [[change(chance, 40 * n + at) for at in range(chance.randrange(80))] for n in range(12)]
    last = 0
    for number, rows in enumerate(batches, start=1):
        made = commit(sink, stage(sink, number, rows), last)
        assert made.answers() == {Answer.COMMITTED}, made.reasons()
        last = number if made.aggregated[0].evidence else last
    assert seen(hudi_reader, tmp_path) == reference(batches)


def test_rows_that_stay_keep_the_commit_that_wrote_them(tmp_path: Path, hudi_reader: HudiReader) -> None:
    sink = upserting(tmp_path, partitionBy=[])
    rows = [{"id": number, "label": None, "ts": 1, "op": "U", "text": "old"} for number in range(20)]
    commit(sink, stage(sink, 1, rows))
    commit(sink, stage(sink, 2, [{**rows[3], "ts": 2, "text": "new"}]), 1)
    found = {row["id"]: row for row in hudi_reader.rows(str(tmp_path))}
    instants = sorted({row["_hoodie_commit_time"] for row in found.values()})
    assert len(instants) == 2
    assert {number for number, row in found.items() if row["_hoodie_commit_time"] == instants[1]} == {3}
    for row in found.values():
        assert (tmp_path / row["_hoodie_file_name"]).is_file()


def test_deleting_all_records_leaves_an_empty_table(tmp_path: Path, hudi_reader: HudiReader) -> None:
    sink = upserting(tmp_path)
    rows = [{"id": number, "label": "a", "ts": 1, "op": "U", "text": "x"} for number in range(9)]
    commit(sink, stage(sink, 1, rows))
    gone = stage(sink, 2, [{**row, "op": "D", "ts": 2} for row in rows])
    assert commit(sink, gone, 1).answers() == {Answer.COMMITTED}
    assert seen(hudi_reader, tmp_path) == []
    late = commit(sink, stage(sink, 3, [{**rows[0], "op": "D", "ts": 3}]), 2)
    assert late.answers() == {Answer.COMMITTED}
    assert seen(hudi_reader, tmp_path) == []


def test_what_was_built_on_an_older_table_is_refused(tmp_path: Path, hudi_reader: HudiReader) -> None:
    sink = upserting(tmp_path)
    first = [{"id": 1, "label": "a", "ts": 1, "op": "U", "text": "first"}]
    early = stage(sink, 1, first)
    stale = stage(sink, 2, [{**first[0], "ts": 2, "text": "second"}])
    commit(sink, early)
    made = commit(sink, stale, 1)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"StaleBase"}
    assert [row[4] for row in seen(hudi_reader, tmp_path)] == ["first"]


def test_another_sink_that_has_written_is_seen(tmp_path: Path) -> None:
    row = {"id": 1, "label": "a", "ts": 1, "op": "U", "text": "x"}
    sink, other = upserting(tmp_path), upserting(tmp_path, sink="other")
    staged = stage(sink, 1, [row])
    commit(other, stage(other, 1, [row]))
    assert commit(sink, staged).reasons() == {"StaleBase"}


def test_as_many_tasks_as_buckets_are_demanded(tmp_path: Path) -> None:
    sink = upserting(tmp_path)
    writer = sink.create_writer(harness.writer_context(sink, Lineage(1, 1, 0, 2, 0), SCHEMA))
    writer.open()
    row = {"id": 1, "label": "a", "ts": 1, "op": "U", "text": "x"}
    with pytest.raises(TargetError, match="2 tasks write 3 buckets"):
        writer.write(pa.RecordBatch.from_pylist([row], schema=SCHEMA))
    writer.abort_prepare()
    writer.close()


def test_buckets_and_the_kind_of_writing_never_change(tmp_path: Path) -> None:
    upserting(tmp_path / "by-key")
    with pytest.raises(TargetError, match="made with 3 buckets, the options say 4"):
        upserting(tmp_path / "by-key", buckets=4)
    plain: dict[str, Any] = {"write": "insert", "orderingField": None, "deleteWhen": None}
    with pytest.raises(TargetError, match="takes no inserts"):
        upserting(tmp_path / "by-key", **plain)
    upserting(tmp_path / "plain", **plain)
    with pytest.raises(TargetError, match="was not made by `write: upsert`"):
        upserting(tmp_path / "plain")


def test_rows_without_a_key_are_refused(tmp_path: Path) -> None:
    sink = upserting(tmp_path)
    with pytest.raises(TargetError, match="NullInKey: column `id` of the record key"):
        stage(sink, 1, [{"id": None, "label": "a", "ts": 1, "op": "U", "text": "x"}])


def test_more_than_one_pending_checkpoint_is_refused_by_validate(tmp_path: Path) -> None:
    from sinkruntime.spec.bind import bind
    from sinkruntime.spec.load import load_manifest
    from sinkruntime.spec.options_from import local_places

    text = f"""
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {{name: x, namespace: data}}
spec:
  source: {{format: json, path: in, schema: "id BIGINT, ts BIGINT"}}
  sinks:
  - name: lake
    type: hudi
    options: {{path: {tmp_path}, table: t, write: upsert, recordKey: [id], orderingField: ts}}
"""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=r"spec.commit.maxPending: sink `lake` .*; at most 1"):
        bind(load_manifest(path), local_places(tmp_path))
    path.write_text(text + "  commit: {maxPending: 1}\n")
    assert bind(load_manifest(path), local_places(tmp_path)).sinks
