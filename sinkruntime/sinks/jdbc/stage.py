"""Where `mode: staging` keeps rows until they are moved: tables beside the target, loaded by each database's own way.

`staging` uses it; `duckdb` has files in place of the tables. A `Loader` is one writer's; a `Stage` belongs to a sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa

from sinkruntime.dead_letters import Reject
from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.changes import staged_batch, written_columns
from sinkruntime.sinks.jdbc.database import Column, Database, Rule, Session, connected, split_table
from sinkruntime.sinks.jdbc.dialects import DELETES, ORDER, Move
from sinkruntime.sinks.jdbc.options import Options, Write
from sinkruntime.sinks.jdbc.refusals import Sieve, check_in_time, split_rules


class Loader(ABC):
    """One writer's rows on their way. Called from one thread: `write` any number of times, then `finish` or `discard`,
    then `close`."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch, first: int) -> int:
        """Take a batch, whose first row is the writer's row `first`; how many of its rows were not refused."""

    @abstractmethod
    def finish(self) -> None:
        """Make what was taken durable; others can find it by its name."""

    @abstractmethod
    def discard(self) -> None:
        """Take it back, also after `finish`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; what is not finished goes."""


class Load(ABC):
    """How a database takes many rows into one table: the part of a loader that differs."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch, with the columns in the order of the table's."""

    def finish(self) -> None:  # noqa: B027  (nothing is held back by default)
        """Send what is held back."""

    def cancel(self) -> None:  # noqa: B027
        """After an error: leave the session able to go on. The rows of this load are rolled back by the caller."""


#: Begins a load of a (quoted) table with these columns through a session.
BeginLoad = Callable[[Session, str, Sequence[Column]], Load]


class Stage(ABC):
    """The staging place of one sink."""

    def __init__(self, database: Database, options: Options) -> None:
        self.database = database
        self.options = options
        self.schema, self.table = split_table(options.table)
        self.target = database.dialect.qualified(self.schema, self.table)

    @abstractmethod
    def loader(self, name: str, rows: pa.Schema, reject: Reject | None) -> Loader:
        """A loader for rows of this schema; `reject` takes those that are refused, None: there must be none. Connects.
        Raises `ConfigurationError` where some would be refused too late."""

    @abstractmethod
    def staged(self, session: Session, prefix: str) -> list[str]:
        """All that is staged under names that begin so."""

    @abstractmethod
    def missing(self, session: Session, names: Sequence[str]) -> list[str]:
        """Which of these are not staged."""

    @abstractmethod
    def move(self, session: Session, names: Sequence[str]) -> None:
        """Move the staged rows into the table, within the session's transaction."""

    @abstractmethod
    def drop(self, session: Session, names: Sequence[str]) -> None:
        """Remove what is staged; what is not there is no error."""

    def drop_inside(self, session: Session, names: Sequence[str]) -> None:
        """Within the transaction that moved it, where the database can."""
        if self.database.ddl_is_transactional:
            self.drop(session, names)

    def drop_after(self, session: Session, names: Sequence[str]) -> None:
        """After that transaction, where it could not be within."""
        if not self.database.ddl_is_transactional:
            self.drop(session, names)

    def target_columns(self, session: Session, rows: pa.Schema) -> list[Column]:
        """The target's columns that the rows have, in the rows' order. Raises `TargetError` where one is missing."""
        found = {column.name: column for column in self.database.columns(session, self.schema, self.table) or ()}
        if not found:
            raise TargetError("TableMissing", f"the table {self.options.table} does not exist", path="options.table")
        names = written_columns(rows, self.options, list(found))
        for name in names:
            if name not in found:
                message = f"column `{name}`: {self.options.table} has no such column"
                raise TargetError("SchemaMismatch", message, path="options.table")
        return [found[name] for name in names]

    def statements(self, source: str, columns: Sequence[str]) -> list[str]:
        """What moves one source, as SQL; `columns` are the target's."""
        quote = self.database.dialect.quote
        key = tuple(quote(name) for name in self.options.key)
        move = Move(self.target, tuple(quote(name) for name in columns), key, source, self.options.write)
        return self.database.dialect.moves(move)


