"""Upserts of the hudi sink: the table equals what DuckDB makes of the changes, and is never built on a stale one."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import ManifestError, TargetError
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.schemas import avro
from sinkruntime.sinks.hudi.timeline import next_instant
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
BY_LABEL: Any = [("label", "ascending"), ("n", "ascending")]
#: Of a stream of changes.
CHECKPOINTS = 10


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
    return stage_table(sink, checkpoint, pa.Table.from_pylist(list(rows), schema=SCHEMA), 50)


def stage_table(sink: HudiSink, checkpoint: int, rows: pa.Table, batch_rows: int = 10_000) -> harness.Staged:
    """As Spark distributes them: a task for each bucket, its rows sorted by partition."""
    order = pc.sort_indices(rows.select(["label"]).append_column("n", numbers(rows)), sort_keys=BY_LABEL)
    rows = rows.take(order)
    ids: Any = rows.column("id")
    buckets = ids.fill_null(0).to_numpy() % BUCKETS
    items = []
    for subtask in range(BUCKETS):
        lineage = Lineage(checkpoint, 1, subtask, BUCKETS, 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, SCHEMA))
        writer.open()
        mine = rows.filter(pa.array(buckets == subtask)).combine_chunks()
        for batch in mine.to_batches(max_chunksize=batch_rows):
            writer.write(batch)
        items.append((lineage, harness.finish(sink, writer, checkpoint)))
    return harness.Staged(checkpoint, 1, tuple(items))


def numbers(rows: pa.Table) -> Any:
    return pa.array(range(rows.num_rows), pa.int64())


def change(chance: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": chance.randrange(60),
        "label": chance.choice(LABELS),
        "ts": number + chance.randrange(-30, 30),
        "op": "D" if chance.random() < 0.05 else "U",
        "text": f"{number}",
    }


def changes(rows: int) -> pa.Table:
    """So many changes of a fourth as many keys, 5 % of them deletes; `ts` is out of order, in and across checkpoints,
    and not unique."""
    with duckdb.connect() as connection:
        found: pa.Table = connection.sql(
            "SELECT (hash(i) % $keys)::BIGINT AS id, ['a', 'b/c', NULL][(1 + id % 3)::INTEGER] AS label,"
            " i + (hash(i, 'ts') % 100000)::BIGINT AS ts, if(hash(i, 'op') % 20 = 0, 'D', 'U') AS op,"
            " 'text ' || i AS text FROM range($rows) AS numbers(i)",
            params={"keys": rows // 4, "rows": rows},
        ).to_arrow_table()  # fmt: skip
    return found.cast(SCHEMA)


def reference(batches: Iterable[pa.Table]) -> list[tuple[Any, ...]]:
    """What DuckDB makes of the changes: checkpoint by checkpoint, the highest order of a key counts, of equal ones the
    later row; a deletion leaves nothing behind."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t(id BIGINT, label VARCHAR, ts BIGINT, op VARCHAR, text VARCHAR)")
        for rows in batches:
            connection.register("arrived", rows.append_column("n", numbers(rows)))
            connection.execute(
                "CREATE OR REPLACE TABLE t AS SELECT id, label, ts, op, text FROM ("
                " SELECT *, row_number() OVER (PARTITION BY id, label ORDER BY ts DESC, n DESC) AS rank FROM ("
                "  SELECT id, label, ts, op, text, -1 AS n FROM t UNION ALL SELECT * FROM arrived)"
                ") WHERE rank = 1 AND op <> 'D'"
            )
            connection.unregister("arrived")
        return sorted(connection.execute("SELECT * FROM t").fetchall(), key=repr)


def seen(reader: HudiReader, path: Path) -> list[tuple[Any, ...]]:
    columns = reader.table(str(path)).select(SCHEMA.names).to_pydict()
    return sorted(zip(*columns.values(), strict=True), key=repr)


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
    assert seen(hudi_reader, tmp_path) == reference(pa.Table.from_pylist(rows, schema=SCHEMA) for rows in batches)


@pytest.mark.parametrize(
    "rows", [10_000, pytest.param(1_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])]
)
def test_a_stream_of_changes_ends_as_in_a_database(tmp_path: Path, hudi_reader: HudiReader, rows: int) -> None:
    stream, sink = changes(rows), upserting(tmp_path)
    size = rows // CHECKPOINTS
    batches = [stream.slice(start, size) for start in range(0, rows, size)]
    for number, batch in enumerate(batches, start=1):
        assert commit(sink, stage_table(sink, number, batch), number - 1).answers() == {Answer.COMMITTED}
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


@pytest.mark.parametrize("action", ["commit", "replacecommit"])
def test_a_writer_that_knows_no_buckets_spoils_the_table(tmp_path: Path, action: str) -> None:
    """Hudi's own upsert (commit) or clustering (replacecommit), between two checkpoints or two runs."""
    row = {"id": 1, "label": "a", "ts": 1, "op": "U", "text": "x"}
    sink = upserting(tmp_path)
    assert commit(sink, stage(sink, 1, [row])).answers() == {Answer.COMMITTED}
    instant = next_instant(time.time() + 60, "")
    path = tmp_path / ".hoodie" / f"{instant}.{action}"
    path.write_text(json.dumps({"extraMetadata": {"schema": avro(SCHEMA, "flights")}}))
    said = f"ConcurrentWriter: another writer has written to the table: a {action} at instant {instant}"
    with pytest.raises(TargetError, match=said):
        stage(sink, 2, [row])
    with pytest.raises(TargetError, match=said):
        upserting(tmp_path)
    path.rename(path.with_suffix(".clean"))
    later = stage(upserting(tmp_path), 2, [row])
    assert commit(sink, later, 1).answers() == {Answer.COMMITTED}


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
