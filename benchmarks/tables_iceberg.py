"""Our `iceberg` sink against Spark's own streaming write, into one REST catalog (Iceberg's reference server).

`tables.py` runs it. Both sides read the same Parquet files, a file a batch. Their tables have the same codec and no
partitions, and are read back by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from tests.servers import iceberg_rest, iceberg_spark

BATCHES = 30
BATCH_ROWS = 100_000
CATALOG = "bench"


class IcebergAppend:
    """30 batches of 100,000 rows."""

    name = "iceberg"
    warm_up = True
    figures: Sequence[Figure] = (Figure("iceberg-append", 1.1, "ours", "native"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        servers = folder / "iceberg-rest"
        servers.mkdir()
        self._server = stack.enter_context(iceberg_rest.serve(servers))
        self._rows = max(1, int(BATCH_ROWS * scale)) * BATCHES
        self._runs = 0

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {
            "spark.jars": iceberg_spark.locate(),
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "rest",
            f"spark.sql.catalog.{CATALOG}.uri": self._server.uri,
        }

    def use(self, bench: Bench) -> None:
        """The session to measure in."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("iceberg-source", self._rows, BATCHES)
        self._bench.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.db")

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("native", "ours"))}

    def _once(self, name: str) -> float:
        self._runs += 1
        table, session = f"db.t{self._runs}", self._bench.session
        folder = self._bench.new_folder(f"iceberg-{name}")
        session.sql(f"CREATE TABLE {CATALOG}.{table} ({SCHEMA}) USING iceberg")
        taken = self._native(table, folder) if name == "native" else self._ours(table, folder)
        session.sql(f"REFRESH TABLE {CATALOG}.{table}")
        found = session.table(f"{CATALOG}.{table}").count()
        if found != self._rows:
            raise RuntimeError(f"{table} has {found} rows, and {self._rows} were written")
        session.sql(f"DROP TABLE {CATALOG}.{table} PURGE")
        return taken

    def _native(self, table: str, folder: Path) -> float:
        begun = time.perf_counter()
        rows = self._bench.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._source))
        writer = rows.writeStream.format("iceberg").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).toTable(f"{CATALOG}.{table}")
        query.awaitTermination()
        return time.perf_counter() - begun

    def _ours(self, table: str, folder: Path) -> float:
        source = {
            "format": "parquet", "path": str(self._source), "schema": SCHEMA, "options": {"maxFilesPerTrigger": "1"},
        }  # fmt: skip
        options = {"catalog": {"type": "rest", "uri": self._server.uri}, "table": table}
        sink = {"name": "out", "type": "iceberg", "options": options}
        return self._bench.run(folder, {"source": source, "trigger": {"type": "AvailableNow"}, "sinks": [sink]})
