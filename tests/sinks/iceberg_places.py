"""Where the Iceberg sink's tests write: a table in a catalog of its own, and an independent look at it.

What is visible is read by pyiceberg's own scan, which the sink does not use. Holds no test.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from sinkruntime.api import Sink
from sinkruntime.sinks.iceberg import IcebergSink
from sinkruntime.sinks.iceberg.options import Options
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.s3 import S3Server
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row

TABLE = "lake.rows"
COLUMNS = (
    NestedField(field_id=1, name="id", field_type=LongType(), required=False),
    NestedField(field_id=2, name="name", field_type=StringType(), required=False),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A catalog and a table in it. `endpoint`, where set, is what the sink is given instead of the catalog's own."""

    properties: dict[str, str]
    table: str = TABLE
    endpoint: str = ""
    buckets: str = ""  # of a table on S3: the folder in which the server keeps each bucket as a folder
    more: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        opened = load_catalog("default", **self.properties)
        try:
            yield opened
        finally:
            opened.close()

    def make(self, schema: Schema | None = None, **more: Any) -> None:
        with self.catalog() as catalog:
            catalog.create_namespace_if_not_exists(self.table.split(".")[0])
            catalog.create_table(self.table, schema or Schema(*COLUMNS), **more)

    def drop(self) -> None:
        with self.catalog() as catalog:
            catalog.drop_table(self.table)

    def load(self) -> Table:
        with self.catalog() as catalog:
            return catalog.load_table(self.table)

    def options(self, **more: Any) -> Options:
        given = dict(self.properties) | ({"uri": self.endpoint} if self.endpoint else {})
        return Options.model_validate({"catalog": given, "table": self.table, **self.more, **more})

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> Sink:
        return IcebergSink(self.options(**more), harness.identity(ledger_id, sink))

    def rows(self, branch: str = "main") -> Counter[Row]:
        table = self.load()
        scan = table.scan() if branch == "main" else table.scan().use_ref(branch)
        found = scan.to_arrow().to_pylist()
        return Counter((row["id"], row["name"]) for row in found)

    def local(self, location: str) -> str:
        """The path of a file of the table."""
        return f"{self.buckets}/{location.removeprefix('s3://')}" if self.buckets else location.removeprefix("file://")

    def data_files(self) -> set[str]:
        """All files of the table that are no metadata."""
        data = self.local(f"{self.load().location()}/data")
        return {os.path.join(folder, name) for folder, _, names in os.walk(data) for name in names}

    def orphan_manifests(self) -> set[str]:
        """Manifests and manifest lists that no snapshot refers to."""
        table = self.load()
        known = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        for snapshot in table.metadata.snapshots:
            known |= {item.manifest_path for item in snapshot.manifests(table.io)}
        folder = Path(self.local(f"{table.location()}/metadata"))
        return {str(path) for path in folder.rglob("*.avro")} - {self.local(path) for path in known}

    def referred(self) -> set[str]:
        """Those that some snapshot refers to."""
        table = self.load()
        found = set()
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                found |= {self.local(entry.data_file.file_path) for entry in entries}
        return found

    def staged(self) -> set[str]:
        return self.data_files() - self.referred()

    def lose_staged(self) -> None:
        for path in self.staged():
            os.unlink(path)


def sql_place(folder: Path, **more: Any) -> Place:
    """A place in a SQL catalog (SQLite) of its own."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return Place(properties, **more)


def rest_place(server: IcebergRest, endpoint: str = "", **more: Any) -> Place:
    """A place in a namespace of its own; `endpoint`: a proxy's, for the sink alone."""
    properties = {"type": "rest", "uri": server.uri}
    return Place(properties, f"n{uuid.uuid4().hex[:12]}.rows", endpoint, **more)


def s3_place(folder: Path, server: S3Server) -> Place:
    """A SQL catalog whose tables lie in a bucket of their own."""
    bucket = server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"s3://{bucket}/warehouse",
        "s3.endpoint": server.endpoint,
        "s3.region": server.region,
        "s3.access-key-id": server.access_key,
        "s3.secret-access-key": server.secret_key,
    }
    return Place(properties, buckets=str(server.data_dir))
