"""Which database the options name, and how rows are staged in it. Imports no client library by itself."""

from __future__ import annotations

from sinkruntime.sinks.jdbc.options import Options
from sinkruntime.sinks.jdbc.postgresql import PostgreSQL
from sinkruntime.sinks.jdbc.postgresql_load import begin_copy
from sinkruntime.sinks.jdbc.stage import Stage, TableStage


def stage_for(options: Options) -> Stage:
    """The staging place in the options' database, not yet connected."""
    address, wait = options.address, options.lock_timeout.seconds
    return TableStage(PostgreSQL(address, wait), options, begin_copy)
