"""Fixtures of the jdbc tests: each place is empty and prepared for the harness's rows."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDBServer
from tests.servers.postgresql import PostgreSQLServer
from tests.sinks import harness
from tests.sinks.jdbc_places import DuckDBPlace, MariaDBPlace, PostgreSQLPlace, SQLitePlace, make


@pytest.fixture(scope="session")
def jdbc_postgresql(postgresql: PostgreSQLServer) -> PostgreSQLServer:
    postgresql.make_database("sinkjob")
    return postgresql


@pytest.fixture
def postgresql_place(jdbc_postgresql: PostgreSQLServer) -> PostgreSQLPlace:
    place = PostgreSQLPlace(jdbc_postgresql, f"s{uuid.uuid4().hex[:8]}")
    place.query("CREATE SCHEMA ~")
    make(place).prepare_target(harness.SCHEMA)
    return place


@pytest.fixture
def mariadb_place(mariadb: MariaDBServer) -> MariaDBPlace:
    place = MariaDBPlace(mariadb, mariadb.make_database(f"s{uuid.uuid4().hex[:8]}"))
    make(place).prepare_target(harness.SCHEMA)
    return place


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SQLitePlace:
    place = SQLitePlace(tmp_path / "target.db")
    make(place).prepare_target(harness.SCHEMA)
    return place


@pytest.fixture
def duckdb_place(tmp_path: Path) -> DuckDBPlace:
    place = DuckDBPlace(tmp_path / "target.duckdb")
    make(place).prepare_target(harness.SCHEMA)
    return place
