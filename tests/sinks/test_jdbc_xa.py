"""The jdbc sink's contract, `mode: xa`: prepared transactions in real servers."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row
from tests.sinks.jdbc_places import MariaDBPlace, Place, PostgreSQLPlace, make, visible

pytestmark = pytest.mark.integration
XID = f"sinkjob_{LEDGER}_e4c8ee3f18d74d6e_1_1_0_0_0123456789ab"


class XaContract(SinkContract):
    """What is the same in both."""

    golden_version: ClassVar[int] = 1
    golden_bytes: ClassVar[bytes] = b'{"rows":5,"xid":"%s"}' % XID.encode()
    golden_value: ClassVar[Any] = {"rows": 5, "xid": XID}

    def make_sink(self, place: Place, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        return make(place, ledger_id, sink, mode="xa")

    def read_visible(self, place: Place) -> Counter[Row]:
        return visible(place)

    def list_staged(self, place: Place) -> set[str]:
        return place.prepared()

    def lose_staged(self, place: Place) -> None:
        for xid in place.prepared():
            place.roll_back(xid)

    def recreate(self, place: Place) -> None:
        place.query("DROP TABLE ~.t")


class TestPostgreSQL(XaContract):
    @pytest.fixture
    def place(self, postgresql_place: PostgreSQLPlace) -> Place:
        return postgresql_place


class TestMariaDB(XaContract):
    @pytest.fixture
    def place(self, mariadb_place: MariaDBPlace) -> Place:
        return mariadb_place
