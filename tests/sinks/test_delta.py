"""The delta sink keeps the contract on local tables and a real S3 server, read back by DuckDB and the log itself."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sinkruntime.api import Sink
from sinkruntime.sinks.delta import DeltaSink
from sinkruntime.sinks.delta.options import Options
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row

COLUMNS = {"id": "long", "name": "string"}


@dataclass(frozen=True, slots=True)
class Place:
    """A table's directory as it stands on this machine's disk, also where an S3 server keeps it there."""

    directory: Path
    path: str
    storage: dict[str, Any]
    server: S3Server | None = None

    def options(self, **more: Any) -> Options:
        return Options.model_validate({"path": self.path, "storage": self.storage, **more})

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> Sink:
        return DeltaSink(self.options(**more), harness.identity(ledger_id, sink))

    def actions(self) -> list[tuple[int, dict[str, Any]]]:
        """Every action of the log with its version, read without any library."""
        found = []
        for path in sorted((self.directory / "_delta_log").glob("*.json")):
            found += [(int(path.stem), json.loads(line)) for line in path.read_text().splitlines()]
        return found

    def active(self) -> dict[str, dict[str, Any]]:
        """The add actions of the current version, by path."""
        files: dict[str, dict[str, Any]] = {}
        for _, action in self.actions():
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
        return files

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows by the log and DuckDB's Parquet reader: (id, name)."""
        found: list[tuple[Any, ...]] = []
        with duckdb.connect() as connection:
            for path, add in self.active().items():
                values = add["partitionValues"]
                names = ["id", "name"]
                columns = [_literal(values[name], name) if name in values else name for name in names]
                sql = f"select {', '.join(columns)} from read_parquet(?, hive_partitioning = 0)"
                rows = connection.execute(sql, [str(self.directory / unquote(path))]).fetchall()
                assert len(rows) == json.loads(add["stats"])["numRecords"]
                found += rows
        return found

    def unnamed(self) -> set[str]:
        """Parquet files that the current version does not name."""
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*.parquet")}
        return {name for name in found if not name.startswith("_delta_log/")} - {
            unquote(path) for path in self.active()
        }

    def drop(self) -> None:
        if self.server is None:
            shutil.rmtree(self.directory)
            return
        bucket = self.path.split("/")[2]
        client = self.server.client()  # past the disk: the server keeps metadata of its own
        for entry in client.list_objects_v2(Bucket=bucket)["Contents"]:
            client.delete_object(Bucket=bucket, Key=entry["Key"])
        client.close()

    def versions(self, app: str) -> list[tuple[int, int]]:
        """(version of the table, version of the transaction) for each that the log has of an `appId`."""
        return [
            (version, action["txn"]["version"])
            for version, action in self.actions()
            if action.get("txn", {}).get("appId") == app
        ]


def _literal(value: str | None, name: str) -> str:
    if value is None:
        return f"NULL AS {name}"
    text = value.replace("'", "''")
    return f"{text} AS {name}" if name == "id" else f"'{text}' AS {name}"


def ready(place: Place, **more: Any) -> Sink:
    sink = place.sink(**more)
    sink.prepare_target(harness.SCHEMA)
    return sink


def rows_of(place: Place) -> Counter[Row]:
    return Counter((row[0], row[1]) for row in place.rows())


def append_theirs(place: Place) -> None:
    """Another writer's row."""
    write_deltalake(place.path, pa.table({"id": [77], "name": ["theirs"]}, harness.SCHEMA), mode="append")


class DeltaContract(SinkContract):
    more: ClassVar[dict[str, Any]] = {}
    golden_version = 1
    golden_value: ClassVar = {
        "table": "t", "columns": COLUMNS, "files": [
            {"path": "sinkjob-0d/000000000001-1/x.parquet", "size": 9, "rows": 5, "time": 7, "partition": {},
             "stats": '{"numRecords":5}'},
        ],
    }  # fmt: skip
    golden_bytes = (
        b'{"columns":{"id":"long","name":"string"},"files":[{"partition":{},"path":'
        b'"sinkjob-0d/000000000001-1/x.parquet","rows":5,"size":9,"stats":"{\\"numRecords\\":5}","time":7}],"table":"t"}'
    )

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink, **self.more)
        if not (place.directory / "_delta_log").exists():
            made.prepare_target(harness.SCHEMA)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        return Counter((row[0], row[1]) for row in place.rows())

    def list_staged(self, place: Any) -> set[str]:
        names: set[str] = place.unnamed()
        return names

    def lose_staged(self, place: Any) -> None:
        for name in place.unnamed():
            (place.directory / name).unlink()

    def recreate(self, place: Any) -> None:
        place.drop()


class TestLocal(DeltaContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(tmp_path / "table", str(tmp_path / "table"), {})


class TestPartitioned(TestLocal):
    more: ClassVar = {"partitionBy": ["id"], "maxOpenFiles": 2}


def s3_place(server: S3Server, endpoint: str) -> Place:
    bucket = server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    storage = {
        "endpoint": endpoint,
        "region": server.region,
        "accessKey": server.access_key,
        "secretKey": server.secret_key,
        "pathStyle": True,
    }
    return Place(server.data_dir / bucket / "some/table", f"s3://{bucket}/some/table", storage, server)


@pytest.mark.integration
class TestS3(DeltaContract):
    @pytest.fixture
    def place(self, s3_server: S3Server) -> Place:
        return s3_place(s3_server, s3_server.endpoint)
