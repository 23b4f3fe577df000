"""MySQL and MariaDB by pymysql: sessions, catalogs, loading, and what their errors mean.

No option file of this machine is read: user and password are the job's own. CREATE and DROP are no part of a
transaction here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.database import (
    CONNECT_TIMEOUT_SECONDS,
    STATEMENT_TIMEOUT_SECONDS,
    AnswerLost,
    Column,
    Database,
    Passing,
    Rule,
    Session,
    missing_module,
)
from sinkruntime.sinks.jdbc.dialects import MYSQL, Dialect
from sinkruntime.sinks.jdbc.rows_load import InsertLoad
from sinkruntime.sinks.jdbc.types import mysql_accepts, mysql_type

if TYPE_CHECKING:
    import pymysql

_PASSING = {
    1040: "ServerOutOfResources",
    1203: "ServerOutOfResources",
    1053: "ServerStopping",
    1205: "LockTimeout",
    1213: "Deadlock",
    1317: "StatementCancelled",
    1613: "LockTimeout",
    1614: "Deadlock",
    1969: "StatementCancelled",
    3024: "StatementCancelled",
    2003: "NotReached",
    2002: "NotReached",
}
_FINAL = {
    1044: "PermissionDenied",
    1045: "PermissionDenied",
    1142: "PermissionDenied",
    1227: "PermissionDenied",
    1698: "PermissionDenied",
    1049: "DatabaseMissing",
    1146: "TableMissing",
    1054: "SchemaMismatch",
    1397: "ObjectMissing",
}
_ROWS = frozenset({1048, 1062, 1216, 1217, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1690, 3140, 3819, 4025})
_LOST = frozenset({0, 2006, 2013, 2014, 2055, 4031})
_MODES = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_MARK = re.compile(r"\[sinkjob:([0-9a-f-]{36})\]")
_QUOTED = re.compile("`((?:[^`]|``)+)`")
_HERE = "table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?"


class MySQLSession(Session):
    """A pymysql connection that commits each statement."""

    def __init__(self, connection: pymysql.connections.Connection[Any]) -> None:
        self.connection = connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._execute(sql, values) as cursor:
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, sql: str, *values: Any) -> int:
        with self._execute(sql, values) as cursor:
            return int(cursor.rowcount)

    def many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run an INSERT for all rows: pymysql makes statements of many rows of it."""
        import pymysql

        try:
            with self.connection.cursor() as cursor:
                cursor.executemany(sql, rows)
        except (pymysql.MySQLError, OSError) as error:
            raise translated(error) from error

    def close(self) -> None:
        with suppress(Exception):  # it is gone, or goes with the process
            self.connection.close()

    def _execute(self, sql: str, values: tuple[Any, ...]) -> Any:
        import pymysql

        cursor = self.connection.cursor()
        # Without values nothing is a parameter, and users' own statements may hold `%` and `?`.
        text = sql.replace("%", "%%").replace("?", "%s") if values else sql
        try:
            cursor.execute(text, values or None)
        except (pymysql.MySQLError, OSError) as error:
            raise translated(error) from error
        return cursor


