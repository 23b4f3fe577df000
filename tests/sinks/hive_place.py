"""A Hive table for the tests of the `hive` sink, and a look at it that shares no code with the sink.

Rows are read as the metastore shows them: from the directories of its partitions, by DuckDB or pyarrow.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.orc

from sinkruntime.sinks.hive import HiveSink
from sinkruntime.sinks.hive.options import Options
from tests.servers.hive_metastore import BUCKET, Metastore
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row


@dataclass(frozen=True, slots=True)
class Place:
    """A table in a database of its own. `uri` is the metastore's address as the sink is told it."""

    server: Metastore
    database: str
    settings: dict[str, Any]
    uri: str
    name: str = field(default_factory=lambda: f"t_{uuid.uuid4().hex[:8]}")

    def options(self, **more: Any) -> Options:
        table = {"metastore": self.uri, "table": f"{self.database}.{self.name}", "createTable": True}
        return Options.model_validate({**table, **self.settings, **more})

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> HiveSink:
        return HiveSink(self.options(**more), harness.identity(ledger_id, sink))

    def table(self) -> Any:
        """The metastore's record of it."""
        from hive_metastore.ttypes import ClientCapabilities, GetTableRequest

        request = GetTableRequest(dbName=self.database, tblName=self.name, capabilities=ClientCapabilities([2]))
        with self.server.client() as client:
            return client.get_table_req(request).table

    def partitions(self) -> list[Any]:
        with self.server.client() as client:
            found: list[Any] = client.get_partitions(self.database, self.name, -1)
            return found

    @property
    def keys(self) -> list[str]:
        """Names of the partition columns."""
        return [key.name for key in self.table().partitionKeys]

    @property
    def directory(self) -> Path:
        """Where the table's files are, in the file system of this machine."""
        return self.path_of(self.table().sd.location)

    def path_of(self, location: str) -> Path:
        bucket = f"s3a://{BUCKET}/"
        if location.startswith(bucket):
            return self.server.bucket / location.removeprefix(bucket)
        return Path("/" + location.removeprefix("file:").lstrip("/"))

    def rows(self) -> Counter[Row]:
        """(id, name) of every row that the metastore leads to."""
        table = self.table()
        keys = self.keys
        if not keys:
            return Counter(read(self.path_of(table.sd.location), {}))
        found: Counter[Row] = Counter()
        for partition in self.partitions():
            fixed = dict(zip(keys, partition.values, strict=True))
            found.update(read(self.path_of(partition.sd.location), fixed))
        return found

    def staged(self) -> set[str]:
        staging = self.directory / "_sinkjob" / "staging"
        return {str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()}

    def drop(self, data: bool = True) -> Any:
        """Drop the table; what it was, to be made again."""
        table = self.table()
        with self.server.client() as client:
            client.drop_table(self.database, self.name, data)
        if data:
            shutil.rmtree(self.path_of(table.sd.location), ignore_errors=True)
        return table

    def create(self, table: Any) -> None:
        """Make it by the metastore's own client."""
        with self.server.client() as client:
            client.create_table(table)


def on_s3(server: S3Server, database: str) -> dict[str, Any]:
    """Options for a table in the bucket that the metastore knows."""
    return {"location": f"s3a://{BUCKET}/{database}", "storage": server.storage()}


def files_of(directory: Path) -> list[Path]:
    """As Hive and Spark list them: not below it, and not what begins with `_` or `.`."""
    return sorted(
        Path(entry) for entry in os.scandir(directory) if entry.is_file() and entry.name[0] not in "_."
    )  # fmt: skip


def read(directory: Path, fixed: dict[str, str]) -> Iterator[Row]:
    for path in files_of(directory):
        for record in records(path):
            row = {**record, **fixed}
            yield int(str(row["id"])), row["name"]


def records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".orc":
        rows: list[dict[str, Any]] = pyarrow.orc.read_table(path).to_pylist()
        return rows
    with duckdb.connect() as connection:
        relation = connection.execute("SELECT * FROM read_parquet(?, hive_partitioning = false)", [str(path)])
        names = [column[0] for column in relation.description or ()]
        return [dict(zip(names, values, strict=True)) for values in relation.fetchall()]
