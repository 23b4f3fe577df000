"""Where the tests of the routed Delta sink write: a folder with a table for each id, and an independent look at all.

What is visible is read by the log and DuckDB, as of a single table (`test_delta.Place`). Holds no test.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinkruntime.api import Sink
from sinkruntime.sinks.delta import DeltaSink
from sinkruntime.sinks.delta.options import Options
from sinkruntime.sinks.delta.routed import DeltaTables
from sinkruntime.sinks.delta.table import app_id
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row
from tests.sinks.test_delta import Place


@dataclass(frozen=True, slots=True)
class RoutedPlace:
    """Rows go to `rows_<id>` in a folder."""

    folder: Path
    template: str = "rows_${id}"

    def options(self, **more: Any) -> Options:
        return Options.model_validate({"path": f"{self.folder}/{self.template}", **more})

    def sink(
        self, ledger_id: str = LEDGER, sink: str = "lake", schema: pa.Schema = harness.SCHEMA, **more: Any
    ) -> Sink:
        made = DeltaSink(self.options(**more), harness.identity(ledger_id, sink))
        made.prepare_target(schema)
        return made

    def names(self) -> list[str]:
        """All tables but books."""
        found = [path.parent.relative_to(self.folder) for path in self.folder.rglob("_delta_log")]
        return sorted(str(path) for path in found if not str(path).startswith("_sinkjob"))

    def table(self, name: str) -> Place:
        return Place(self.folder / name, str(self.folder / name), {})

    def drop(self, name: str) -> None:
        shutil.rmtree(self.folder / name)

    def drop_all(self) -> None:
        shutil.rmtree(self.folder)

    def rows_of(self, name: str) -> list[Row]:
        return [(row[0], row[1]) for row in self.table(name).rows()]

    def rows(self) -> Counter[Row]:
        return Counter(row for name in self.names() for row in self.rows_of(name))

    def staged(self) -> set[str]:
        """Data files that no table names."""
        return {f"{name}/{path}" for name in self.names() for path in self.table(name).unnamed()}

    def lose_staged(self) -> None:
        for path in self.staged():
            (self.folder / path).unlink()

    def checkpoints(self, name: str) -> list[str]:
        """The evidence in a table's log, oldest first."""
        return [str(number) for _, number in self.table(name).versions(app_id(harness.identity()))]

    def receipts(self, ledger_id: str = LEDGER) -> list[str]:
        tables = DeltaTables(self.options(), harness.identity(ledger_id))
        return [name for origin in tables.origins() for name in tables.receipts(origin)]
