"""What the errors of databases' clients mean: it may pass, it may have happened, or it is turned down for good."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc import mysql, postgresql, sqlite
from sinkruntime.sinks.jdbc.database import AnswerLost, Passing


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (psycopg.errors.SerializationFailure("x"), "SerializationFailure"),
        (psycopg.errors.DeadlockDetected("x"), "Deadlock"),
        (psycopg.errors.LockNotAvailable("x"), "LockTimeout"),
        (psycopg.errors.TooManyConnections("x"), "ServerOutOfResources"),
        (psycopg.errors.CannotConnectNow("x"), "ServerStarting"),
    ],
)
def test_postgresql_may_work_later(error: psycopg.Error, reason: str) -> None:
    found = postgresql.translated(error)
    assert isinstance(found, Passing)
    assert (found.reason, isinstance(found, AnswerLost)) == (reason, False)


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), psycopg.errors.AdminShutdown("x")])
def test_postgresql_may_have_done_it(error: psycopg.Error) -> None:
    assert isinstance(postgresql.translated(error), AnswerLost)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UniqueViolation("x"),
        psycopg.errors.ForeignKeyViolation("x"),
        psycopg.errors.CheckViolation("x"),
        psycopg.errors.ExclusionViolation("x"),
        psycopg.errors.NotNullViolation("x"),
        psycopg.errors.NumericValueOutOfRange("x"),
        psycopg.errors.StringDataRightTruncation("x"),
        pymysql.err.IntegrityError(1062, "Duplicate entry"),
        pymysql.err.IntegrityError(1452, "foreign key"),
        pymysql.err.OperationalError(4025, "CHECK"),
        pymysql.err.DataError(1406, "too long"),
        sqlite3.IntegrityError("NOT NULL constraint failed"),
        OverflowError("too large"),
    ],
    ids=lambda error: f"{type(error).__module__.split('.')[0]}-{type(error).__name__}",
)
def test_rows_that_are_refused_are_told_from_all_else(error: Exception) -> None:
    if isinstance(error, psycopg.Error):
        found: Exception = postgresql.translated(error)
    else:
        found = (mysql if isinstance(error, pymysql.MySQLError) else sqlite).translated(error)
    assert isinstance(found, TargetError)
    assert found.reason == "RowsRefused"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1213, "Deadlock"), (1205, "LockTimeout"), (2003, "NotReached"), (1040, "ServerOutOfResources")],
)
def test_mysql_may_work_later(code: int, reason: str) -> None:
    found = mysql.translated(pymysql.err.OperationalError(code, "x"))
    assert isinstance(found, Passing)
    assert (found.reason, isinstance(found, AnswerLost)) == (reason, False)


@pytest.mark.parametrize("code", [2006, 2013])
def test_mysql_may_have_done_it(code: int) -> None:
    assert isinstance(mysql.translated(pymysql.err.OperationalError(code, "x")), AnswerLost)
