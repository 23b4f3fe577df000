"""Our `jdbc` sink's `write: upsert` into PostgreSQL against what people write by hand: `foreachBatch`, `executemany`
with INSERT … ON CONFLICT.

The suite `transactional` runs it. Both read the same Parquet files as a stream, in one batch, and write 2 M rows × 6
columns into a table with a primary key that already has half of the keys. By hand nothing is exactly once: a batch
that is run again writes again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from benchmarks.transactional_jdbc import CLIENTS, DATABASE, ROWS, TABLE, sink_of, start_server

UPSERT = (
    "INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET at = excluded.at, "
    "category = excluded.category, account = excluded.account, quantity = excluded.quantity, amount = excluded.amount"
)
#: What the table holds before: every other key, all other columns as none of the rows has them.
FILL = "INSERT INTO t SELECT 2 * n, now(), 'none', 'nobody', -1, 0 FROM generate_series(0, %s) n"


class JdbcUpsert:
    """`mode: staging`, `write: upsert`."""

    name = "jdbc-upsert"
    warm_up = True
    figures: Sequence[Figure] = (Figure("jdbc-upsert-of-executemany", 1 / 2, "ours", "executemany"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._server = start_server(stack)
        self._rows = max(2, int(ROWS * scale))

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {}

    def use(self, bench: Bench) -> None:
        """The session to measure in."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("upsert-source", self._rows, CLIENTS)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("executemany", "ours"))}

    def _once(self, name: str) -> float:
        with closing(self._server.connect(DATABASE)) as connection:
            connection.execute("DROP TABLE IF EXISTS t")
            connection.execute(f"CREATE TABLE t ({TABLE}, PRIMARY KEY (id))".encode())
            connection.execute(FILL, ((self._rows - 1) // 2,))
            connection.execute("VACUUM ANALYZE t")
            connection.execute("CHECKPOINT")
            taken = self._ours() if name == "ours" else self._by_hand()
            found = connection.execute("SELECT count(*), min(quantity) FROM t").fetchone()
        if found != (self._rows, 0):
            raise RuntimeError(f"{name}: {found}: not the table of the {self._rows} rows that were written")
        return taken

    def _ours(self) -> float:
        folder, sink = sink_of(self._bench, self._server, "upsert", {"write": "upsert", "key": ["id"]})
        source = {"format": "parquet", "path": str(self._source), "schema": SCHEMA}
        return self._bench.run(folder, {"source": source, "trigger": {"type": "AvailableNow"}, "sinks": [sink]})

    def _by_hand(self) -> float:
        checkpoint = self._bench.new_folder("upsert-by-hand") / "checkpoint"

        def write(df: DataFrame, batch: int) -> None:
            df.foreachPartition(partial(upsert, self._server.url(DATABASE)))

        begun = time.perf_counter()
        rows = self._bench.session.readStream.schema(SCHEMA).parquet(str(self._source))
        writer = rows.writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - begun


def upsert(url: str, rows: Iterable[Any]) -> None:
    """In a task: its rows in one transaction. psycopg sends them in its pipeline mode, without waiting for each."""
    import psycopg

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany(UPSERT, rows)
