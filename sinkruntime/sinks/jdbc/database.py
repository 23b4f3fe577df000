"""What the sink asks of a database: sessions that run SQL, and the SQL in which databases differ.

`postgresql`, `mysql`, `sqlite` and `duckdb` implement it; writers and committers know only this. Foreign errors are
translated here into three: `AnswerLost` (it may have happened), `Passing` (it has not, try again), `TargetError` (it
has not, and trying is of no use). No error holds a password.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import pyarrow as pa

from sinkruntime.errors import ConfigurationError, TargetError, TargetUnavailable
from sinkruntime.sinks.jdbc.address import Address
from sinkruntime.sinks.jdbc.dialects import Dialect

CONNECT_TIMEOUT_SECONDS = 10
#: A statement that is longer at work is given up by the server where it can; a move of many rows needs some minutes.
STATEMENT_TIMEOUT_SECONDS = 1_800
#: Sessions that a committer holds open: as many as a coordinator has chunks at work.
SESSIONS_MAX = 8


#: Of what reads, of what prepares the target, and of a writer's connections.
ATTEMPTS_MAX = 4
PAUSE_SECONDS = 0.2

T = TypeVar("T")


class Passing(ConnectionError):
    """It did not happen, and may if tried again: a deadlock, a lock held too long, a server that is not reached."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class AnswerLost(Passing):
    """The connection went while a statement was under way."""

    def __init__(self, message: str) -> None:
        super().__init__("AnswerLost", message)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in the database: `kind` is the type's bare name, `declared` its whole text."""

    name: str
    kind: str
    declared: str
    nullable: bool = True
    optional: bool = True  # a row may leave it out: it takes null, or has a value of its own
    made: str = ""  # its values are made by the database: "always", or "identity", of which a COPY may bring some


@dataclass(frozen=True, slots=True)
class Rule:
    """What a table demands of its rows beside types and NOT NULL: `condition` in SQL where it looks at one row alone,
    and then `columns` are those it looks at; of a unique index they are its own, if it is one of plain columns."""

    name: str
    condition: str = ""
    columns: frozenset[str] = frozenset()
    is_unique: bool = False


class Session(ABC):
    """One connection. Every statement commits by itself, unless `begin` was called."""

    @abstractmethod
    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; its rows, if it has any. Parameters are written `?`."""

    @abstractmethod
    def change(self, sql: str, *values: Any) -> int:
        """Run a statement; how many rows it changed."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection; what was begun is rolled back. Never raises."""

    def begin(self) -> None:
        """Begin a transaction that will write."""
        self.run("BEGIN")

    def commit(self) -> None:
        """End it. `AnswerLost` here means that it may be committed."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """End it, with nothing changed; a broken connection has done so."""
        with suppress(Passing, TargetError):
            self.run("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All inside, or nothing. `AnswerLost` leaves it only where COMMIT itself got no answer."""
        try:
            self.begin()
            yield
        except AnswerLost as error:
            raise Passing("ConnectionLost", error.message) from error  # COMMIT was not sent
        except BaseException:
            self.rollback()
            raise
        self.commit()


