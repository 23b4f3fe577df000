"""PostgreSQL by psycopg: sessions, catalogs, and what its errors mean.

Nothing of this process's surroundings is used to get in (no PGPASSWORD, no password file, no Kerberos): user and
password are the job's own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from sinkruntime.sinks.jdbc.dialects import POSTGRESQL
from sinkruntime.sinks.jdbc.types import postgresql_accepts, postgresql_type

if TYPE_CHECKING:
    import psycopg

#: SQLSTATE classes and codes that another try may not meet again.
_PASSING = {
    "40001": "SerializationFailure",
    "40P01": "Deadlock",
    "55P03": "LockTimeout",
    "55006": "ObjectInUse",
    "57014": "StatementCancelled",
    "57P01": "ServerStopping",
    "57P02": "ServerStopping",
    "57P03": "ServerStarting",
    "25P03": "IdleTimeout",
}
_PASSING_CLASSES = {"08": "ConnectionLost", "53": "ServerOutOfResources", "58": "ServerFault"}
_FINAL = {
    "28P01": "PermissionDenied",
    "28000": "PermissionDenied",
    "42501": "PermissionDenied",
    "3D000": "DatabaseMissing",
    "42P01": "TableMissing",
    "42703": "SchemaMismatch",
    "42704": "ObjectMissing",
}
_FINAL_CLASSES = {"22": "RowsRefused", "23": "RowsRefused"}
#: A committer that waits longer than this inside its own transaction is dead; its locks must not outlive it.
IDLE_SECONDS_MAX = 300
#: What is decided must outlive a crash of the server: a database or user that does not wait for that is overruled.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


class PostgreSQLSession(Session):
    """A psycopg connection that commits each statement."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    def change(self, sql: str, *values: Any) -> int:
        return self._execute(sql, values).rowcount

    def close(self) -> None:
        with suppress(Exception):  # it is gone, or goes with the process
            self.connection.close()

    def _execute(self, sql: str, values: tuple[Any, ...]) -> psycopg.Cursor[Any]:
        import psycopg

        # Without values nothing is a parameter, and users' own statements may hold `%` and `?`.
        text: Any = sql.replace("%", "%%").replace("?", "%s") if values else sql
        try:
            return self.connection.execute(text, values or None)
        except psycopg.Error as error:
            raise translated(error) from error


