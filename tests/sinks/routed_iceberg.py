"""Where the tests of the routed Iceberg sink write: a catalog with a table for each id, and an independent look at all.

What is visible is read by pyiceberg's own scan, which the sink does not use. Holds no test.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from sinkruntime.api import Sink
from sinkruntime.sinks.iceberg import IcebergSink
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.routed import IcebergTables
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row

NAMESPACE = "lake"
BOOKS = "sinkjob_routes_"


@dataclass(frozen=True, slots=True)
class RoutedPlace:
    """A SQL catalog (SQLite) in a folder; rows go to `lake.rows_<id>`."""

    folder: Path
    template: str = "lake.rows_${id}"

    @property
    def properties(self) -> dict[str, str]:
        uri = f"sqlite:///{self.folder}/catalog.db"
        return {"type": "sql", "uri": uri, "warehouse": f"file://{self.folder}/warehouse"}

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        opened = load_catalog("default", **self.properties)
        try:
            yield opened
        finally:
            opened.close()

    def options(self, **more: Any) -> Options:
        given = {"catalog": self.properties, "table": self.template, "createTable": True}
        return Options.model_validate({**given, **more})

    def sink(
        self, ledger_id: str = LEDGER, sink: str = "lake", schema: pa.Schema = harness.SCHEMA, **more: Any
    ) -> Sink:
        made = IcebergSink(self.options(**more), harness.identity(ledger_id, sink))
        made.prepare_target(schema)
        return made

    def names(self) -> list[str]:
        """All tables but books."""
        with self.catalog() as catalog:
            found = [".".join(name) for name in catalog.list_tables(NAMESPACE)]
        return sorted(name for name in found if BOOKS not in name)

    def load(self, name: str) -> Table:
        with self.catalog() as catalog:
            return catalog.load_table(name)

    def drop(self, name: str) -> None:
        """With its files, as `DROP TABLE … PURGE`."""
        location = self.load(name).location().removeprefix("file://")
        with self.catalog() as catalog:
            catalog.drop_table(name)
        shutil.rmtree(location)

    def drop_all(self) -> None:
        with self.catalog() as catalog:
            for name in catalog.list_tables(NAMESPACE):
                catalog.drop_table(name)

    def rows_of(self, name: str) -> list[Row]:
        return [(row["id"], row["name"]) for row in self.load(name).scan().to_arrow().to_pylist()]

    def rows(self) -> Counter[Row]:
        return Counter(row for name in self.names() for row in self.rows_of(name))

    def staged(self) -> set[str]:
        """Data files that no snapshot of any table refers to."""
        found = set()
        for path in (self.folder / "warehouse").rglob("*.parquet"):
            found.add(str(path))
        for name in self.names():
            table = self.load(name)
            for snapshot in table.metadata.snapshots:
                for manifest in snapshot.manifests(table.io):
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                    found -= {entry.data_file.file_path.removeprefix("file://") for entry in entries}
        return found

    def lose_staged(self) -> None:
        for path in self.staged():
            os.unlink(path)

    def checkpoints(self, name: str) -> list[str]:
        """The evidence in a table's snapshots, oldest first."""
        found = [snapshot.summary for snapshot in self.load(name).metadata.snapshots]
        return [
            str(summary["sinkjob.checkpoint"]) for summary in found if summary and summary.get("sinkjob.checkpoint")
        ]

    def receipts(self, ledger_id: str = LEDGER) -> list[str]:
        tables = IcebergTables(self.options(), harness.identity(ledger_id))
        found = [name for origin in tables.origins() for name in tables.receipts(origin)]
        tables.close()
        return found
