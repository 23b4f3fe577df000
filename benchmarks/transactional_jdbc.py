"""Our `jdbc` sink into PostgreSQL against `\\copy` by one client per core, Spark's own JDBC writer, and dlt by ADBC.

The suite `transactional` runs it. All write the same 2 M rows × 6 columns into an empty table of the same server, which
flushes its log to disk; the table is counted after each. `\\copy` reads CSV files that are made before, all others the
Parquet files. Spark's writer, at its best settings, and dlt are not exactly once. dlt is measured twice: with the rows
as Arrow tables, and with files that it hands to ADBC as they are (`dlt-files`, told in the progress only).
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import rivals
from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from tests.servers import postgresql
from tests.servers.postgresql import PostgreSQLServer

ROWS = 2_000_000
CLIENTS = 2  # as Spark has cores here
DATABASE = "bench"
TABLE = "id bigint, at timestamp with time zone, category text, account text, quantity integer, amount double precision"
SERIES = ("copy", "xa", "spark", "staging", "dlt", "dlt-files")
DLT_SCHEMA = "by_dlt"


def start_server(stack: ExitStack) -> PostgreSQLServer:
    """PostgreSQL with an empty database `DATABASE`, which keeps what it has said to be committed."""
    settings = {"fsync": "on", "max_wal_size": "4GB", "shared_buffers": "512MB"}
    server = stack.enter_context(postgresql.serve(settings=settings))
    server.make_database(DATABASE)
    return server


def sink_of(bench: Bench, server: PostgreSQLServer, name: str, options: Mapping[str, object]) -> tuple[Path, object]:
    """The folder of a run, and its sink, writing the table `t`."""
    folder = bench.new_folder(f"jdbc-{name}")
    (folder / "target.env").write_text(f"url={server.url(DATABASE)}\n")
    given = [{"fileRef": {"path": "target.env"}}]
    return folder, {"name": "out", "type": "jdbc", "options": {"table": "t", **options}, "optionsFrom": given}


class JdbcInsert:
    """`mode: xa` and `mode: staging`, in one batch job each."""

    name = "jdbc"
    warm_up = True
    figures: Sequence[Figure] = (
        Figure("jdbc-xa-of-copy", 1 / 0.6, "xa", "copy"),
        Figure("jdbc-xa-of-spark", 1 / 1.5, "xa", "spark"),
        Figure("jdbc-xa-of-dlt", 1 / 1.4, "xa", "dlt"),
        Figure("jdbc-staging-of-copy", 1 / 0.35, "staging", "copy"),
        Figure("jdbc-staging-of-dlt", 1, "staging", "dlt"),
    )

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._server = start_server(stack)
        self._rows = max(1, int(ROWS * scale))
        pipelines = folder / "dlt"
        pipelines.mkdir()
        self._rivals = stack.enter_context(rivals.loaders(pipelines, self._server.url(DATABASE), CLIENTS))

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {"spark.jars": str(rivals.locate_jdbc_driver())}

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
        return {name: self._once(name) for name in in_turn(index, SERIES)}

    def _once(self, name: str) -> float:
        table = f"{DLT_SCHEMA}.t" if name.startswith("dlt") else "t"
        with closing(self._server.connect(DATABASE)) as connection:
            connection.execute("DROP TABLE IF EXISTS t")
            connection.execute(f"DROP SCHEMA IF EXISTS {DLT_SCHEMA} CASCADE".encode())
            connection.execute(f"CREATE TABLE t ({TABLE})".encode())
            connection.execute("CHECKPOINT")
            taken = self._write(name)
            found = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        if found != (self._rows,):
            raise RuntimeError(f"{name}: the table has {found} rows, and {self._rows} were written")
        return taken

    def _write(self, name: str) -> float:
        if name == "copy":
            return self._copy()
        if name == "spark":
            return self._spark()
        if name.startswith("dlt"):
            return self._rivals.dlt(self._source, DLT_SCHEMA, whole=name == "dlt-files")
        return self._ours(name)

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
        folder, sink = sink_of(self._bench, self._server, mode, {"mode": mode})
        source = {"format": "parquet", "path": str(self._source), "schema": SCHEMA}
        return self._bench.run(folder, {"mode": "Batch", "source": source, "sinks": [sink]})

    def _spark(self) -> float:
        begun = time.perf_counter()
        writer = self._bench.session.read.schema(SCHEMA).parquet(str(self._source)).write.format("jdbc").mode("append")
        options = {
            "url": f"jdbc:postgresql://{self._server.address}/{DATABASE}?reWriteBatchedInserts=true",
            "user": postgresql.USER, "password": postgresql.PASSWORD, "dbtable": "t", "batchsize": "10000",
            "driver": "org.postgresql.Driver",
        }  # fmt: skip
        writer.options(**options).save()
        return time.perf_counter() - begun
