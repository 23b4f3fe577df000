"""The `hive` sink keeps the contract on a real metastore 4: local tables and tables on a real S3 server."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from tests.servers.hive_metastore import BUCKET, Metastore
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row
from tests.sinks.hive_place import Place, on_s3

pytestmark = pytest.mark.integration


class HiveContract(SinkContract):
    settings: ClassVar[dict[str, Any]]
    golden_version = 1
    golden_bytes = (
        b'{"files":[{"crc32":1,"path":"id=1/part-0d-000000000001-1-0.parquet","rows":5,"size":9}],'
        b'"table":"1795258431/2@file:/warehouse/t"}'
    )
    golden_value: ClassVar = {
        "files": [{"path": "id=1/part-0d-000000000001-1-0.parquet", "size": 9, "crc32": 1, "rows": 5}],
        "table": "1795258431/2@file:/warehouse/t",
    }

    @pytest.fixture
    def place(self, hive_metastore: Metastore, hive_database: str) -> Place:
        return self.make_place(hive_metastore, hive_database)

    def make_place(self, server: Metastore, database: str) -> Place:
        place = Place(server, database, dict(self.settings), server.uri)
        place.sink().prepare_target(harness.SCHEMA)
        return place

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        staged: set[str] = place.staged()
        return staged

    def lose_staged(self, place: Any) -> None:
        shutil.rmtree(place.directory / "_sinkjob" / "staging")

    def recreate(self, place: Any) -> None:
        place.create(place.drop())


class TestUnpartitionedParquet(HiveContract):
    """An external table, made by the sink at a place that it is told."""

    settings: ClassVar = {"format": "parquet"}

    def make_place(self, server: Metastore, database: str) -> Place:
        settings = {**self.settings, "location": str(server.external / database / "somewhere")}
        place = Place(server, database, settings, server.uri)
        place.sink().prepare_target(harness.SCHEMA)
        return place


class TestPartitionedOrc(HiveContract):
    """A table in the metastore's warehouse."""

    settings: ClassVar = {"format": "orc", "partitionBy": ["ID"], "maxOpenFiles": 2, "successFile": True}


class TestPartitionedParquetOnS3(HiveContract):
    settings: ClassVar = {"partitionBy": ["id"], "successFile": True}
    fences = False
    golden_bytes = (
        b'{"files":[{"etags":["e"],"id":"0d","path":"id=1/part-0d-1-1-0.parquet","rows":5,"size":9,"upload":"u"}],'
        b'"table":"1795258431/2@s3a://lake/t"}'
    )
    golden_value: ClassVar = {
        "files": [
            {"path": "id=1/part-0d-1-1-0.parquet", "upload": "u", "etags": ["e"], "size": 9, "id": "0d", "rows": 5},
        ],
        "table": "1795258431/2@s3a://lake/t",
    }

    @pytest.fixture
    def place(self, hive_bucket: S3Server, hive_metastore: Metastore, hive_database: str) -> Place:
        settings = {**self.settings, **on_s3(hive_bucket, hive_database)}
        place = Place(hive_metastore, hive_database, settings, hive_metastore.uri)
        place.sink().prepare_target(harness.SCHEMA)
        return place

    @pytest.fixture(autouse=True)
    def uploads(self, hive_bucket: S3Server, place: Place) -> Iterator[None]:
        self.server, self.prefix = hive_bucket, f"{place.database}/"
        yield
        self.lose_staged(place)

    def list_staged(self, place: Any) -> set[str]:
        client = self.server.client()
        try:
            found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
            return {f"{one['Key']} {one['UploadId']}" for one in found if one["Key"].startswith(self.prefix)}
        finally:
            client.close()

    def lose_staged(self, place: Any) -> None:
        client = self.server.client()
        try:
            for upload in self.list_staged(place):
                key, _, number = upload.partition(" ")
                client.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=number)
        finally:
            client.close()

    def recreate(self, place: Any) -> None:
        table = place.drop(data=False)
        client = self.server.client()
        try:
            for entry in client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix).get("Contents", []):
                client.delete_object(Bucket=BUCKET, Key=entry["Key"])
        finally:
            client.close()
        place.create(table)
