"""`--sink jdbc-staging`: two tables of a PostgreSQL, behind a proxy that cuts connections by chance.

`rows` is inserted by the driver, `more` by the coordinator. Tables are read back past the proxy by psycopg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any, ClassVar

from tests.killmatrix.cuts import Cuts
from tests.killmatrix.rows import COLUMNS, EPOCH, Rows
from tests.servers import postgresql, toxiproxy

DATABASE = "killmatrix"
SECRET = "KILL_JDBC_URL"


class JdbcBench(Cuts):
    """What the benches of both modes share."""

    mode: ClassVar[str]

    def prepare(self) -> None:
        (self.folder / "toxiproxy").mkdir(parents=True)
        self._server = self.stack.enter_context(postgresql.serve())
        self._server.make_database(DATABASE)
        toxics = self.stack.enter_context(toxiproxy.serve(self.folder / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self._server.address))
        self._seen: dict[str, Rows] = {}

    def environment(self) -> Mapping[str, str]:
        return {SECRET: self._server.url(DATABASE, self.proxy.listen)}

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
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        with closing(self._server.connect(DATABASE)) as connection:
            if connection.execute("SELECT to_regclass(%s)", [f"public.{sink}"]).fetchall() == [(None,)]:
                return Counter()
            found: Rows = Counter(map(_row, connection.execute(f"SELECT {names} FROM {sink}".encode()).fetchall()))
        gone = self._seen.get(sink, Counter()) - found
        assert not gone, f"{gone.total()} rows that were visible are gone, such as {next(iter(gone))}"
        self._seen[sink] = found
        return found

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        questions = (
            "SELECT tablename FROM pg_tables WHERE left(tablename, 4) = '_sj_'",
            "SELECT 'prepared ' || gid FROM pg_prepared_xacts",
            "SELECT 'writer ' || name FROM _sinkjob_writers",
            "SELECT 'advisory lock of ' || pid FROM pg_locks WHERE locktype = 'advisory'",
        )
        with closing(self._server.connect(DATABASE)) as connection:
            for question in questions:
                yield from (str(row[0]) for row in connection.execute(question.encode()).fetchall())


class StagingBench(JdbcBench):
    """`mode: staging`."""

    mode = "staging"


def _row(values: tuple[Any, ...]) -> Any:
    at = values[6]
    micros = None if at is None else (at - EPOCH) // timedelta(microseconds=1)
    return (*values[:6], micros, *values[7:])


BENCH = StagingBench