class Database(ABC):
    """One database as the options name it. Cheap to construct; connects by `connect`."""

    dialect: ClassVar[Dialect]
    #: Whether CREATE and DROP are part of a transaction.
    ddl_is_transactional: ClassVar[bool] = True
    #: What a writer does in one transaction: CREATE and all rows; all rows; or each batch, where a transaction keeps
    #: everybody else out.
    loads_in: ClassVar[Literal["whole", "rows", "batches"]] = "whole"
    #: Whether a session may be kept while nobody uses it: an open file of some databases shuts other processes out.
    keeps_sessions: ClassVar[bool] = True
    #: Bare names of the types of whole numbers and conditions, as `columns` would tell them.
    order_kind: ClassVar[str] = "int8"
    boolean_kind: ClassVar[str] = "bool"

    def __init__(self, address: Address, lock_timeout_seconds: float) -> None:
        self.address = address
        self.lock_timeout_seconds = lock_timeout_seconds

    @abstractmethod
    def connect(self) -> Session:
        """Connect; raises `Passing` where it is not reached, `TargetError` where it is not let in."""

    @abstractmethod
    def columns(self, session: Session, schema: str, table: str) -> list[Column] | None:
        """A table's columns in order; None: there is no such table."""

    @abstractmethod
    def tables(self, session: Session, schema: str, prefix: str) -> list[str]:
        """Names of the schema's tables that begin with `prefix`."""

    @abstractmethod
    def identity(self, session: Session, schema: str, table: str) -> str:
        """What tells this table from another one of its name; "": it is not there, or was never named."""

    def name_target(self, session: Session, schema: str, table: str, unique: str) -> None:  # noqa: B027
        """Give a table an identity, where the database has none of its own. Keeps one that is there."""

    def check_transactional(self, session: Session, schema: str, tables: Sequence[str]) -> None:  # noqa: B027
        """Raises `TargetError` where one of these tables does not take part in transactions; by default all do."""

    @abstractmethod
    def unique_keys(self, session: Session, schema: str, table: str) -> list[frozenset[str]]:
        """The sets of columns that are unique by an index or a primary key."""

    @abstractmethod
    def checks(self, session: Session, schema: str, table: str) -> list[Rule]:
        """The table's CHECKs, with their conditions where the database tells them."""

    @abstractmethod
    def late_rules(self, session: Session, schema: str, table: str, *, deletes: bool) -> list[Rule]:
        """Its unique indexes and foreign keys; with `deletes` also those of other tables that refer to it."""

    @abstractmethod
    def column_type(self, kind: pa.DataType, *, key: bool) -> str | None:
        """The type of a column that is made for Arrow's; None: there is none."""

    @abstractmethod
    def accepts(self, kind: pa.DataType, column: Column) -> bool:
        """Whether values of Arrow's type go into such a column."""


@contextmanager
def named(database: Database) -> Iterator[None]:
    """Puts host and port into what passes: a writer's error is read far away from its options."""
    try:
        yield
    except Passing as error:
        error.message = f"{database.address}: {error.message}"
        raise


class Pool:
    """Sessions of one committer: taken by threads, at most `SESSIONS_MAX` at once, dropped after any error."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(SESSIONS_MAX)
        self._closed = False

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for one thread."""
        with self._free:
            session = self._take()
            try:
                yield session
            except BaseException:
                session.close()
                raise
            self._put(session)

    def close(self) -> None:
        """Close those that are idle now, and each other one when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _take(self) -> Session:
        """One that is idle, if the server still knows it; else a new one."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is not None:
            try:
                session.run("SELECT 1")
            except Passing:
                session.close()
            else:
                return session
        return self._database.connect()

    def _put(self, session: Session) -> None:
        with self._lock:
            if not self._closed and self._database.keeps_sessions:
                self._idle.append(session)
                return
        session.close()


def asked(database: Database, action: Callable[[Session], T]) -> T:
    """The answer of something that may be repeated, by a session of its own; tried a few times while it may pass.

    Raises `TargetError` in the end: outside of the sink there is no other try.
    """
    try:
        with named(database):
            return _repeated(lambda: _asked_once(database, action))
    except Passing as error:
        if error.reason == "LockTimeout":
            raise TargetError(error.reason, error.message, path="options.table") from error
        raise TargetUnavailable(str(error), path="options.url") from error


def connected(database: Database) -> Session:
    """A session for a writer; tried a few times, which costs less than the task."""
    return _repeated(database.connect)


def _repeated(action: Callable[[], T]) -> T:
    for attempt in range(ATTEMPTS_MAX - 1):
        try:
            return action()
        except Passing:
            time.sleep(PAUSE_SECONDS * 2**attempt)
    return action()


def _asked_once(database: Database, action: Callable[[Session], T]) -> T:
    with closing(database.connect()) as session:
        return action(session)


def split_table(table: str) -> tuple[str, str]:
    """`schema.table` as (schema, table); the schema is "" where none is named."""
    schema, dot, name = table.rpartition(".")
    return (schema, name) if dot else ("", table)


def missing_module(name: str) -> ConfigurationError:
    """The client library is not installed."""
    advice = "pip install 'sinkjob[jdbc]'"
    return ConfigurationError("MissingModule", f"this database needs {name}", path="options.url", advice=advice)
