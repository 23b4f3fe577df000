"""`--sink jdbc-staging`: two tables of a PostgreSQL that is killed now and then, behind what cuts its connections.

`rows` is inserted by the driver, `more` by the coordinator. Connections are cut by chance, and answers to the
statements that decide something are lost on purpose. Tables are read back past all that by psycopg.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import duckdb

from tests.killmatrix.cuts import Outages
from tests.killmatrix.rows import COLUMNS, DDL, EPOCH, Rows
from tests.servers import postgresql, toxiproxy
from tests.servers.lost_answers import LostAnswers

DATABASE = "killmatrix"
SECRET = "KILL_JDBC_URL"
END = "\0"  # of a statement's text on its way
#: A server's own processes end after the client's that they served.
SETTLED_SECONDS_MAX = 10.0

NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
NULL = "<null>"
KINDS = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
TYPES = {name: KINDS.get(kind, kind) for name, kind in (column.split() for column in DDL.split(", "))}

#: What may be left: staging tables, prepared transactions, proofs of writers, sessions, and whatever holds a lock.
HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
LEFT = (
    "SELECT tablename FROM pg_tables WHERE left(tablename, 4) = '_sj_'",
    "SELECT 'prepared ' || gid FROM pg_prepared_xacts WHERE database = current_database()",
    "SELECT 'writer ' || name FROM _sinkjob_writers",
    "SELECT 'session ' || pid FROM pg_stat_activity WHERE application_name = 'sinkjob' "
    "AND datname = current_database()",
    "SELECT locktype || ' lock of ' || coalesce(pid::text, virtualtransaction) FROM pg_locks "
    f"WHERE {HERE} AND pid IS DISTINCT FROM pg_backend_pid()",
)


class JdbcBench(Outages):
    """What the benches of both modes share."""

    kills_one_in = 5
    lost_one_in = 12
    server: postgresql.PostgreSQLServer
    mode: ClassVar[str]
    #: Statements whose answers are lost.
    deciding: ClassVar[tuple[str, ...]]

    def prepare(self) -> None:
        (self.folder / "toxiproxy").mkdir(parents=True)
        self.server = self.stack.enter_context(postgresql.serve())
        self.server.make_database(DATABASE)
        self.answers = LostAnswers(("127.0.0.1", self.server.port), self.deciding, self.chance.randrange(2**32))
        self.stack.enter_context(self.answers.serving())
        toxics = self.stack.enter_context(toxiproxy.serve(self.folder / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self.answers.address))
        self._seen: dict[str, Rows] = {}

    def environment(self) -> Mapping[str, str]:
        return {SECRET: self.server.url(DATABASE, self.proxy.listen)}

    def sinks(self) -> list[dict[str, Any]]:
        def sink(name: str, run_on: str) -> dict[str, Any]:
            return {
                "name": name,
                "type": "jdbc",
                "guarantee": "ExactlyOnce",
                "options": {"table": f"public.{name}", "mode": self.mode, "lockTimeout": "5s"},
                "optionsFrom": [{"envRef": {"name": SECRET, "key": "url"}}],
                "commit": {"runOn": run_on},
            }

        return [sink("rows", "Driver"), sink("more", "Operator")]

    def read(self, sink: str) -> Rows:
        found = rows_of(self.server, DATABASE, sink)
        gone = self._seen.get(sink, Counter()) - found
        assert not gone, f"{gone.total()} rows that were visible are gone, such as {next(iter(gone))}"
        self._seen[sink] = found
        return found

    def export(self, sink: str, out: Path) -> None:
        """By COPY, whose texts DuckDB reads: a value that looks like the null is in quotes."""
        lines = out / "rows.csv"
        ask = f"COPY (SELECT {NAMES} FROM {sink}) TO STDOUT (FORMAT csv, NULL '{NULL}')"
        with closing(self.server.connect(DATABASE)) as connection, lines.open("wb") as file:
            connection.execute("SET TimeZone = 'UTC'")
            with connection.cursor() as cursor, cursor.copy(ask.encode()) as rows:
                for part in rows:
                    file.write(part)
        read = f"read_csv(?, header = false, columns = {TYPES}, nullstr = '{NULL}', allow_quoted_nulls = false)"
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"COPY (SELECT * FROM {read}) TO '{out / 'all.parquet'}' (FORMAT parquet)", [str(lines)])
        lines.unlink()

    def leftovers(self, ledger_id: str) -> list[str]:
        return leftovers_of(self.server, DATABASE)


class StagingBench(JdbcBench):
    """`mode: staging`."""

    mode = "staging"
    deciding = (f"COMMIT{END}",)


def rows_of(server: postgresql.PostgreSQLServer, database: str, table: str) -> Rows:
    """The rows of a table; none where it is not there yet."""
    with closing(server.connect(database)) as connection:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchall() == [(None,)]:
            return Counter()
        return Counter(map(_row, connection.execute(f"SELECT {NAMES} FROM {table}".encode()).fetchall()))


def _row(values: tuple[Any, ...]) -> Any:
    at = values[6]
    micros = None if at is None else (at - EPOCH) // timedelta(microseconds=1)
    return (*values[:6], micros, *values[7:])


def leftovers_of(server: postgresql.PostgreSQLServer, database: str) -> list[str]:
    """What the sinks that wrote to a database have left in it, and who holds a lock there."""
    until = time.monotonic() + SETTLED_SECONDS_MAX
    with closing(server.connect(database)) as connection:
        while True:
            found = [str(row[0]) for text in LEFT for row in connection.execute(text.encode()).fetchall()]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)


BENCH = StagingBench
