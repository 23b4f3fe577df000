"""COPY into PostgreSQL: binary from Arrow, or CSV where a column's type has no binary form here.

Used by the loaders. Memory: one encoded slice of a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from sinkruntime.sinks.jdbc.copy_binary import HEADER, TRAILER, encode
from sinkruntime.sinks.jdbc.database import Column, Session
from sinkruntime.sinks.jdbc.dialects import POSTGRESQL
from sinkruntime.sinks.jdbc.postgresql import PostgreSQLSession, translated
from sinkruntime.sinks.jdbc.stage import Load

if TYPE_CHECKING:
    import psycopg


class _Cancelled(Exception):
    """Tells the server to give a COPY up."""


class CopyLoad(Load):
    """One COPY … FROM STDIN that stays open from the first batch to `finish`."""

    def __init__(self, session: PostgreSQLSession, table: str, columns: Sequence[Column], more: str = "") -> None:
        self._columns = columns
        names = ", ".join(POSTGRESQL.quote(column.name) for column in columns)
        self._cursor = session.connection.cursor()
        self._context = self._cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT binary{more})".encode())
        with _translating():
            self._copy: psycopg.Copy = self._context.__enter__()
        self._send(HEADER)

    def write(self, batch: pa.RecordBatch) -> None:
        for part in encode(batch, self._columns):
            self._send(part)

    def finish(self) -> None:
        self._send(TRAILER)
        with _translating():
            self._context.__exit__(None, None, None)

    def cancel(self) -> None:
        with _translating():
            self._context.__exit__(_Cancelled, _Cancelled(), None)

    def _send(self, data: bytes | memoryview) -> None:
        with _translating():
            self._copy.write(data)


@contextmanager
def _translating() -> Iterator[None]:
    """psycopg's errors become ours."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from error


def begin_copy(session: Session, table: str, columns: Sequence[Column]) -> Load:
    """Begin a COPY into a quoted table."""
    assert isinstance(session, PostgreSQLSession)
    return CopyLoad(session, table, columns)


def begin_frozen_copy(session: Session, table: str, columns: Sequence[Column]) -> Load:
    """The same for a table that this transaction has made: its rows are written as old ones, so that whoever reads them
    once, to move them, does not have to mark all pages first. Nobody sees the table before the transaction ends."""
    assert isinstance(session, PostgreSQLSession)
    return CopyLoad(session, table, columns, ", FREEZE")
