"""The targets that the tests of the jdbc sink write to: a schema, database or file of its own for each test.

They read with the databases' own clients and share no code with the sink.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb

from sinkruntime.sinks.jdbc import JdbcSink
from sinkruntime.sinks.jdbc.options import Options
from tests.servers.mariadb import MariaDBServer
from tests.servers.postgresql import PostgreSQLServer
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row


class Place(Protocol):
    """A target. `~` in SQL stands for its schema."""

    def options(self, address: str = "") -> dict[str, Any]: ...
    def query(self, sql: str) -> list[tuple[Any, ...]]: ...
    def staged(self) -> set[str]: ...
    def prepared(self) -> set[str]: ...
    def roll_back(self, xid: str) -> None: ...
    def commit_prepared(self, xid: str) -> None: ...


def make(place: Place, ledger_id: str = LEDGER, sink: str = "lake", address: str = "", **options: Any) -> JdbcSink:
    """The sink, writing to the table `t` of a place, or through a proxy at `address`."""
    values = {**place.options(address), **options}
    return JdbcSink(Options.model_validate(values), harness.identity(ledger_id, sink))


def visible(place: Place) -> Counter[Row]:
    """What a reader sees of the harness's rows."""
    return Counter((int(number), name) for number, name in place.query("SELECT id, name FROM ~.t"))


@dataclass(frozen=True, slots=True)
class PostgreSQLPlace:
    """A schema of the database `sinkjob`."""

    server: PostgreSQLServer
    schema: str

    def options(self, address: str = "") -> dict[str, Any]:
        return {"url": self.server.url("sinkjob", address), "table": f"{self.schema}.t"}

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.server.connect("sinkjob")) as connection:
            cursor = connection.execute(sql.replace("~", f'"{self.schema}"').encode())
            return cursor.fetchall() if cursor.description else []

    def staged(self) -> set[str]:
        sql = f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}' AND left(tablename, 4) = '_sj_'"
        return {row[0] for row in self.query(sql)}

    def prepared(self) -> set[str]:
        return {row[0] for row in self.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")}

    def roll_back(self, xid: str) -> None:
        self.query(f"ROLLBACK PREPARED '{xid}'")

    def commit_prepared(self, xid: str) -> None:
        self.query(f"COMMIT PREPARED '{xid}'")


@dataclass(frozen=True, slots=True)
class MariaDBPlace:
    """A database of its own."""

    server: MariaDBServer
    schema: str

    def options(self, address: str = "") -> dict[str, Any]:
        return {"url": self.server.url(self.schema, address), "table": "t"}

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.server.connect(self.schema)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(sql.replace("~", f"`{self.schema}`"))
            return list(cursor.fetchall())

    def staged(self) -> set[str]:
        sql = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.schema}'"
        return {row[0] for row in self.query(sql) if row[0].startswith("_sj_")}

    def prepared(self) -> set[str]:
        found = [(first, bytes(data).decode()) for _, first, _, data in self.query("XA RECOVER")]
        return {f"{text[:first]}_{text[first:]}" for first, text in found}

    def roll_back(self, xid: str) -> None:
        self._xa("ROLLBACK", xid)

    def commit_prepared(self, xid: str) -> None:
        self._xa("COMMIT", xid)

    def _xa(self, verb: str, xid: str) -> None:
        ledger, _, rest = xid.removeprefix("sinkjob_").partition("_")
        self.query(f"XA {verb} 'sinkjob_{ledger}','{rest}'")


@dataclass(frozen=True, slots=True)
class SQLitePlace:
    """A file."""

    path: Path

    def options(self, address: str = "") -> dict[str, Any]:
        return {"url": f"sqlite:///{self.path}", "table": "t"}

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=20)) as connection:
            return connection.execute(sql.replace("~", "main")).fetchall()

    def staged(self) -> set[str]:
        return {row[0] for row in self.query("SELECT name FROM sqlite_master") if row[0].startswith("_sj_")}

    def prepared(self) -> set[str]:
        return set()

    def roll_back(self, xid: str) -> None:
        raise AssertionError("SQLite prepares no transaction")

    def commit_prepared(self, xid: str) -> None:
        raise AssertionError("SQLite prepares no transaction")


@dataclass(frozen=True, slots=True)
class DuckDBPlace:
    """A file, and the folder beside it."""

    path: Path

    def options(self, address: str = "") -> dict[str, Any]:
        return {"url": f"duckdb:///{self.path}", "table": "t"}

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.path)) as connection:
            return connection.execute(sql.replace("~", "main")).fetchall()

    def staged(self) -> set[str]:
        return {path.name for path in Path(f"{self.path}.sinkjob").glob("*")}

    def prepared(self) -> set[str]:
        return set()

    def roll_back(self, xid: str) -> None:
        raise AssertionError("DuckDB prepares no transaction")

    def commit_prepared(self, xid: str) -> None:
        raise AssertionError("DuckDB prepares no transaction")
