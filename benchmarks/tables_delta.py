"""Our `delta` sink against Spark's own streaming write into a Delta table in a local directory.

`tables.py` runs it. Both sides read the same Parquet files, a file a batch; their tables have no partitions and the
same codec, and are read back by Spark. Spark is tuned: without `snapshotPartitions=2` it takes several times as long.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from tests.servers import delta_spark

BATCHES = 30
BATCH_ROWS = 100_000


class DeltaAppend:
    """30 batches of 100,000 rows."""

    name = "delta"
    warm_up = True
    figures: Sequence[Figure] = (Figure("delta-append", 0.6, "ours", "native"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._rows = max(1, int(BATCH_ROWS * scale)) * BATCHES

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {"spark.jars": delta_spark.locate(), **delta_spark.SETTINGS}

    def use(self, bench: Bench) -> None:
        """The session to measure in."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("delta-source", self._rows, BATCHES)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("native", "ours"))}

    def _once(self, name: str) -> float:
        folder = self._bench.new_folder(f"delta-{name}")
        table = folder / "table"
        taken = self._native(table, folder) if name == "native" else self._ours(table, folder)
        found = self._bench.session.read.format("delta").load(str(table)).count()
        if found != self._rows:
            raise RuntimeError(f"{table} has {found} rows, and {self._rows} were written")
        shutil.rmtree(table)
        return taken

    def _native(self, table: Path, folder: Path) -> float:
        begun = time.perf_counter()
        rows = self._bench.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._source))
        writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(table))
        query.awaitTermination()
        return time.perf_counter() - begun

    def _ours(self, table: Path, folder: Path) -> float:
        source = {
            "format": "parquet", "path": str(self._source), "schema": SCHEMA, "options": {"maxFilesPerTrigger": "1"},
        }  # fmt: skip
        sink = {"name": "out", "type": "delta", "options": {"path": str(table)}}
        return self._bench.run(folder, {"source": source, "trigger": {"type": "AvailableNow"}, "sinks": [sink]})
