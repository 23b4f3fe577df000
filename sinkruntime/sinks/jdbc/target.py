"""Prepares the table before a job's first batch: what is done once per job, and whether the rows fit.

`JdbcSink.prepare_target` calls it at every driver start. Nothing here waits for a lock longer than `lockTimeout`.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.jdbc.changes import changes_of, written_columns
from sinkruntime.sinks.jdbc.database import Column, Database, Session, split_table
from sinkruntime.sinks.jdbc.evidence import Evidence
from sinkruntime.sinks.jdbc.names import EVIDENCE, WRITERS
from sinkruntime.sinks.jdbc.options import DataSaveMode, Mode, Options, SchemaSaveMode, Write

_WAYS = {SchemaSaveMode.CREATE_WHEN_NOT_EXISTS, SchemaSaveMode.RECREATE}


def prepare(session: Session, database: Database, options: Options, evidence: Evidence, rows: pa.Schema) -> None:
    """Do what is done once, make a missing table, and compare columns. Raises `TargetError`."""
    schema, table = split_table(options.table)
    evidence.create(session)
    with session.transaction():
        if not evidence.lock(session).prepared:
            _once(session, database, options, rows)
            evidence.set_prepared(session)
        elif database.columns(session, schema, table) is None:
            _create(session, database, options, rows)
    found = database.columns(session, schema, table)
    if found is None:
        raise _missing(options)
    database.check_transactional(session, schema, (table, EVIDENCE, WRITERS))
    check_columns(found, database, options, rows)
    if options.write is not Write.INSERT:
        _check_key(database.unique_keys(session, schema, table), options)
    database.name_target(session, schema, table, str(uuid.uuid4()))


def _once(session: Session, database: Database, options: Options, rows: pa.Schema) -> None:
    """Where DDL is no part of a transaction, a crash between two of these statements makes all of them run again."""
    schema, table = split_table(options.table)
    target = database.dialect.qualified(schema, table)
    there = database.columns(session, schema, table) is not None
    if there and options.schema_save_mode is SchemaSaveMode.RECREATE:
        session.run(f"DROP TABLE {target}")
        there = False
    if not there:
        _create(session, database, options, rows)
    elif options.data_save_mode is DataSaveMode.DROP:
        session.run(f"DELETE FROM {target}")
    elif options.data_save_mode is DataSaveMode.ERROR_WHEN_EXISTS and session.run(f"SELECT 1 FROM {target} LIMIT 1"):
        message = f"{options.table} has rows, and `dataSaveMode: ErrorWhenExists` wants an empty table"
        raise TargetError("TargetNotEmpty", message, path="options.dataSaveMode")
    for statement in options.pre_sql:
        session.run(statement)


def _create(session: Session, database: Database, options: Options, rows: pa.Schema) -> None:
    if options.schema_save_mode not in _WAYS:
        if options.schema_save_mode is SchemaSaveMode.IGNORE:
            return  # `preSql` may make it
        raise _missing(options)
    schema, table = split_table(options.table)
    quote = database.dialect.quote
    parts = []
    for name in written_columns(rows, options):
        kind = rows.field(name).type
        declared = database.column_type(kind, key=name in options.key)
        if declared is None:
            message = f"column `{name}`: {kind} has no type in this database"
            advice = "cast the column in a transform, or leave it out by `select`"
            raise TargetError("UnsupportedType", message, path="options.table", advice=advice)
        parts.append(f"{quote(name)} {declared}{' NOT NULL' if name in options.key else ''}")
    if options.key:
        parts.append(f"PRIMARY KEY ({', '.join(quote(name) for name in options.key)})")
    session.run(f"CREATE TABLE {database.dialect.qualified(schema, table)} ({', '.join(parts)})")


def check_columns(found: list[Column], database: Database, options: Options, rows: pa.Schema) -> None:
    """Each of the rows' columns has its place in the table, and the table misses none that it needs."""
    changes_of(options).check(rows)
    there = {column.name: column for column in found}
    names = written_columns(rows, options, list(there))
    for name in names:
        kind = rows.field(name).type
        column = there.get(name)
        if column is None:
            raise _mismatch(f"column `{name}`: the target has no such column, it would get {kind}")
        if not database.accepts(kind, column):
            raise _mismatch(f"column `{name}`: the target has {column.declared}, it would get {kind}")
        if column.made == "always" or (column.made and options.mode is Mode.STAGING):  # staged rows are INSERTed
            raise _mismatch(f"column `{name}`: the database makes its values itself; leave it out by `select`")
    for column in found:
        if column.name not in names and not column.optional:
            raise _mismatch(
                f"column `{column.name}`: the target has {column.declared} NOT NULL, the rows do not have it"
            )


def _check_key(unique: list[frozenset[str]], options: Options) -> None:
    if frozenset(options.key) not in unique:
        message = f"{options.table} has no primary key or unique index of exactly {', '.join(options.key)}"
        raise TargetError(
            "KeyNotUnique", message, path="options.key", advice="make one, or let the sink make the table"
        )


def _missing(options: Options) -> TargetError:
    message = f"the table {options.table} does not exist"
    advice = "make it, or set `schemaSaveMode: CreateWhenNotExists`"
    return TargetError("TableMissing", message, path="options.table", advice=advice)


def _mismatch(message: str) -> TargetError:
    return TargetError("SchemaMismatch", message, path="options.table")