class MySQL(Database):
    """MariaDB 10.3 or later, MySQL 8.0.29 or later."""

    dialect: ClassVar[Dialect] = MYSQL
    ddl_is_transactional: ClassVar[bool] = False
    loads_in: ClassVar[Literal["whole", "rows", "batches"]] = "rows"

    def connect(self) -> MySQLSession:
        try:
            import pymysql
        except ModuleNotFoundError as error:
            raise missing_module("pymysql") from error
        address, wait = self.address, max(1, round(self.lock_timeout_seconds))
        parameters = dict(address.parameters)
        try:
            connection = pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                read_timeout=STATEMENT_TIMEOUT_SECONDS,
                write_timeout=STATEMENT_TIMEOUT_SECONDS,
                ssl={"ca": parameters["ssl_ca"]} if "ssl_ca" in parameters else None,
                init_command=f"SET SESSION sql_mode='{_MODES}', time_zone='+00:00', lock_wait_timeout={wait}, "
                f"innodb_lock_wait_timeout={wait}, default_storage_engine=InnoDB",
            )
        except (pymysql.MySQLError, OSError) as error:
            found = translated(error)
            lost = isinstance(found, AnswerLost)
            raise (Passing("NotReached", found.message) if lost else found) from None
        return MySQLSession(connection)

    def columns(self, session: Session, schema: str, table: str) -> list[Column] | None:
        rows = session.run(
            "SELECT column_name, data_type, column_type, is_nullable, column_default IS NOT NULL OR extra <> '', "
            "COALESCE(generation_expression, '') <> '', character_set_name, collation_name "
            f"FROM information_schema.columns WHERE {_HERE} "
            "ORDER BY ordinal_position",
            schema,
            table,
        )
        found = []
        for name, kind, declared, nullable, valued, made, charset, collation in rows:
            text = f"{declared} CHARACTER SET {charset} COLLATE {collation}" if charset else declared
            optional = nullable == "YES" or bool(valued)
            found.append(Column(name, kind.lower(), text, nullable == "YES", optional, "always" if made else ""))
        return found or None

    def tables(self, session: Session, schema: str, prefix: str) -> list[str]:
        rows = session.run(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = COALESCE(NULLIF(?, ''), "
            f"DATABASE()) AND LEFT(table_name, {len(prefix)}) = ?",
            schema,
            prefix,
        )
        return [row[0] for row in rows]

    def identity(self, session: Session, schema: str, table: str) -> str:
        found = _MARK.search(self._comment(session, schema, table) or "")
        return found[1] if found else ""

    def name_target(self, session: Session, schema: str, table: str, unique: str) -> None:
        """By the table's comment, which goes with the table."""
        comment = self._comment(session, schema, table) or ""
        if not _MARK.search(comment):
            text = f"{comment} [sinkjob:{unique}]".strip()
            session.run(f"ALTER TABLE {self.dialect.qualified(schema, table)} COMMENT = ?", text)

    def _comment(self, session: Session, schema: str, table: str) -> str | None:
        rows = session.run(f"SELECT table_comment FROM information_schema.tables WHERE {_HERE}", schema, table)
        return str(rows[0][0]) if rows else None

    def check_transactional(self, session: Session, schema: str, tables: Sequence[str]) -> None:
        """What MyISAM, Aria and their like are given is there at once, and stays when a transaction is rolled back."""
        rows = session.run(
            "SELECT t.table_name, t.engine FROM information_schema.tables t JOIN information_schema.engines e "
            "ON e.engine = t.engine WHERE t.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) "
            f"AND t.table_name IN ({', '.join('?' * len(tables))}) AND NOT (e.transactions = 'YES' AND e.xa = 'YES')",
            schema,
            *tables,
        )
        if rows:
            ((table, engine), *_) = rows
            message = f"the table {table} has the engine {engine}, which knows no transactions: rows would stay"
            advice = f"ALTER TABLE {table} ENGINE=InnoDB"
            raise TargetError("NotTransactional", message, path="options.table", advice=advice)

    def unique_keys(self, session: Session, schema: str, table: str) -> list[frozenset[str]]:
        rows = session.run(
            "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
            f"WHERE {_HERE} AND non_unique = 0",
            schema,
            table,
        )
        found: dict[str, set[str]] = {}
        for index, name, part in rows:
            found.setdefault(index, set()).add(name if part is None else f"{name}({part})")
        return [frozenset(names) for names in found.values()]

    def checks(self, session: Session, schema: str, table: str) -> list[Rule]:
        if "MariaDB" in session.run("SELECT version()")[0][0]:
            mine = "constraint_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?"
            sql = f"SELECT constraint_name, check_clause FROM information_schema.check_constraints WHERE {mine}"
        else:  # MySQL writes conditions in a form that it does not read again
            sql = (
                "SELECT constraint_name, '' FROM information_schema.table_constraints "
                f"WHERE constraint_type = 'CHECK' AND {_HERE}"
            )
        rows = session.run(sql, schema, table)
        return [Rule(f"check {name}", text, frozenset(_QUOTED.findall(text))) for name, text in rows]

    def late_rules(self, session: Session, schema: str, table: str, *, deletes: bool) -> list[Rule]:
        foreign = session.run(
            "SELECT DISTINCT constraint_name FROM information_schema.key_column_usage WHERE referenced_table_name IS "
            "NOT NULL AND (table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? OR ? AND "
            "referenced_table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND referenced_table_name = ?)",
            schema, table, deletes, schema, table,
        )  # fmt: skip
        unique = self.unique_keys(session, schema, table)
        return [
            *(Rule(f"the unique index of {', '.join(sorted(columns))}", "", columns, True) for columns in unique),
            *(Rule(f"foreign key {name}") for (name,) in foreign),
        ]

    def column_type(self, kind: pa.DataType, *, key: bool) -> str | None:
        return mysql_type(kind, key)

    def accepts(self, kind: pa.DataType, column: Column) -> bool:
        return mysql_accepts(kind, column.kind)


class MySQLLoad(InsertLoad):
    """INSERT with as many rows as one statement holds."""

    def __init__(self, session: MySQLSession, sql: str, columns: Sequence[Column]) -> None:
        super().__init__(sql, columns)
        self._session = session

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._session.many(sql, rows)

    def converter(self, kind: pa.DataType) -> Callable[[Any], Any] | None:
        return _naive if pa.types.is_timestamp(kind) and kind.tz else None


def begin_insert(session: Session, table: str, columns: Sequence[Column]) -> MySQLLoad:
    """Begin to insert into a quoted table."""
    assert isinstance(session, MySQLSession)
    names = ", ".join(MYSQL.quote(column.name).replace("%", "%%") for column in columns)
    marks = ", ".join("%s" for _ in columns)
    return MySQLLoad(session, f"INSERT INTO {table.replace('%', '%%')} ({names}) VALUES ({marks})", columns)


def _naive(moment: datetime.datetime) -> datetime.datetime:
    """DATETIME knows no time zone: UTC."""
    return moment.astimezone(datetime.UTC).replace(tzinfo=None)


def translated(error: Exception) -> Passing | TargetError:
    """One of ours for one of pymysql's."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = " ".join(str(part) for part in error.args)
    if code in _PASSING:
        return Passing(_PASSING[code], message)
    if code in _LOST and not _is_about_values(error):
        return AnswerLost(message or type(error).__name__)
    reason = _FINAL.get(code) or ("RowsRefused" if code in _ROWS or _is_about_values(error) else "StatementRefused")
    return TargetError(reason, message, path="options.table")


def _is_about_values(error: Exception) -> bool:
    """pymysql itself turns values down, with an error that has no code."""
    import pymysql

    return isinstance(error, pymysql.err.ProgrammingError | pymysql.err.DataError) and not (
        error.args and isinstance(error.args[0], int)
    )
