"""The jdbc sink in a real PostgreSQL, `mode: staging`: the contract, bad targets, lost answers."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from sinkruntime.sinks.jdbc import JdbcSink
from sinkruntime.sinks.jdbc.options import Options
from tests.servers.postgresql import PostgreSQLServer
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class Place:
    """A schema of its own in the shared database."""

    server: PostgreSQLServer
    schema: str

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", address: str = "", **options: Any) -> JdbcSink:
        values = {"url": self.server.url("sinkjob", address), "table": f"{self.schema}.t", **options}
        return JdbcSink(Options.model_validate(values), harness.identity(ledger_id, sink))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.server.connect("sinkjob")) as connection:
            cursor = connection.execute(sql.replace("~", f'"{self.schema}"').encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def database(postgresql: PostgreSQLServer) -> PostgreSQLServer:
    postgresql.make_database("sinkjob")
    return postgresql


@pytest.fixture
def place(database: PostgreSQLServer) -> Place:
    place = Place(database, f"s{uuid.uuid4().hex[:8]}")
    place.query("CREATE SCHEMA ~")
    place.sink().prepare_target(harness.SCHEMA)
    return place


class TestStaging(SinkContract):
    golden_version: ClassVar[int] = 1
    golden_bytes: ClassVar[bytes] = b'{"rows":5,"stage":"_sj_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"}'
    golden_value: ClassVar[Any] = {"rows": 5, "stage": "_sj_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"}

    def make_sink(self, place: Place, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        return place.sink(ledger_id, sink)

    def read_visible(self, place: Place) -> Counter[Row]:
        return Counter((int(number), name) for number, name in place.query("SELECT id, name FROM ~.t"))

    def list_staged(self, place: Place) -> set[str]:
        return staged_tables(place)

    def lose_staged(self, place: Place) -> None:
        for name in staged_tables(place):
            place.query(f'DROP TABLE ~."{name}"')

    def recreate(self, place: Place) -> None:
        place.query("DROP TABLE ~.t")


def staged_tables(place: Place) -> set[str]:
    sql = f"SELECT tablename FROM pg_tables WHERE schemaname = '{place.schema}' AND left(tablename, 4) = '_sj_'"
    return {row[0] for row in place.query(sql)}
