"""The hudi sink keeps the contract in a local directory; read back by hudi-rs."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from tests.servers.hudi_reader import HudiReader
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row

pytestmark = pytest.mark.integration

STAGING = ".hoodie/.sinkjob/staging"


class Place:
    """An empty directory, and the reader."""

    def __init__(self, root: Path, reader: HudiReader) -> None:
        self.root = root
        self.reader = reader


@pytest.fixture
def place(tmp_path: Path, hudi_reader: HudiReader) -> Place:
    return Place(tmp_path / "table", hudi_reader)


def make(place: Place, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> HudiSink:
    options = Options.model_validate({"path": str(place.root), "table": "flights", **more})
    return HudiSink(options, harness.identity(ledger_id, sink))


class HudiContract(SinkContract):
    options: ClassVar[dict[str, Any]]
    golden_version = 1
    golden_bytes = (
        b'{"files":[{"crc32":1,"partition":"a","path":"a/g-0_0d-000000000001-1-00000-0-ab-00000_20261121103000000.parquet"'
        b',"rows":5,"size":9}],"instant":"20261121103000000","reserved":null,"schema":"{}"}'
    )
    golden_value: ClassVar = {
        "files": [
            {
                "crc32": 1,
                "partition": "a",
                "path": "a/g-0_0d-000000000001-1-00000-0-ab-00000_20261121103000000.parquet",
                "rows": 5,
                "size": 9,
            }
        ],
        "instant": "20261121103000000",
        "reserved": None,
        "schema": "{}",
    }

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made = make(place, ledger_id, sink, **self.options)
        made.prepare_target(harness.SCHEMA)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows = place.reader.rows(str(place.root))
        return Counter((row["id"], row["name"]) for row in rows)

    def list_staged(self, place: Any) -> set[str]:
        staging = place.root / STAGING
        return {str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()}

    def lose_staged(self, place: Any) -> None:
        shutil.rmtree(place.root / STAGING)

    def recreate(self, place: Any) -> None:
        shutil.rmtree(place.root)
        place.root.mkdir()


class TestInsert(HudiContract):
    options: ClassVar = {}


class TestPartitioned(HudiContract):
    options: ClassVar = {"recordKey": ["id"], "partitionBy": ["name"], "hiveStyle": True, "maxOpenFiles": 2}