class PostgreSQL(Database):
    """PostgreSQL 12 or later."""

    dialect = POSTGRESQL

    def connect(self) -> PostgreSQLSession:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise missing_module("psycopg") from error
        address = self.address
        settings = {
            "lock_timeout": f"{int(self.lock_timeout_seconds * 1000)}",
            "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS * 1000}",
            "client_encoding": "UTF8",
            "timezone": "UTC",
            "datestyle": "ISO",
        }
        try:
            connection = psycopg.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,  # also "": then PGPASSWORD is not looked at
                dbname=address.database,
                passfile=os.devnull,
                gssencmode="disable",
                application_name="sinkjob",
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                keepalives_idle=30,
                tcp_user_timeout=60_000,
                options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
                autocommit=True,
                prepare_threshold=None,
                **dict(address.parameters),  # type: ignore[arg-type]
            )
        except psycopg.OperationalError as error:
            raise _not_connected(error, address) from None  # its text may repeat what it was given
        session = PostgreSQLSession(connection)
        try:
            session.run(_DURABLE)
        except AnswerLost as error:
            session.close()
            raise Passing("NotReached", error.message) from error
        except BaseException:
            session.close()
            raise
        return session

    def columns(self, session: Session, schema: str, table: str) -> list[Column] | None:
        rows = session.run(
            "SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, "
            "NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', "
            "CASE WHEN a.attgenerated <> '' THEN 'always' WHEN a.attidentity = 'a' THEN 'identity' ELSE '' END "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            self.dialect.qualified(schema, table),
        )
        return [Column(*row) for row in rows] or None

    def tables(self, session: Session, schema: str, prefix: str) -> list[str]:
        rows = session.run(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = coalesce(?, current_schema()) AND c.relkind = 'r' AND starts_with(c.relname, ?)",
            schema or None,
            prefix,
        )
        return [row[0] for row in rows]

    def identity(self, session: Session, schema: str, table: str) -> str:
        """By the table's number, which a table that is made anew does not get again."""
        ((number, database),) = session.run(
            "SELECT to_regclass(?)::oid::bigint, (SELECT oid::bigint FROM pg_database WHERE datname = "
            "current_database())",
            self.dialect.qualified(schema, table),
        )
        return "" if number is None else f"{database}/{number}"

    def unique_keys(self, session: Session, schema: str, table: str) -> list[frozenset[str]]:
        rows = session.run(
            "SELECT i.indexrelid, a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) WHERE i.indrelid = to_regclass(?) AND "
            "i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL",
            self.dialect.qualified(schema, table),
        )
        found: dict[int, set[str]] = {}
        for index, name in rows:
            found.setdefault(index, set()).add(name)
        return [frozenset(names) for names in found.values()]

    def checks(self, session: Session, schema: str, table: str) -> list[Rule]:
        rows = session.run(
            "SELECT c.conname, pg_get_expr(c.conbin, c.conrelid), array(SELECT a.attname::text FROM pg_attribute a "
            "WHERE a.attrelid = c.conrelid AND a.attnum = ANY(c.conkey)) FROM pg_constraint c "
            "WHERE c.contype = 'c' AND c.conrelid = to_regclass(?)",
            self.dialect.qualified(schema, table),
        )
        return [Rule(f"check {name}", condition, frozenset(columns)) for name, condition, columns in rows]

    def late_rules(self, session: Session, schema: str, table: str, *, deletes: bool) -> list[Rule]:
        target = self.dialect.qualified(schema, table)
        unique = session.run(
            "SELECT c.relname, CASE WHEN i.indpred IS NULL AND i.indexprs IS NULL AND i.indisunique THEN "
            "array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = "
            "ANY(i.indkey)) END FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE i.indrelid = to_regclass(?) AND (i.indisunique OR i.indisexclusion)",
            target,
        )
        foreign = session.run(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND (conrelid = to_regclass(?) OR "
            "(? AND confrelid = to_regclass(?)))",
            target,
            deletes,
            target,
        )
        return [
            *(Rule(f"unique index {name}", "", frozenset(columns or ()), True) for name, columns in unique),
            *(Rule(f"foreign key {name}") for (name,) in foreign),
        ]

    def column_type(self, kind: pa.DataType, *, key: bool) -> str | None:
        return postgresql_type(kind)

    def accepts(self, kind: pa.DataType, column: Column) -> bool:
        return postgresql_accepts(kind, column.kind)


def translated(error: psycopg.Error) -> Passing | TargetError:
    """One of ours for one of psycopg's."""
    import psycopg

    state = error.sqlstate
    message = " ".join(str(error).split())
    if state is None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return AnswerLost(message)
        return TargetError("RowsRefused", message, path="options.table")
    if state in ("57P01", "57P02", "08006", "08003"):  # the server ends the connection: was it before or after?
        return AnswerLost(message)
    passing = _PASSING.get(state) or _PASSING_CLASSES.get(state[:2])
    if passing:
        return Passing(passing, message)
    reason = _FINAL.get(state) or _FINAL_CLASSES.get(state[:2]) or "StatementRefused"
    return TargetError(reason, message, path="options.table")


def _not_connected(error: psycopg.OperationalError, address: Any) -> Exception:
    """psycopg gives no SQLSTATE of a connection that was turned down; the server's words are in the text."""
    text = " ".join(str(error).split())
    if address.password:
        text = text.replace(address.password, "***")
    refused = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "role ")
    if any(words in text for words in refused) or "does not exist" in text:
        return TargetError("ConnectionRefused", text, path="options.url", advice="check url, user and password")
    return Passing("NotReached", text)
