"""The jdbc sink's contract, `mode: staging`, in real databases."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row
from tests.sinks.jdbc_places import DuckDBPlace, MariaDBPlace, Place, PostgreSQLPlace, SQLitePlace, make, visible


class StagingContract(SinkContract):
    """What is the same in all of them."""

    golden_version: ClassVar[int] = 1
    golden_bytes: ClassVar[bytes] = b'{"rows":5,"stage":"_sj_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"}'
    golden_value: ClassVar[Any] = {"rows": 5, "stage": "_sj_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"}

    def make_sink(self, place: Place, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        return make(place, ledger_id, sink)

    def read_visible(self, place: Place) -> Counter[Row]:
        return visible(place)

    def list_staged(self, place: Place) -> set[str]:
        return place.staged()

    def lose_staged(self, place: Place) -> None:
        for name in place.staged():
            place.query(f"DROP TABLE ~.{name}")

    def recreate(self, place: Place) -> None:
        place.query("DROP TABLE ~.t")


@pytest.mark.integration
class TestPostgreSQL(StagingContract):
    @pytest.fixture
    def place(self, postgresql_place: PostgreSQLPlace) -> Place:
        return postgresql_place


@pytest.mark.integration
class TestMariaDB(StagingContract):
    @pytest.fixture
    def place(self, mariadb_place: MariaDBPlace) -> Place:
        return mariadb_place


class TestSQLite(StagingContract):
    @pytest.fixture
    def place(self, sqlite_place: SQLitePlace) -> Place:
        return sqlite_place


class TestDuckDB(StagingContract):
    @pytest.fixture
    def place(self, duckdb_place: DuckDBPlace) -> Place:
        return duckdb_place

    def lose_staged(self, place: Any) -> None:
        for path in list(place.path.parent.glob("*.sinkjob/*")):
            path.unlink()
