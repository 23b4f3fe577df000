"""`--sink hudi`: two copy-on-write Hudi tables in local directories, read back by Hudi on Spark and by hudi-rs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.killmatrix.bench import Bench
from tests.killmatrix.rows import COLUMNS, EPOCH, Rows
from tests.servers import hudi_reader


class HudiBench(Bench):
    """`lake` is partitioned and committed by the driver, `lines` is not, and is committed under the token."""

    def prepare(self) -> None:
        self._readers = [self.stack.enter_context(hudi_reader.spark()), self.stack.enter_context(hudi_reader.rust())]
        self._known: dict[str, Rows] = {"lake": Counter(), "lines": Counter()}

    def sinks(self) -> list[dict[str, Any]]:
        lake: dict[str, Any] = {"table": "lake", "recordKey": ["id"], "partitionBy": ["label"], "hiveStyle": True}
        if self.bulk:
            return [self._sink("lake", lake)]
        lake["maxOpenFiles"] = 3
        return [self._sink("lake", lake), self._sink("lines", {"table": "lines"}, commit={"runOn": "Operator"})]

    def _sink(self, name: str, options: dict[str, Any], **more: Any) -> dict[str, Any]:
        options = {"path": f"out/{name}", **options}
        return {"name": name, "type": "hudi", "guarantee": "ExactlyOnce", "options": options, **more}

    def read(self, sink: str) -> Rows:
        root = self.folder / "out" / sink
        if not list(root.glob(".hoodie/*.commit")):
            return Counter()
        by_spark, by_rust = (_rows(reader, root) for reader in self._readers)
        assert by_spark == by_rust, f"Spark sees {by_spark.total()} rows, hudi-rs {by_rust.total()}"
        gone = self._known[sink] - by_spark
        assert not gone, f"{gone.total()} rows that were visible are gone, such as {next(iter(gone))}"
        self._known[sink] = by_spark
        return by_spark

    def export(self, sink: str, out: Path) -> None:
        self._readers[0].export(str(self.folder / "out" / sink), out, COLUMNS)

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink in (sink["name"] for sink in self.sinks()):
            root = self.folder / "out" / sink
            hoodie = root / ".hoodie"
            private = hoodie / ".sinkjob"
            yield from (str(path) for path in private.rglob("*") if path.is_file() and path.name != "target.json")
            yield from (str(path) for path in root.rglob("*.tmp"))
            completed = {path.name.partition(".")[0] for path in hoodie.glob("*.commit")}
            yield from (str(path) for path in hoodie.glob("*.inflight") if path.name[:17] not in completed)
            written = set(_written(hoodie))
            for path in root.rglob("*.parquet"):
                if str(path.relative_to(root)) not in written:
                    yield str(path)


def _written(hoodie: Path) -> Iterator[str]:
    """The data files that commits name."""
    for path in hoodie.glob("*.commit"):
        for stats in json.loads(path.read_text())["partitionToWriteStats"].values():
            yield from (stat["path"] for stat in stats)


def _rows(reader: hudi_reader.HudiReader, root: Path) -> Rows:
    rows: Rows = Counter()
    for found in reader.rows(str(root)):
        row: Any = tuple(_micros(found[column]) if column == "at" else found[column] for column in COLUMNS)
        rows[row] += 1
    return rows


def _micros(at: Any) -> int | None:
    """Microseconds since 1970."""
    if at is None:
        return None
    since = at - EPOCH
    return int(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds)


BENCH = HudiBench
