"""Prepared transactions of a database: begin, prepare, commit, roll back, list, and how many it can hold.

`xa` uses it. An xid is one text here: `sinkjob_<ledger id>_<digest>_<checkpoint>_<epoch>_<subtask>_<attempt>_<random>`;
MySQL takes it in two parts. Everything in it is letters, digits, `-` and `_`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sinkruntime.api import SinkIdentity, WriterContext
from sinkruntime.errors import ConfigurationError
from sinkruntime.sinks.jdbc.database import Passing, Session
from sinkruntime.sinks.jdbc.names import STAGED, owner_prefix, staged_name
from sinkruntime.sinks.jdbc.options import Options

XIDS = "sinkjob_"
PART_BYTES_MAX = 64
_SAFE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Found:
    """A prepared transaction that the server holds. `owner` and `age_seconds` are None where it does not tell."""

    xid: str
    owner: str | None = None
    age_seconds: float | None = None


def xid_prefix(identity: SinkIdentity) -> str:
    """What all xids of a (ledger id, sink) begin with."""
    return f"{XIDS}{_safe(identity.ledger_id)}_{owner_prefix(identity).removeprefix(STAGED)}"


def xid_of(context: WriterContext) -> str:
    """An xid for one writer, like no other's."""
    own = staged_name(context).removeprefix(owner_prefix(context.identity))
    return _safe(f"{xid_prefix(context.identity)}{own}")


def _safe(text: str) -> str:
    assert _SAFE.fullmatch(text), text
    return text


class PreparedTransactions(ABC):
    """What one kind of server does with them. Every method works on a session that is in no other transaction."""

    setting: str  # what a person sets so that the server can hold them

    @abstractmethod
    def begin(self, session: Session, xid: str) -> None: ...

    def check_at_once(self, session: Session) -> None:  # noqa: B027
        """After `begin`: let no rule of the table wait for the end, so that a refused row is told by itself."""

    @abstractmethod
    def prepare(self, session: Session, xid: str) -> None:
        """End what was begun; it now outlives this session."""

    @abstractmethod
    def commit(self, session: Session, xid: str) -> None:
        """Raises `TargetError` (`ObjectMissing`) where there is none of this name: committed, or rolled back."""

    @abstractmethod
    def rollback(self, session: Session, xid: str) -> None:
        """As `commit`."""

    @abstractmethod
    def found(self, session: Session, prefix: str = XIDS) -> list[Found]:
        """Those that the database holds, of xids that begin so."""

    @abstractmethod
    def limit(self, session: Session) -> int | None:
        """How many the server can hold; None: as many as come. Raises `TargetError` where this user cannot use any."""

    @abstractmethod
    @contextmanager
    def alone(self, session: Session, xid: str) -> Iterator[None]:
        """Nobody else commits or fences this xid meanwhile, in any process; ends with the session at the latest."""
        yield


class PostgreSQLTransactions(PreparedTransactions):
    """PREPARE TRANSACTION."""

    setting = "max_prepared_transactions in postgresql.conf"

    def begin(self, session: Session, xid: str) -> None:
        session.run("BEGIN")

    def check_at_once(self, session: Session) -> None:
        session.run("SET CONSTRAINTS ALL IMMEDIATE")

    def prepare(self, session: Session, xid: str) -> None:
        session.run(f"PREPARE TRANSACTION '{_safe(xid)}'")

    def commit(self, session: Session, xid: str) -> None:
        session.run(f"COMMIT PREPARED '{_safe(xid)}'")

    def rollback(self, session: Session, xid: str) -> None:
        session.run(f"ROLLBACK PREPARED '{_safe(xid)}'")

    def found(self, session: Session, prefix: str = XIDS) -> list[Found]:
        rows = session.run(
            "SELECT gid, owner::text, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts "
            "WHERE database = current_database() AND starts_with(gid, ?)",
            prefix,
        )
        return [Found(*row) for row in rows]

    def limit(self, session: Session) -> int | None:
        return int(session.run("SELECT current_setting('max_prepared_transactions')")[0][0])

    @contextmanager
    def alone(self, session: Session, xid: str) -> Iterator[None]:
        session.run("SELECT pg_advisory_lock(hashtextextended(?, 0))", xid)
        yield
        session.run("SELECT pg_advisory_unlock(hashtextextended(?, 0))", xid)


