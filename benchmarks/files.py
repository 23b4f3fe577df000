"""Our `file` sink against Spark's own writers, and the protocol's own cost in the same runs.

`runtime.py` lists them. Both sides read the same Parquet files in the same session, and write with the same codec.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench, check_rows
from benchmarks.stopwatch import Stopwatch
from sinkruntime.driver.driver import Driver
from sinkruntime.spark.checkpoint_files import CheckpointFiles
from sinkruntime.spark.passes import StagingPass

BATCH_ROWS = 5_000_000
BATCH_FILES = 4
STREAM_ROWS = 100_000
STREAM_BATCHES = 30


class BatchWrite:
    """(a) A batch job with one Parquet sink against `df.write.parquet`."""

    name = "batch"
    warm_up = True
    figures: Sequence[Figure] = (
        Figure("batch-arrow", 1.25, "arrow", "native"),
        Figure("batch-spark", 1.05, "spark", "native"),
    )

    def __init__(self, bench: Bench, scale: float) -> None:
        self._bench = bench
        self._rows = max(BATCH_FILES, int(BATCH_ROWS * scale)) // BATCH_FILES * BATCH_FILES
        self._source = Path()

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("batch-source", self._rows, BATCH_FILES)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("native", "arrow", "spark"))}

    def _once(self, name: str) -> float:
        folder = self._bench.new_folder(f"batch-{name}")
        out = folder / "out"
        if name == "native":
            begun = time.perf_counter()
            rows = self._bench.session.read.schema(SCHEMA).parquet(str(self._source))
            rows.write.option("compression", "snappy").parquet(str(out))
            taken = time.perf_counter() - begun
        else:
            source = {"format": "parquet", "path": str(self._source), "schema": SCHEMA}
            sink = {"name": "out", "type": "file", "options": {"path": str(out), "stagedBy": name}}
            taken = self._bench.run(folder, {"mode": "Batch", "source": source, "sinks": [sink]})
        check_rows(out, self._rows)
        return taken


class StreamWrite:
    """(b) A streaming job with one Parquet sink against Spark's streaming file sink; (c) what of it is the protocol."""

    name = "stream"
    warm_up = True
    figures: Sequence[Figure] = (
        Figure("stream", 1.05, "ours", "native"),
        Figure("protocol-milliseconds", 20, "protocol", judged="median"),
    )

    def __init__(self, bench: Bench, scale: float) -> None:
        self._bench = bench
        self._rows = max(1, int(STREAM_ROWS * scale)) * STREAM_BATCHES
        self._source = Path()

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("stream-source", self._rows, STREAM_BATCHES)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        values: dict[str, float] = {}
        for name in in_turn(index, ("native", "ours")):
            values |= self._native() if name == "native" else self._ours()
        return values

    def _native(self) -> Round:
        folder = self._bench.new_folder("stream-native")
        begun = time.perf_counter()
        rows = self._bench.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._source))
        writer = rows.writeStream.format("parquet").option("compression", "snappy").option("path", str(folder / "out"))
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        taken = time.perf_counter() - begun
        check_rows(folder / "out", self._rows)
        return {"native": taken}

    def _ours(self) -> Round:
        folder = self._bench.new_folder("stream-ours")
        out = folder / "out"
        source = {
            "format": "parquet", "path": str(self._source), "schema": SCHEMA, "options": {"maxFilesPerTrigger": "1"},
        }  # fmt: skip
        sink = {"name": "out", "type": "file", "options": {"path": str(out)}}
        spec = {"source": source, "trigger": {"type": "AvailableNow"}, "sinks": [sink]}
        names = [(Driver, "checkpoint"), (StagingPass, "run"), (CheckpointFiles, "position")]
        with Stopwatch(*names, (CheckpointFiles, "watermark_ms")) as watch:
            taken = self._bench.run(folder, spec)
        check_rows(out, self._rows)
        return {"ours": taken, "protocol": 1000 * median(protocol_seconds(watch))}


def protocol_seconds(watch: Stopwatch) -> list[float]:
    """By checkpoint: what is neither staging nor Spark's: skip checks, lineage, payloads, decision, ledger."""
    seconds = watch.seconds
    calls = zip(
        seconds["checkpoint"], seconds["run"], seconds["position"][-len(seconds["run"]) :], seconds["watermark_ms"],
        strict=True,
    )  # fmt: skip
    return [checkpoint - staging + position + watermark for checkpoint, staging, position, watermark in calls]
