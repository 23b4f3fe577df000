"""Which database the options name, and how rows are staged in it. Imports no client library by itself."""

from __future__ import annotations

from sinkruntime.sinks.jdbc import mysql, sqlite
from sinkruntime.sinks.jdbc.duckdb import DuckDB, FileStage
from sinkruntime.sinks.jdbc.options import Options
from sinkruntime.sinks.jdbc.postgresql import PostgreSQL
from sinkruntime.sinks.jdbc.postgresql_load import begin_copy, begin_frozen_copy
from sinkruntime.sinks.jdbc.stage import Stage, TableStage


def stage_for(options: Options) -> Stage:
    """The staging place in the options' database, not yet connected."""
    address, wait = options.address, options.lock_timeout.seconds
    if address.kind == "postgresql":
        return TableStage(PostgreSQL(address, wait), options, begin_copy, begin_frozen_copy)
    if address.kind == "mysql":
        return TableStage(mysql.MySQL(address, wait), options, mysql.begin_insert)
    if address.kind == "sqlite":
        return TableStage(sqlite.SQLite(address, wait), options, sqlite.begin_insert)
    return FileStage(DuckDB(address, wait), options)
