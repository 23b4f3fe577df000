"""DuckDB: one process at a time holds the file, so rows are staged as Parquet beside it and the committer inserts them.

Sessions are never kept open: while one is, no other process can open the file. Writers do not open it at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from sinkruntime.dead_letters import Reject
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.jdbc.changes import staged_batch
from sinkruntime.sinks.jdbc.database import AnswerLost, Column, Database, Passing, Rule, Session, missing_module
from sinkruntime.sinks.jdbc.dialects import DELETES, DUCKDB, ORDER, Dialect
from sinkruntime.sinks.jdbc.options import Write
from sinkruntime.sinks.jdbc.stage import Loader, Stage
from sinkruntime.sinks.jdbc.types import duckdb_accepts, duckdb_type

if TYPE_CHECKING:
    import duckdb

_MARK = "sinkjob:"
#: Rows gathered before they are written as one row group.
GROUP_BYTES_MAX = 64 * 1024**2
_HERE = (
    "schema_name = coalesce(nullif(?, ''), current_schema()) AND table_name = ? AND database_name = current_database()"
)


class DuckDBSession(Session):
    """A connection that commits each statement."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        import duckdb

        try:
            return self.connection.execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            raise translated(error) from error

    def change(self, sql: str, *values: Any) -> int:
        return int(self.run(sql, *values)[0][0])

    def close(self) -> None:
        with suppress(Exception):  # it goes with the process
            self.connection.close()


class DuckDB(Database):
    """DuckDB 1.1 or later."""

    dialect: ClassVar[Dialect] = DUCKDB
    keeps_sessions: ClassVar[bool] = False

    def connect(self) -> DuckDBSession:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise missing_module("duckdb") from error
        try:
            session = DuckDBSession(duckdb.connect(self.address.path))
        except duckdb.IOException as error:
            reason = "FileInUse" if "lock" in str(error) else "NotReached"
            raise Passing(reason, f"{self.address.path}: {error}") from error
        except duckdb.Error as error:
            raise TargetError("NotReached", f"{self.address.path}: {error}", path="options.url") from error
        session.run("SET TimeZone = 'UTC'")
        return session

    def columns(self, session: Session, schema: str, table: str) -> list[Column] | None:
        rows = session.run(
            f"SELECT column_name, data_type, is_nullable, column_default IS NOT NULL FROM duckdb_columns() "
            f"WHERE {_HERE} ORDER BY column_index",
            schema,
            table,
        )
        return [Column(n, kind, kind, nullable, nullable or valued) for n, kind, nullable, valued in rows] or None

    def tables(self, session: Session, schema: str, prefix: str) -> list[str]:
        raise NotImplementedError("rows are staged in files")

    def identity(self, session: Session, schema: str, table: str) -> str:
        comment = self._comment(session, schema, table) or ""
        return comment.rpartition(_MARK)[2] if _MARK in comment else ""

    def name_target(self, session: Session, schema: str, table: str, unique: str) -> None:
        """By the table's comment, which goes with the table."""
        comment = self._comment(session, schema, table) or ""
        if _MARK not in comment:
            text = f"{comment} {_MARK}{unique}".strip().replace("'", "''")
            session.run(f"COMMENT ON TABLE {self.dialect.qualified(schema, table)} IS '{text}'")

    def _comment(self, session: Session, schema: str, table: str) -> str | None:
        rows = session.run(f"SELECT comment FROM duckdb_tables() WHERE {_HERE}", schema, table)
        return rows[0][0] if rows else None

    def unique_keys(self, session: Session, schema: str, table: str) -> list[frozenset[str]]:
        rows = session.run(
            f"SELECT constraint_column_names FROM duckdb_constraints() WHERE {_HERE} "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
            schema,
            table,
        )
        return [frozenset(row[0]) for row in rows]

    def checks(self, session: Session, schema: str, table: str) -> list[Rule]:
        raise NotImplementedError("rows are staged in files, which know no rule")

    def late_rules(self, session: Session, schema: str, table: str, *, deletes: bool) -> list[Rule]:
        raise NotImplementedError("rows are staged in files, which know no rule")

    def column_type(self, kind: pa.DataType, *, key: bool) -> str | None:
        return duckdb_type(kind)

    def accepts(self, kind: pa.DataType, column: Column) -> bool:
        return duckdb_accepts(kind, column.declared)


