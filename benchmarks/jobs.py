"""Runs jobs in the one SparkSession of a benchmark, by the same code as `sinkjob run`.

The measurements call `Bench.run` for ours and use `Bench.session` for what Spark does by itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pydantic import BaseModel
from pyspark.sql import SparkSession

from benchmarks.stopwatch import Stopwatch
from sinkruntime.api import Sink
from sinkruntime.errors import ExitCode
from sinkruntime.local import job as local_job
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.spark.session import SessionSettings, open_session
from sinkruntime.spec.bind import BoundJob, BoundSink, bind
from sinkruntime.spec.load import Manifest, parse_object
from sinkruntime.spec.options_from import Secrets, local_places

MASTER = "local[2]"
REPOSITORY = Path(__file__).resolve().parent.parent
SPARK_CONF = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}

#: Six columns of the usual kinds, from the row's number `id`.
COLUMNS = [
    "id",
    "timestamp_micros(1700000000000000 + id * 1000) AS at",
    "concat('category-', CAST(pmod(hash(id), 50) AS STRING)) AS category",
    "concat('user-', CAST(pmod(hash(id, 1), 100000) AS STRING)) AS account",
    "CAST(pmod(hash(id, 2), 1000) AS INT) AS quantity",
    "CAST(pmod(hash(id, 3), 10000000) AS DOUBLE) / 100 AS amount",
]
SCHEMA = "id BIGINT, at TIMESTAMP, category STRING, account STRING, quantity INT, amount DOUBLE"


class Bench:
    """A folder and a SparkSession that all runs share."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are further ones of Spark, such as jars, that must be there when it starts."""
        self.folder = folder
        self._runs = 0
        source = {"format": "parquet", "path": str(folder), "schema": SCHEMA}
        spec = self._job({"source": source, "sinks": [_NOWHERE]}).job.spec
        self.session: SparkSession = open_session(
            SessionSettings("bench", spec, folder, MASTER, defaults=settings or {})
        )
        # `sinkjob run` ends Spark when it has ended; here the next run takes the same session.
        self.session.stop = lambda: None  # type: ignore[method-assign]

    def close(self) -> None:
        """End Spark."""
        SparkSession.stop(self.session)

    def new_folder(self, name: str) -> Path:
        """A folder of one run."""
        self._runs += 1
        folder = self.folder / f"{name}-{self._runs}"
        folder.mkdir(parents=True)
        return folder

    def write_source(self, name: str, rows: int, files: int) -> Path:
        """Parquet files of `SCHEMA`, all of the same number of rows."""
        path = self.folder / name
        self.session.range(0, rows, 1, files).selectExpr(*COLUMNS).write.parquet(str(path))
        return path

    def run(self, folder: Path, spec: Mapping[str, Any], own: tuple[type[Sink], BaseModel] | None = None) -> float:
        """Run a job to its end; the seconds that it took with the session there. `own` stands in for its only sink."""
        manifest = self._job(spec, folder)
        job = bind(manifest, local_places(folder)) if own is None else _bound(manifest, *own)
        with Stopwatch((local_job, "open_session")) as watch:
            begun = time.perf_counter()
            code = local_job.run_local(job, local_job.RunOptions(master=MASTER), _Silent())
            taken = time.perf_counter() - begun - watch.total("open_session")
        if code is not ExitCode.DONE:
            raise RuntimeError(f"a job of the benchmark ended with {code!r}")
        return taken

    def _job(self, spec: Mapping[str, Any], folder: Path | None = None) -> Manifest:
        whole = {
            "apiVersion": "sinkjob.io/v1alpha1",
            "kind": "SinkJob",
            "metadata": {"name": "bench", "namespace": "default"},
            "spec": {"sparkConf": SPARK_CONF, "driver": {"memory": "2g"}, **spec},
        }
        return Manifest(job=parse_object(whole), base=folder or self.folder)


_NOWHERE = {"name": "none", "type": "file", "options": {"path": "none"}}


def _bound(manifest: Manifest, sink_class: type[Sink], options: BaseModel) -> BoundJob:
    return BoundJob(manifest, (BoundSink(manifest.job.spec.sinks[0], sink_class, options),), Secrets({}), Secrets({}))


def check_rows(folder: Path, expected: int) -> None:
    """Raises unless the visible Parquet files have just so many rows; then removes the folder."""
    files = [
        path for path in folder.rglob("*.parquet") if not any(p[0] in "_." for p in path.relative_to(folder).parts)
    ]
    found = sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)
    if found != expected:
        raise RuntimeError(f"{folder} has {found} rows, and {expected} were written")
    shutil.rmtree(folder)


class _Silent:
    """A display that shows nothing."""

    def started(self, facts: Mapping[str, str]) -> None:
        """See `Display`."""

    def batch(self, batch_id: int, rows: int, rows_per_second: float) -> None:
        """See `Display`."""

    def ledger(self, ledger: Ledger) -> None:
        """See `Display`."""

    def said(self, text: str) -> None:
        """See `Display`."""

    def ended(self, summary: Mapping[str, str]) -> None:
        """See `Display`."""
