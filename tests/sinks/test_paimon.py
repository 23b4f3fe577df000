"""The paimon sink keeps the contract in a local warehouse and on S3, read back by Paimon's own Python library."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from sinkruntime.sinks.paimon import PaimonSink
from sinkruntime.sinks.paimon.options import Options
from tests.servers.paimon import PaimonPeer
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row

pytestmark = pytest.mark.integration

TABLE = "db.rows"


@dataclass(frozen=True, slots=True)
class Place:
    """A warehouse: as the sink names it, and the folder in which its files really are."""

    peer: PaimonPeer
    folder: Path
    warehouse: str
    more: dict[str, Any] = field(default_factory=dict)
    drop: Callable[[], object] | None = None

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **options: Any) -> PaimonSink:
        told = {"catalog": {"warehouse": self.warehouse}, "table": TABLE, **self.more, **options}
        return PaimonSink(Options.model_validate(told), harness.identity(ledger_id, sink))

    @property
    def table(self) -> Path:
        return self.folder / "db.db" / "rows"

    def rows(self) -> list[dict[str, Any]]:
        return self.peer.rows(self.folder, TABLE)

    def snapshots(self) -> list[dict[str, Any]]:
        found = sorted(self.table.glob("snapshot/snapshot-*"), key=lambda path: int(path.name[9:]))
        return [json.loads(path.read_text()) for path in found]


@pytest.fixture
def place(paimon_peer: PaimonPeer, tmp_path: Path) -> Place:
    return Place(paimon_peer, tmp_path, str(tmp_path))


class PaimonContract(SinkContract):
    options: ClassVar[dict[str, Any]] = {}
    golden_version = 1
    golden_value: ClassVar = {
        "target": "db.rows.1",
        "schema": 0,
        "buckets": -1,
        "files": [
            {
                "path": "bucket-0/data-0d-000000000001-1-00000-0-ab-00000.parquet",
                "partition": "AAAAAAAAAAAAAAAA",
                "bucket": 0,
                "size": 9,
                "rows": 5,
                "deletes": 0,
                "sequence": [0, 0],
                "stats": ["AAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAA", []],
                "columns": [],
                "made": 1,
            }
        ],
    }
    golden_bytes = (
        b'{"buckets":-1,"files":[{"bucket":0,"columns":[],"deletes":0,"made":1,'
        b'"partition":"AAAAAAAAAAAAAAAA","path":"bucket-0/data-0d-000000000001-1-00000-0-ab-00000.parquet",'
        b'"rows":5,"sequence":[0,0],"size":9,"stats":["AAAAAAAAAAAAAAAA","AAAAAAAAAAAAAAAA",[]]}],'
        b'"schema":0,"target":"db.rows.1"}'
    )

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: PaimonSink = place.sink(ledger_id, sink, **self.options)
        made.prepare_target(harness.SCHEMA)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        return Counter((row["id"], row["name"]) for row in place.rows())

    def list_staged(self, place: Any) -> set[str]:
        staged = place.table / "_sinkjob" / "staging"
        return {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}

    def lose_staged(self, place: Any) -> None:
        for marker in (place.table / "_sinkjob" / "staging").rglob("*"):
            if marker.is_file():
                for path in json.loads(marker.read_text()):
                    (place.table / path).unlink()
                marker.unlink()

    def recreate(self, place: Any) -> None:
        (place.drop or partial(shutil.rmtree, place.table))()


class TestAppend(PaimonContract):
    pass


class TestPartitioned(PaimonContract):
    options: ClassVar = {"partitionBy": ["name"], "maxOpenFiles": 2}


@contextmanager
def warehouse_on_s3(peer: PaimonPeer, server: S3Server, endpoint: str) -> Iterator[Place]:
    """A warehouse on S3, whose server keeps objects as plain files."""
    bucket = server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    client = server.client()

    def drop() -> None:
        for entry in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            client.delete_object(Bucket=bucket, Key=entry["Key"])

    options = {"storage": server.storage(endpoint)}
    yield Place(peer, server.data_dir / bucket / "some", f"s3://{bucket}/some", options, drop)
    client.close()


class TestS3(PaimonContract):
    @pytest.fixture
    def place(self, paimon_peer: PaimonPeer, s3_server: S3Server) -> Iterator[Place]:
        with warehouse_on_s3(paimon_peer, s3_server, s3_server.endpoint) as place:
            yield place
