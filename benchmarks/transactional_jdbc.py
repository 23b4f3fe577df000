"""Our `jdbc` sink into PostgreSQL against `\\copy` by one client per core, and Spark's own JDBC writer.

The suite `transactional` runs it. All write the same 2 M rows × 6 columns into an empty table of the same server, which
flushes its log to disk; the table is counted after each. `\\copy` reads CSV files that are made before. Spark's
writer, at its best settings, is not exactly once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from tests.servers import postgresql

ROWS = 2_000_000
CLIENTS = 2  # as Spark has cores here
DATABASE = "bench"
TABLE = "id bigint, at timestamp with time zone, category text, account text, quantity integer, amount double precision"
#: The jar of PostgreSQL's JDBC driver, for Spark's writer only; without it that series is left out.
DRIVER_JAR = "SINKJOB_BENCH_POSTGRESQL_JAR"


class JdbcInsert:
    """`mode: xa` and `mode: staging`, in one batch job each."""

    name = "jdbc"
    warm_up = True

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._server = stack.enter_context(postgresql.serve(settings={"fsync": "on", "max_wal_size": "4GB"}))
        self._server.make_database(DATABASE)
        self._folder = folder
        self._rows = max(1, int(ROWS * scale))
        self._jar = os.environ.get(DRIVER_JAR, "")
        copy = (
            Figure("jdbc-xa-of-copy", 0.6, "copy", "xa", at_least=True),
            Figure("jdbc-staging-of-copy", 0.35, "copy", "staging", at_least=True),
        )
        spark = (Figure("jdbc-xa-of-spark", 1.5, "spark", "xa", at_least=True),)
        self.figures: Sequence[Figure] = (*copy, *(spark if self._jar else ()))

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {"spark.jars": self._jar}

    def use(self, bench: Bench) -> None:
        """The session to measure in."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("jdbc-source", self._rows, CLIENTS)
        self._texts = self._bench.folder / "jdbc-texts"
        self._bench.session.read.parquet(str(self._source)).write.csv(str(self._texts))

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        names = ("copy", "xa", "staging", *(("spark",) if self._jar else ()))
        return {name: self._once(name) for name in in_turn(index, names)}

    def _once(self, name: str) -> float:
        with closing(self._server.connect(DATABASE)) as connection:
            connection.execute("DROP TABLE IF EXISTS t")
            connection.execute(f"CREATE TABLE t ({TABLE})".encode())
            taken = {"copy": self._copy, "spark": self._spark}.get(name, lambda: self._ours(name))()
            found = connection.execute("SELECT count(*) FROM t").fetchone()
        if found != (self._rows,):
            raise RuntimeError(f"{name}: the table has {found} rows, and {self._rows} were written")
        return taken

    def _copy(self) -> float:
        psql = shutil.which("psql")
        if psql is None:
            raise RuntimeError("psql is missing: install PostgreSQL's client")
        files = sorted(self._texts.glob("*.csv"))
        commands = [[psql, "-q", self._server.url(DATABASE), "-c", f"\\copy t FROM '{file}' CSV"] for file in files]
        begun = time.perf_counter()
        clients = [subprocess.Popen(command) for command in commands]
        codes = [client.wait(timeout=600) for client in clients]
        if any(codes):
            raise RuntimeError("psql failed")
        return time.perf_counter() - begun

    def _ours(self, mode: str) -> float:
        folder = self._bench.new_folder(f"jdbc-{mode}")
        (folder / "target.env").write_text(f"url={self._server.url(DATABASE)}\n")
        sink = {
            "name": "out",
            "type": "jdbc",
            "options": {"table": "t", "mode": mode},
            "optionsFrom": [{"fileRef": {"path": "target.env"}}],
        }
        source = {"format": "parquet", "path": str(self._source), "schema": SCHEMA}
        return self._bench.run(folder, {"mode": "Batch", "source": source, "sinks": [sink]})

    def _spark(self) -> float:
        begun = time.perf_counter()
        writer = self._bench.session.read.parquet(str(self._source)).write.format("jdbc").mode("append")
        options = {
            "url": f"jdbc:postgresql://{self._server.address}/{DATABASE}?reWriteBatchedInserts=true",
            "user": postgresql.USER, "password": postgresql.PASSWORD, "dbtable": "t", "batchsize": "10000",
            "driver": "org.postgresql.Driver",
        }  # fmt: skip
        writer.options(**options).save()
        return time.perf_counter() - begun
