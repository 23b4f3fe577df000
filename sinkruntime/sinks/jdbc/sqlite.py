"""SQLite by the standard library: sessions, catalogs, loading, and what its errors mean.

One process at a time writes: writers take the lock for one batch, the committer for one checkpoint.
"""

from __future__ import annotations

import datetime
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.database import AnswerLost, Column, Database, Passing, Rule, Session
from sinkruntime.sinks.jdbc.dialects import SQLITE, Dialect
from sinkruntime.sinks.jdbc.rows_load import InsertLoad
from sinkruntime.sinks.jdbc.types import sqlite_accepts, sqlite_type

_MARK = "_sinkjob_"
_CHECK = re.compile(r"\bCHECK\s*\(", re.IGNORECASE)


class SQLiteSession(Session):
    """A connection that commits each statement."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()

    def change(self, sql: str, *values: Any) -> int:
        return self._execute(sql, values).rowcount

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run an INSERT for all rows."""
        try:
            self.connection.executemany(sql, rows)
        except (sqlite3.Error, OverflowError) as error:
            raise translated(error) from error

    def close(self) -> None:
        self.connection.close()

    def _execute(self, sql: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        try:
            return self.connection.execute(sql, values)
        except sqlite3.Error as error:
            raise translated(error) from error


class SQLite(Database):
    """SQLite 3.35 or later."""

    dialect: ClassVar[Dialect] = SQLITE
    loads_in: ClassVar[Literal["whole", "rows", "batches"]] = "batches"

    def connect(self) -> SQLiteSession:
        try:
            connection = sqlite3.connect(
                self.address.path,
                timeout=self.lock_timeout_seconds,
                isolation_level=None,
                check_same_thread=False,  # one thread at a time, by the pool
            )
        except sqlite3.Error as error:
            message = f"{self.address.path}: {error}"
            raise TargetError("NotReached", message, path="options.url") from error
        return SQLiteSession(connection)

    def columns(self, session: Session, schema: str, table: str) -> list[Column] | None:
        rows = session.run('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', table)
        found = []
        for name, declared, required, value, key in rows:
            own = bool(key) and declared.upper() == "INTEGER"  # the row's number: it has a value of its own
            found.append(Column(name, declared, declared, not required, not required or value is not None or own))
        return found or None

    def tables(self, session: Session, schema: str, prefix: str) -> list[str]:
        sql = f"SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, {len(prefix)}) = ?"
        return [row[0] for row in session.run(sql, prefix)]

    def identity(self, session: Session, schema: str, table: str) -> str:
        mine = f"type = 'index' AND tbl_name = ? COLLATE NOCASE AND substr(name, 1, {len(_MARK)}) = ?"
        rows = session.run(f"SELECT name FROM sqlite_master WHERE {mine}", table, _MARK)
        return rows[0][0].removeprefix(_MARK) if rows else ""

    def name_target(self, session: Session, schema: str, table: str, unique: str) -> None:
        """By the name of an index that holds no row and goes with the table."""
        if not self.identity(session, schema, table):
            columns = self.columns(session, schema, table) or []
            place = f"{self.dialect.quote(table)} ({self.dialect.quote(columns[0].name)})"
            session.run(f"CREATE INDEX {self.dialect.quote(_MARK + unique)} ON {place} WHERE 0")

    def unique_keys(self, session: Session, schema: str, table: str) -> list[frozenset[str]]:
        found = [frozenset(row[0] for row in session.run("SELECT name FROM pragma_table_info(?) WHERE pk > 0", table))]
        indexes = session.run('SELECT name FROM pragma_index_list(?) WHERE "unique" = 1 AND partial = 0', table)
        for (index,) in indexes:
            found.append(frozenset(row[0] for row in session.run("SELECT name FROM pragma_index_info(?)", index)))
        return found

    def checks(self, session: Session, schema: str, table: str) -> list[Rule]:
        """SQLite lists none; they stand in the table's SQL."""
        sql = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
        ((text,),) = session.run(sql, table)
        return [Rule("a CHECK")] if _CHECK.search(text) else []

    def late_rules(self, session: Session, schema: str, table: str, *, deletes: bool) -> list[Rule]:
        """SQLite heeds no foreign key unless it is told to."""
        rules = []
        if any(row[0] for row in session.run("SELECT pk FROM pragma_table_info(?) WHERE pk > 0", table)):
            rules.append(Rule("the primary key", "", self.unique_keys(session, schema, table)[0], True))
        indexes = session.run('SELECT name, partial, origin FROM pragma_index_list(?) WHERE "unique" = 1', table)
        for name, partial, origin in indexes:
            parts = [row[0] for row in session.run("SELECT name FROM pragma_index_info(?)", name)]
            plain = not partial and all(parts)
            if origin != "pk":
                rules.append(Rule(f"unique index {name}", "", frozenset(parts) if plain else frozenset(), True))
        return rules

    def column_type(self, kind: pa.DataType, *, key: bool) -> str | None:
        return sqlite_type(kind)

    def accepts(self, kind: pa.DataType, column: Column) -> bool:
        return sqlite_accepts(kind, column.declared)


class SQLiteLoad(InsertLoad):
    """INSERT row by row, inside the library."""

    def __init__(self, session: SQLiteSession, sql: str, columns: Sequence[Column]) -> None:
        super().__init__(sql, columns)
        self._session = session

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._session.many(sql, rows)

    def converter(self, kind: pa.DataType) -> Callable[[Any], Any] | None:
        if pa.types.is_decimal(kind):
            return lambda value: format(value, "f")
        if pa.types.is_timestamp(kind):
            return _moment
        return datetime.date.isoformat if pa.types.is_date(kind) else None


def begin_insert(session: Session, table: str, columns: Sequence[Column]) -> SQLiteLoad:
    """Begin to insert into a quoted table."""
    assert isinstance(session, SQLiteSession)
    names = ", ".join(SQLITE.quote(column.name) for column in columns)
    return SQLiteLoad(session, f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' for _ in columns)})", columns)


def _moment(value: datetime.datetime) -> str:
    """As SQLite's own functions read it; UTC where there is a zone."""
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return value.isoformat(" ", "microseconds")


def translated(error: Exception) -> Passing | TargetError:
    """One of ours for one of sqlite3's."""
    message = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Passing("LockTimeout", message)
    if code == sqlite3.SQLITE_IOERR:
        return AnswerLost(message)
    if code == sqlite3.SQLITE_FULL:
        return TargetError("DiskFull", message, path="options.url")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return TargetError("NotReached", message, path="options.url")
    if message.startswith("no such table"):
        return TargetError("TableMissing", message, path="options.table")
    about_rows = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError)
    return TargetError("RowsRefused" if about_rows else "StatementRefused", message, path="options.table")
