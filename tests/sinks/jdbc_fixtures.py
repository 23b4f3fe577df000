"""Fixtures of the jdbc tests: each place is empty and prepared for the harness's rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDBServer
from tests.servers.postgresql import PostgreSQLServer
from tests.sinks import harness
from tests.sinks.jdbc_places import DuckDBPlace, MariaDBPlace, Place, PostgreSQLPlace, SQLitePlace, make


@pytest.fixture(scope="session")
def jdbc_postgresql(postgresql: PostgreSQLServer) -> PostgreSQLServer:
    postgresql.make_database("sinkjob")
    return postgresql


@pytest.fixture
def postgresql_place(jdbc_postgresql: PostgreSQLServer) -> Iterator[PostgreSQLPlace]:
    place = PostgreSQLPlace(jdbc_postgresql, f"s{uuid.uuid4().hex[:8]}")
    place.query("CREATE SCHEMA ~")
    make(place).prepare_target(harness.SCHEMA)
    yield place
    roll_all_back(place)


@pytest.fixture
def mariadb_place(mariadb: MariaDBServer) -> Iterator[MariaDBPlace]:
    place = MariaDBPlace(mariadb, mariadb.make_database(f"s{uuid.uuid4().hex[:8]}"))
    make(place).prepare_target(harness.SCHEMA)
    yield place
    roll_all_back(place)


def roll_all_back(place: Place) -> None:
    """Prepared transactions are the whole server's: the next test's must be the only ones."""
    for xid in place.prepared():
        place.roll_back(xid)


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