class MySQLTransactions(PreparedTransactions):
    """XA of MySQL and MariaDB. A prepared transaction is anybody's only when its own connection is closed."""

    setting = "the privilege XA_RECOVER_ADMIN (MySQL 8)"

    def __init__(self, lock_timeout_seconds: float) -> None:
        self._wait_seconds = max(1, round(lock_timeout_seconds))

    def begin(self, session: Session, xid: str) -> None:
        session.run(f"XA START {self._parts(xid)}")

    def prepare(self, session: Session, xid: str) -> None:
        session.run(f"XA END {self._parts(xid)}")
        session.run(f"XA PREPARE {self._parts(xid)}")

    def commit(self, session: Session, xid: str) -> None:
        session.run(f"XA COMMIT {self._parts(xid)}")

    def rollback(self, session: Session, xid: str) -> None:
        session.run(f"XA ROLLBACK {self._parts(xid)}")

    def found(self, session: Session, prefix: str = XIDS) -> list[Found]:
        xids = []
        for _, first, second, data in session.run("XA RECOVER"):
            text = data if isinstance(data, str) else bytes(data).decode("latin-1")
            xids.append(f"{text[:first]}_{text[first : first + second]}")
        return [Found(xid) for xid in xids if xid.startswith(prefix)]

    def limit(self, session: Session) -> int | None:
        self.found(session)  # refused where the user may not list them, and then recovery could not either
        return None

    @contextmanager
    def alone(self, session: Session, xid: str) -> Iterator[None]:
        name = f"{XIDS}{xid[-PART_BYTES_MAX + len(XIDS) :]}"
        if session.run("SELECT GET_LOCK(?, ?)", name, self._wait_seconds)[0][0] != 1:
            raise Passing("LockTimeout", "another committer works on this prepared transaction")
        yield
        session.run("SELECT RELEASE_LOCK(?)", name)

    def _parts(self, xid: str) -> str:
        """(gtrid, bqual): the ledger, and the rest."""
        ledger, _, rest = _safe(xid).removeprefix(XIDS).partition("_")
        parts = f"{XIDS}{ledger}", rest
        assert all(len(part) <= PART_BYTES_MAX for part in parts), xid
        return f"'{parts[0]}','{parts[1]}'"


def check_limit(limit: int | None, writers: int, pending_max: int, setting: str) -> None:
    """Raises `ConfigurationError` unless the writers of all pending checkpoints and of the next one fit."""
    needed = writers * (pending_max + 1)
    if limit is not None and limit < needed:
        message = (
            f"the server holds at most {limit} prepared transactions; {writers} writers and `commit.maxPending` "
            f"{pending_max} need {writers} × ({pending_max} + 1) = {needed}"
        )
        advice = f"set {setting} to {needed} or more and restart the server; or lower `maxPending`; or `mode: staging`"
        raise ConfigurationError("TooFewPreparedTransactions", message, path="options.mode", advice=advice)


def described(found: Found, mine: str) -> str:
    """One prepared transaction in words; `mine` is the prefix of this sink's."""
    age = "" if found.age_seconds is None else f", {found.age_seconds:.0f} s old"
    owner = "" if found.owner is None else f", of user {found.owner}"
    return f"{found.xid} ({'this sink' if found.xid.startswith(mine) else 'another job or sink'}{age}{owner})"


def transactions_for(options: Options) -> PreparedTransactions:
    """Those of the options' database."""
    if options.address.kind == "postgresql":
        return PostgreSQLTransactions()
    return MySQLTransactions(options.lock_timeout.seconds)
