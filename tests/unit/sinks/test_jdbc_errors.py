"""What the errors of databases' clients mean: it may pass, it may have happened, or it is turned down for good."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc import copy_binary, mysql, postgresql, sqlite
from sinkruntime.sinks.jdbc.database import AnswerLost, Column, Passing


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


_FAR = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
_LATE = pa.array([0, 700_000 * 10**12], pa.int64()).cast(pa.timestamp("us", "UTC"))
_NO_TEXT = pa.array([b"a", b"\xff"]).view(pa.string())


@pytest.mark.parametrize("values", [_FAR, _LATE, _NO_TEXT], ids=["date", "timestamp", "text"])
@pytest.mark.parametrize("nested", [False, True])
def test_values_that_python_has_not_are_rows_refused(values: Any, nested: bool) -> None:
    """Spark has them; with dead letters such a row goes there, and no task fails for it."""
    if nested:
        values = pa.StructArray.from_arrays([values], names=["a"])
    batch = pa.RecordBatch.from_arrays([values], names=["c"])
    with closing(sqlite3.connect(":memory:")) as connection:
        load = sqlite.begin_insert(sqlite.SQLiteSession(connection), "t", [Column("c", "TEXT", "TEXT", True, True)])
        with pytest.raises(TargetError, match=r"column `c` \(TEXT\) cannot hold a value") as refused:
            load.write(batch)
    assert refused.value.reason == "RowsRefused"
    if nested:
        with pytest.raises(TargetError, match=r"column `c` \(jsonb\) cannot hold a value") as refused:
            list(copy_binary.encode(batch, [Column("c", "jsonb", "jsonb", True, True)]))
        assert refused.value.reason == "RowsRefused"
