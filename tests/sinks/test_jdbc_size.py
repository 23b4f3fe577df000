"""A million upserts and changes, four writers at a time: the table equals what DuckDB makes of the same stream."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Committable, Lineage
from tests.sinks import harness
from tests.sinks.harness import Staged, commit
from tests.sinks.jdbc_places import Place, make

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(3600)]

_FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "op": pa.string(), "n": pa.int64()}
SCHEMA = pa.schema(_FIELDS)
CHECKPOINTS = 20
WRITERS = 4
BATCH_ROWS = 10_000

#: One change in twenty deletes; one key has five changes on average, some of them in one checkpoint.
CHANGES = """
CREATE TABLE changes AS SELECT CAST(hash(i) % (? // 5) AS BIGINT) AS id,
    CASE WHEN i % 17 = 0 THEN NULL ELSE 'naïve 日本語 ' || i END AS name,
    CASE WHEN hash(i * 31) % 20 = 0 THEN 'D' ELSE 'U' END AS op, i AS n
FROM range(?) AS numbers(i)
"""
REFERENCE = """
SELECT id, name, op, n FROM (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY n DESC) AS place FROM changes
) WHERE place = 1 AND (op <> 'D' OR NOT ?) ORDER BY id
"""
PART = "SELECT id, name, op, n FROM changes WHERE n >= ? AND n < ? AND id % ? = ? ORDER BY n"


@pytest.mark.parametrize("write", ["upsert", "changes"])
@pytest.mark.parametrize(("kind", "count"), [("postgresql", 1_000_000), ("mariadb", 200_000)])
def test_the_table_equals_what_another_engine_makes_of_the_changes(
    kind: str, count: int, write: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    options = {"write": write, "key": ["id"], "table": place.options()["table"][:-1] + "c"}
    if write == "changes":
        options["deleteWhen"] = "op = 'D'"
    sink = make(place, **options)
    sink.prepare_target(SCHEMA)
    with duckdb.connect() as engine:
        engine.execute(CHANGES, [count, count])
        for checkpoint in range(1, CHECKPOINTS + 1):
            staged = stage(sink, engine, checkpoint, count // CHECKPOINTS)
            assert commit(sink, staged, checkpoint - 1).answers() == {Answer.COMMITTED}
        expected = engine.execute(REFERENCE, [write == "changes"]).fetchall()
    assert [tuple(row) for row in place.query("SELECT id, name, op, n FROM ~.c ORDER BY id")] == expected
    assert place.staged() == set()


def stage(sink: Any, engine: duckdb.DuckDBPyConnection, checkpoint: int, rows: int) -> Staged:
    """Four writers at once, each with its keys, as the sink's distribution has it."""

    def write(subtask: int) -> tuple[Lineage, Committable | None]:
        lineage = Lineage(checkpoint, 1, subtask, WRITERS, 0)
        writer = sink.create_writer(harness.writer_context(sink, lineage, SCHEMA))
        writer.open()
        for batch in batches(engine, (checkpoint - 1) * rows, rows, subtask):
            writer.write(batch)
        return lineage, harness.finish(sink, writer, checkpoint)

    with ThreadPoolExecutor(WRITERS) as pool:
        return Staged(checkpoint, 1, tuple(pool.map(write, range(WRITERS))))


def batches(engine: duckdb.DuckDBPyConnection, first: int, rows: int, subtask: int) -> Iterator[pa.RecordBatch]:
    with closing(engine.cursor()) as own:
        found = own.sql(PART, params=[first, first + rows, WRITERS, subtask]).to_arrow_table()
    yield from found.cast(SCHEMA).to_batches(BATCH_ROWS)