class FileStage(Stage):
    """Parquet files in a folder beside the database's file."""

    @property
    def folder(self) -> Path:
        return Path(f"{self.database.address.path}.sinkjob")

    def path(self, name: str) -> Path:
        """Where something is staged."""
        return self.folder / f"{name}.parquet"

    def loader(self, name: str, rows: pa.Schema, reject: Reject | None) -> Loader:
        if reject is not None:
            message = "rows of duckdb are staged in files, which refuse none"
            raise ConfigurationError("InvalidDeadLetter", message, path="deadLetter", advice="leave it out")
        return FileLoader(self, name, rows)

    def staged(self, session: Session, prefix: str) -> list[str]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [name.partition(".")[0] for name in names if name.startswith(prefix)]

    def missing(self, session: Session, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self.path(name).exists()]

    def move(self, session: Session, names: Sequence[str]) -> None:
        there = [c.name for c in self.database.columns(session, self.schema, self.table) or ()]
        for name in names:
            path = str(self.path(name)).replace("'", "''")
            # A folder above that is called `a=b` is no partition: its value would take the place of a column's.
            source = f"read_parquet('{path}', hive_partitioning = false)"
            found = [row[0] for row in session.run(f"DESCRIBE SELECT * FROM {source}")]
            columns = [column for column in found if column not in (ORDER, DELETES)]
            if self.options.delete_when:
                columns = [column for column in columns if column in there]
            for statement in self.statements(source, columns):
                session.run(statement)

    def drop(self, session: Session, names: Sequence[str]) -> None:
        for name in names:
            for path in (self.path(name), self.path(name).with_suffix(".tmp")):
                path.unlink(missing_ok=True)

    def drop_inside(self, session: Session, names: Sequence[str]) -> None:
        """Files are no part of a transaction."""

    def drop_after(self, session: Session, names: Sequence[str]) -> None:
        self.drop(session, names)


class FileLoader(Loader):
    """One Parquet file, under its name when it is whole and on disk."""

    def __init__(self, stage: FileStage, name: str, rows: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._stage = stage
        self._final = stage.path(name)
        self._temporary = self._final.with_suffix(".tmp")
        self._finished = False
        write = stage.options.write
        ours: list[pa.Field[Any]] = [] if write is Write.INSERT else [pa.field(ORDER, pa.int64())]
        if write is Write.CHANGES:
            ours.append(pa.field(DELETES, pa.bool_()))
        self._schema = pa.schema([*rows, *ours])
        self._gathered: list[pa.RecordBatch] = []
        with _disk(self._temporary):
            stage.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            self._writer: pq.ParquetWriter | None = pq.ParquetWriter(self._file, self._schema)

    def write(self, batch: pa.RecordBatch, first: int) -> int:
        ready = staged_batch(batch, self._schema.names, first, self._stage.options)
        self._gathered.append(ready.cast(self._schema))
        if sum(part.nbytes for part in self._gathered) >= GROUP_BYTES_MAX:
            self._encode()
        return batch.num_rows

    def finish(self) -> None:
        with _disk(self._temporary):
            self._encode()
            assert self._writer is not None
            self._writer.close()
            self._writer = None
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.rename(self._final)
            _sync(self._stage.folder)
        self._finished = True

    def discard(self) -> None:
        self._abandon()
        self._final.unlink(missing_ok=True)

    def close(self) -> None:
        if not self._finished:
            self._abandon()

    def _encode(self) -> None:
        if self._gathered and self._writer is not None:
            with _disk(self._temporary):
                self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
            self._gathered = []

    def _abandon(self) -> None:
        writer, self._writer, self._gathered = self._writer, None, []
        if writer is not None:
            with suppress(OSError):  # a full disk, which has been told
                writer.close()
        with suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class _disk:  # noqa: N801  (reads as `with _disk(path)`)
    """Errors of the file system, with the path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = "DiskFull" if error.errno in (28, 122, 27) else type(error).__name__
            raise TargetError(reason, f"{self._path}: {error.strerror or error}", path="options.url") from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def translated(error: Exception) -> Passing | TargetError:
    """One of ours for one of DuckDB's."""
    import duckdb

    message = " ".join(str(error).split())
    if isinstance(error, duckdb.FatalException):
        return AnswerLost(message)
    if isinstance(error, duckdb.TransactionException | duckdb.OperationalError):
        return Passing("Conflict", message)
    if isinstance(error, duckdb.IntegrityError | duckdb.DataError):
        return TargetError("RowsRefused", message, path="options.table")
    reason = "TableMissing" if isinstance(error, duckdb.CatalogException) else "StatementRefused"
    return TargetError(reason, message, path="options.table")
