"""How long a table sink's committer takes for a thousand writers' committables, and its memory for 10,000 files.

`tables.py` lists it. Every value comes from a process of its own (`python -m benchmarks.table_commits FORMAT WRITERS
FILES FOLDER`). One file is staged by the sink's own writer; the others are further names of it, and committables like
its own: a committer opens no data file. Linux only.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.figures import Figure, Round
from benchmarks.jobs import Bench
from benchmarks.memory import resident_bytes
from benchmarks.stopwatch import Stopwatch
from sinkruntime.api import Answer, CommitRequest, Committable, Lineage, Sink, SinkIdentity, WriterContext
from sinkruntime.environment import Environment
from sinkruntime.sinks.delta import DeltaSink
from sinkruntime.sinks.iceberg import IcebergSink, catalog, snapshot

WRITERS = 1_000
FILES = 10_000
MIB = 1024**2
IDENTITY = SinkIdentity("00000000-0000-4000-8000-00000000beac", "out", "default/bench")
COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "carrier": pa.string(),
    "distance": pa.int64(),
    "delay": pa.float64(),
    "note": pa.string(),
}
SCHEMA = pa.schema(COLUMNS)
ROWS = 100


class TableCommits:
    """The two figures of one format."""

    warm_up = False
    settings: Mapping[str, str] = {}

    def __init__(self, format_name: str, folder: Path, scale: float) -> None:
        self.name = f"{format_name}-commits"
        self.figures: Sequence[Figure] = (
            Figure(f"{format_name}-commit-seconds", 1.0, "seconds"),
            Figure(f"{format_name}-commit-mib", 128, "mib", judged="median"),
        )
        self._format = format_name
        self._folder = folder
        self._scale = scale

    def use(self, bench: Bench) -> None:
        """It needs no session."""

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        writers, files = max(1, int(WRITERS * self._scale)), max(1, int(FILES * self._scale))
        quick = self._once(f"{index}-quick", writers, writers)
        large = self._once(f"{index}-large", writers, files)
        return {"seconds": quick["seconds"], "mib": large["mib"], "large-seconds": large["seconds"]}

    def _once(self, name: str, writers: int, files: int) -> Mapping[str, float]:
        folder = self._folder / f"{self.name}-{name}"
        command = [sys.executable, "-m", "benchmarks.table_commits", self._format, str(writers), str(files)]
        done = subprocess.run([*command, str(folder)], check=True, stdout=subprocess.PIPE, text=True)
        found: Mapping[str, float] = json.loads(done.stdout)
        return found


def iceberg_commits(stack: ExitStack, folder: Path, scale: float) -> TableCommits:
    """For the suite's table of measurements."""
    return TableCommits("iceberg", folder, scale)


def delta_commits(stack: ExitStack, folder: Path, scale: float) -> TableCommits:
    """For the suite's table of measurements."""
    return TableCommits("delta", folder, scale)


def measure(format_name: str, writers: int, files: int, folder: Path) -> Mapping[str, float]:
    """Seconds of the commit, without those that the catalog took, and how much the process grew."""
    folder.mkdir(parents=True)
    sink = _iceberg(folder) if format_name == "iceberg" else _delta(folder)
    sink.prepare_target(SCHEMA)
    committer = sink.create_aggregated_committer()
    assert committer is not None, "a table's commit is one"
    committer.open()
    committer.commit([_request(sink, 1, committer.combine, [_staged(sink, 1)])])  # what is imported late is there now
    parts = _clones(_staged(sink, 2), writers, files, folder)
    packed = [sink.committable_serializer.serialize(part) for part in parts]
    del parts
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before_bytes, waited = resident_bytes(), Stopwatch((catalog, "load_table"), (snapshot, "send"))
    begun = time.perf_counter()
    with waited:
        reader = sink.committable_serializer
        staged = [reader.deserialize(reader.version, part) for part in packed]
        request = _request(sink, 2, committer.combine, staged)
        committer.commit([request])
    seconds = time.perf_counter() - begun - sum(map(waited.total, waited.seconds))
    peak_bytes = _peak_bytes()
    if request.answer is not Answer.COMMITTED:
        raise RuntimeError(f"the commit was answered {request.answer}: {request.message}")
    committer.close()
    return {"seconds": seconds, "mib": (peak_bytes - before_bytes) / MIB}


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def _iceberg(folder: Path) -> Sink:
    place = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return IcebergSink(
        IcebergSink.Options.model_validate({"catalog": place, "table": "db.t", "createTable": True}), IDENTITY
    )


def _delta(folder: Path) -> Sink:
    return DeltaSink(DeltaSink.Options.model_validate({"path": str(folder / "table")}), IDENTITY)


def _staged(sink: Sink, checkpoint: int) -> Committable:
    lineage, clock = Lineage(checkpoint, 1, 0, 1, 0), Environment.real().clock
    writer = sink.create_writer(WriterContext(IDENTITY, lineage, "bench", SCHEMA, lambda name, amount=1: None, clock))
    writer.open()
    values = [[number, number, f"c{number % 7}", number * 3, number / 7, f"note {number}"] for number in range(ROWS)]
    writer.write(pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in values], schema=SCHEMA))
    writer.flush(end_of_input=True)
    committable = writer.prepare_commit(checkpoint)
    writer.close()
    assert committable is not None, "rows were written"
    return committable


def _clones(one: Committable, writers: int, files: int, folder: Path) -> list[Committable]:
    """Committables of so many writers that share so many files; each file is there, as another name of the first."""
    (item,) = one["files"]
    key = "name" if "name" in item else "path"
    (found,) = folder.rglob(os.path.basename(item[key]))
    made = []
    for writer in range(writers):
        part = {**one, "files": []}
        for number in range(files // writers + (writer < files % writers)):
            name = f"{writer:05d}-{number:05d}-{found.name}"
            os.link(found, found.with_name(name))
            part["files"].append({**copy.deepcopy(item), key: item[key].replace(found.name, name)})
        made.append(part)
    return made


Combine = Callable[[Sequence[tuple[Lineage, Committable]]], Committable]


def _request(sink: Sink, checkpoint: int, combine: Combine, staged: Sequence[Any]) -> CommitRequest:
    """As the coordinator asks for it."""
    count = len(staged)
    pairs = [(Lineage(checkpoint, 1, subtask, count, 0), part) for subtask, part in enumerate(staged)]
    merged = [(at, part) for at, part in sink.pre_commit(pairs)]
    return CommitRequest(combine(merged), Lineage(checkpoint, 1, 0, 1, 0), checkpoint - 1, order=(1, checkpoint))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
