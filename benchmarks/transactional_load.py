"""One connection's load into PostgreSQL: our binary COPY from Arrow against ADBC's ingestion of the same batches.

The suite `transactional` runs it; it says which of the two the `jdbc` sink should use. Both have the same Arrow batches
in memory, of the size that Spark brings, and write 2 M rows × 6 columns into an empty table; connecting and COMMIT
are included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from benchmarks import rivals
from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import Bench
from benchmarks.transactional_jdbc import CLIENTS, DATABASE, ROWS, TABLE, start_server
from sinkruntime.sinks.jdbc.address import parse
from sinkruntime.sinks.jdbc.postgresql import PostgreSQL
from sinkruntime.sinks.jdbc.postgresql_load import begin_copy
from sinkruntime.spark.session import BATCH_ROWS


class JdbcLoad:
    """The loader of both modes, without Spark and without the protocol."""

    name = "jdbc-load"
    warm_up = True
    figures: Sequence[Figure] = (Figure("jdbc-load-of-adbc", 1, "ours", "adbc"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._server = start_server(stack)
        self._rows = max(1, int(ROWS * scale))
        place = folder / "adbc"
        place.mkdir()
        self._rivals = stack.enter_context(rivals.loaders(place, self._server.url(DATABASE), CLIENTS))

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {}

    def use(self, bench: Bench) -> None:
        """The session that makes the input."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("load-source", self._rows, CLIENTS)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("adbc", "ours"))}

    def _once(self, name: str) -> float:
        with closing(self._server.connect(DATABASE)) as connection:
            connection.execute("DROP TABLE IF EXISTS t")
            connection.execute(f"CREATE TABLE t ({TABLE})".encode())
            connection.execute("CHECKPOINT")
            taken = self._ours() if name == "ours" else self._rivals.adbc(self._source, BATCH_ROWS)
            found = connection.execute("SELECT count(*) FROM t").fetchone()
        if found != (self._rows,):
            raise RuntimeError(f"{name}: the table has {found} rows, and {self._rows} were written")
        return taken

    def _ours(self) -> float:
        files = sorted(self._source.glob("*.parquet"))
        table = pa.concat_tables([pyarrow.parquet.read_table(file) for file in files])
        batches = table.to_batches(max_chunksize=BATCH_ROWS)
        begun = time.perf_counter()
        database = PostgreSQL(parse(self._server.url(DATABASE)), 10.0)
        with closing(database.connect()) as session, session.transaction():
            columns = database.columns(session, "", "t")
            assert columns is not None, "made just now"
            load = begin_copy(session, "t", columns)
            for batch in batches:
                load.write(batch)
            load.finish()
        return time.perf_counter() - begun
