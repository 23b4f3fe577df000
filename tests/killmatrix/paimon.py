"""`--sink paimon`: two tables of a local warehouse, one partitioned, read back by
Paimon's own library after every kill, by its engine in Java at the end."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.killmatrix.bench import Bench
from tests.killmatrix.rows import COLUMNS, EPOCH, Rows
from tests.servers import paimon, paimon_java

WAREHOUSE = "out"


class PaimonBench(Bench):
    """`lake` is committed by the driver (the default), `lines` by the coordinator under the token."""

    def prepare(self) -> None:
        self._peer = self.stack.enter_context(paimon.serve())
        self._known: dict[str, Rows] = {}

    def sinks(self) -> list[dict[str, Any]]:
        lake = {"table": "db.lake", "partitionBy": ["label"], "maxOpenFiles": 100 if self.bulk else 3}
        lines = {"table": "db.lines", "targetFileSize": "1KiB"}
        sinks: list[dict[str, Any]] = [
            {"name": "lake", "options": lake},
            {"name": "lines", "options": lines, "select": list(reversed(COLUMNS)), "commit": {"runOn": "Operator"}},
        ]
        if self.bulk:
            del sinks[1:]
        for sink in sinks:
            sink |= {"type": "paimon", "guarantee": "ExactlyOnce"}
            sink["options"]["catalog"] = {"warehouse": WAREHOUSE}
        return sinks

    def read(self, sink: str) -> Rows:
        known = self._known.get(sink, Counter())
        if not (self.folder / WAREHOUSE / "db.db" / sink / "snapshot").exists():
            assert not known, "the table is gone"
            return Counter()
        rows: Rows = Counter()
        for record in self._peer.rows(self.folder / WAREHOUSE, f"db.{sink}"):
            if record["at"] is not None:
                record["at"] = (record["at"] - EPOCH) // datetime.timedelta(microseconds=1)
            rows[tuple(record[column] for column in COLUMNS)] += 1
        vanished = known - rows
        assert not vanished, f"{vanished.total()} rows that were visible are gone, such as {next(iter(vanished))}"
        self._known[sink] = rows
        return rows

    def differences(self, expected: Rows) -> Iterator[str]:
        """Paimon's own engine reads them, too."""
        with paimon_java.serve() as java:
            for sink in ("lake", "lines"):
                columns = COLUMNS if sink == "lake" else tuple(reversed(COLUMNS))
                found = java.rows(self.folder / WAREHOUSE, f"db.{sink}")
                rows: Rows = Counter(
                    tuple(dict(zip(columns, row, strict=True))[column] for column in COLUMNS) for row in found
                )
                missing, extra = (expected - rows).total(), (rows - expected).total()
                if missing or extra:
                    yield f"sink {sink}, read by Paimon in Java: {missing} rows missing, {extra} extra"

    def export(self, sink: str, out: Path) -> None:
        self._peer.export(self.folder / WAREHOUSE, f"db.{sink}", out)

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink in (sink["name"] for sink in self.sinks()):
            for name in sorted(self._peer.leftovers(self.folder / WAREHOUSE, f"db.{sink}")):
                yield f"db.{sink}: {name}"


BENCH = PaimonBench
