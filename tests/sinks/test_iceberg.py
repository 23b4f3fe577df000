"""The Iceberg sink keeps the contract with a SQL catalog and with a real REST server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.s3 import S3Server
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row
from tests.sinks.iceberg_places import Place, rest_place, s3_place, sql_place


class IcebergContract(SinkContract):
    more: ClassVar[dict[str, Any]] = {}
    golden_version = 1
    golden_bytes = (
        b'{"files":[{"lower":{"1":"AQAAAAAAAAA="},"name":"000000000001-1-00000-0-ab-00000.parquet","nulls":{"1":0},'
        b'"rows":5,"size":900,"sizes":{"1":60},"splits":[4],"upper":{"1":"BAAAAAAAAAA="},"values":{"1":5}}],'
        b'"folder":"file:///lake/rows/data/sinkjob-0d/000000000001-1","spec":0,"table":"0d0d"}'
    )
    golden_value: ClassVar = {
        "table": "0d0d",
        "folder": "file:///lake/rows/data/sinkjob-0d/000000000001-1",
        "spec": 0,
        "files": [
            {
                "name": "000000000001-1-00000-0-ab-00000.parquet",
                "size": 900,
                "rows": 5,
                "sizes": {"1": 60},
                "values": {"1": 5},
                "nulls": {"1": 0},
                "lower": {"1": "AQAAAAAAAAA="},
                "upper": {"1": "BAAAAAAAAAA="},
                "splits": [4],
            }
        ],
    }

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink, **self.more)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        staged: set[str] = place.staged()
        return staged

    def lose_staged(self, place: Any) -> None:
        place.lose_staged()

    def recreate(self, place: Any) -> None:
        place.drop()
        place.make()


class TestSqlCatalog(IcebergContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        made = sql_place(tmp_path)
        made.make()
        return made


class TestRestCatalog(IcebergContract):
    pytestmark = pytest.mark.integration

    @pytest.fixture
    def place(self, iceberg_rest: IcebergRest) -> Place:
        made = rest_place(iceberg_rest)
        made.make()
        return made


class TestTablesOnS3(IcebergContract):
    pytestmark = pytest.mark.integration

    @pytest.fixture
    def place(self, tmp_path: Path, s3_server: S3Server) -> Place:
        made = s3_place(tmp_path, s3_server)
        made.make()
        return made