class TableStage(Stage):
    """Staging tables, in the target's schema and with the types of its columns: a value that does not fit is an error
    of the task that brings it, before anything is decided."""

    def __init__(
        self, database: Database, options: Options, begin_load: BeginLoad, begin_fresh: BeginLoad | None = None
    ) -> None:
        """`begin_fresh` loads a table that the very transaction has made, where a database has a way for it."""
        super().__init__(database, options)
        self._begin_load = begin_load
        self._begin_fresh = begin_fresh or begin_load

    def loader(self, name: str, rows: pa.Schema, reject: Reject | None) -> Loader:
        session = connected(self.database)
        try:
            columns = self._with_ours(self.target_columns(session, rows))
            return TableLoader(self, session, name, columns, reject)
        except BaseException:
            session.close()
            raise

    def begin_load_of(self, session: Session, table: str, columns: Sequence[Column]) -> Load:
        """Begin to fill a (quoted) table."""
        return self._begin_load(session, table, columns)

    def begin_fresh(self, session: Session, table: str, columns: Sequence[Column]) -> Load:
        """Begin to fill a (quoted) staging table that was made just now, by the same session."""
        return self._begin_fresh(session, table, columns)

    def load_once(self, session: Session, table: str, columns: Sequence[Column], batch: pa.RecordBatch) -> None:
        """Fill it with one batch; after an error the session can go on behind its last savepoint."""
        load = self._begin_load(session, table, columns)
        try:
            load.write(batch)
        except TargetError:
            load.cancel()
            raise
        load.finish()

    def create(self, session: Session, name: str, columns: Sequence[Column], rules: Sequence[Rule]) -> None:
        """Make a staging table, with those of the target's rules that it can have."""
        quote, changes = self.database.dialect.quote, self.options.write is Write.CHANGES
        spared = f"{quote(DELETES)} OR " if changes else ""  # a row that deletes needs its key alone
        parts, conditions = [], [rule.condition for rule in rules]
        for column in columns:
            always = not column.nullable and (not changes or column.name in (*self.options.key, ORDER, DELETES))
            parts.append(f"{quote(column.name)} {column.declared}{' NOT NULL' if always else ''}")
            if not column.nullable and not always:
                conditions.append(f"{quote(column.name)} IS NOT NULL")
        parts += [f"CHECK ({spared}({condition}))" for condition in conditions]
        session.run(f"CREATE TABLE {self.qualified(name)} ({', '.join(parts)})")

    def rules_for(self, session: Session, columns: Sequence[Column], reject: Reject | None) -> list[Rule]:
        """The target's rules that are met when rows are staged; see `loader` for `reject`."""
        checks = self.database.checks(session, self.schema, self.table)
        copied, late = split_rules(checks, [column.name for column in columns])
        if reject is not None:
            deletes = self.options.write is Write.CHANGES
            check_in_time(
                [*late, *self.database.late_rules(session, self.schema, self.table, deletes=deletes)], self.options
            )
        return copied

    def qualified(self, name: str) -> str:
        return self.database.dialect.qualified(self.schema, name)

    def staged(self, session: Session, prefix: str) -> list[str]:
        return self.database.tables(session, self.schema, prefix)

    def missing(self, session: Session, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.database.columns(session, self.schema, name) is None]

    def move(self, session: Session, names: Sequence[str]) -> None:
        for name in names:
            staged = self.database.columns(session, self.schema, name) or []
            columns = [column.name for column in staged if column.name not in (ORDER, DELETES)]
            for statement in self.statements(self.qualified(name), columns):
                session.run(statement)

    def drop(self, session: Session, names: Sequence[str]) -> None:
        for name in names:
            session.run(f"DROP TABLE IF EXISTS {self.qualified(name)}")

    def _with_ours(self, columns: Sequence[Column]) -> list[Column]:
        write, dialect = self.options.write, self.database.dialect
        keyed = [
            Column(c.name, c.kind, c.declared, c.nullable and c.name not in self.options.key, c.optional)
            for c in columns
        ]
        if write is not Write.INSERT:
            keyed.append(Column(ORDER, self.database.order_kind, dialect.whole_number, nullable=False))
        if write is Write.CHANGES:
            keyed.append(Column(DELETES, self.database.boolean_kind, dialect.boolean, nullable=False))
        return keyed


class TableLoader(Loader):
    """Loads into one staging table. Where CREATE is part of a transaction, all of it is one, and a writer that dies
    leaves nothing."""

    def __init__(
        self, stage: TableStage, session: Session, name: str, columns: Sequence[Column], reject: Reject | None
    ) -> None:
        self._stage = stage
        self._session = session
        self._name = name
        self._table = stage.qualified(name)
        self._columns = columns
        self._reject = reject
        self._finished = False
        self._loads_in = stage.database.loads_in
        rules = stage.rules_for(session, columns, reject)
        if self._loads_in == "whole":
            session.begin()
        stage.create(session, name, columns, rules)
        if self._loads_in == "rows":
            session.begin()
        self._load = stage.begin_fresh(session, self._table, columns) if reject is None else None

    def write(self, batch: pa.RecordBatch, first: int) -> int:
        if self._loads_in != "batches":
            return self._write(batch, first, self._reject)
        refused: list[tuple[pa.RecordBatch, str, str]] = []
        with self._session.transaction():
            kept = self._write(batch, first, self._reject and (lambda *row: refused.append(row)))
        for row in refused:  # only now: the dead-letter sink may wait for this very file
            assert self._reject is not None
            self._reject(*row)
        return kept

    def _write(self, batch: pa.RecordBatch, first: int, reject: Reject | None) -> int:
        if reject is not None:
            return Sieve(self._session, self._write_piece).take(batch, first, reject)
        assert self._load is not None
        self._load.write(self._ready(batch, first))
        return batch.num_rows

    def _write_piece(self, piece: pa.RecordBatch, first: int) -> None:
        self._stage.load_once(self._session, self._table, self._columns, self._ready(piece, first))

    def _ready(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        return staged_batch(batch, [column.name for column in self._columns], first, self._stage.options)

    def finish(self) -> None:
        if self._load is not None:
            self._load.finish()
        if self._loads_in != "batches":
            self._session.commit()
        self._finished = True

    def discard(self) -> None:
        """By a session of its own: this one may be broken, or have lost the answer to its COMMIT."""
        self._session.close()
        session = connected(self._stage.database)
        try:
            self._stage.drop(session, [self._name])
        finally:
            session.close()

    def close(self) -> None:
        self._session.close()
        if not self._finished and self._loads_in != "whole":
            self.discard()
