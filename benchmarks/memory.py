"""Whether the driver's memory and its ledger stay flat over thousands of small checkpoints.

`runtime.py` lists it; every round is a process of its own (`python -m benchmarks.memory N FOLDER`), in which the real
driver, coordinators, file ledger and `file` sink work through N checkpoints of a few rows. Spark is not there: what it
does per batch does not live in this process. Linux only.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression, median

from benchmarks.checkpoints import SCHEMA, local_coordinators, position, staged
from benchmarks.figures import Figure, Round
from sinkruntime.api import Evidence, SinkIdentity
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.environment import Environment
from sinkruntime.ledger.change import change
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.protocol.events import RaiseEpoch, TargetView
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.protocol.start import SourceView
from sinkruntime.sinks.file import FileSink

#: The first thousand fill what is bounded: the ledger's history, the allocator's pools. Flat is judged over the rest.
CHECKPOINTS = 3_000
LOOK_EVERY = 20
WARM_UP_PART = 1 / 3
MIB = 1024**2
LEDGER_SECONDS = 10.0
IDENTITY = SinkIdentity("00000000-0000-4000-8000-00000000beac", "out", "default/bench")


class Memory:
    """(e) Growth of the process per 1,000 checkpoints, and of the ledger from first to last."""

    name = "memory"
    warm_up = False
    figures: Sequence[Figure] = (
        Figure("memory-mib-per-1000", 0.2, "slope", judged="median"),
        Figure("ledger-growth", 1.05, "ledger", judged="median"),
    )

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._checkpoints = max(8 * LOOK_EVERY, int(CHECKPOINTS * scale))

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        folder = self._folder / f"memory-{index}"
        command = [sys.executable, "-m", "benchmarks.memory", str(self._checkpoints), str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        numbers, resident, ledger = zip(*json.loads(done.stdout), strict=True)
        skipped = int(len(numbers) * WARM_UP_PART)
        slope = linear_regression(numbers[skipped:], resident[skipped:]).slope
        quarter = max(1, (len(ledger) - skipped) // 4)
        growth = median(ledger[-quarter:]) / median(ledger[skipped : skipped + quarter])
        return {"slope": slope * 1000 / MIB, "ledger": growth, "last": resident[-1] / MIB}


async def work(checkpoints: int, folder: Path) -> list[tuple[int, int, int]]:
    """Decide and commit so many checkpoints; (checkpoint, resident bytes, bytes of the ledger), now and then."""
    sink = FileSink(FileSink.Options.model_validate({"path": str(folder / "out"), "format": "csv"}), IDENTITY)
    sink.prepare_target(SCHEMA)
    environment, store = Environment.real(), FileLedgerStore(folder / "ledger")
    await store.create(Ledger(IDENTITY.ledger_id, IDENTITY.job))
    await change(store, lambda ledger: None if ledger.epoch else RaiseEpoch(1), environment, LEDGER_SECONDS)
    driver = Driver(store, DriverSettings(1, "bench", "r1", {"out": Authority.EPOCH}), environment)
    await driver.claim()
    coordinators = local_coordinators(store, sink, environment, in_driver=True)
    running = [asyncio.create_task(coordinator.run()) for coordinator in coordinators]

    async def views() -> dict[str, TargetView]:
        evidence = await asyncio.to_thread(sink.evidence)
        return {"out": TargetView(evidence.checkpoint, evidence.target)}

    async def stage(assignment: Assignment) -> Staging:
        return await asyncio.to_thread(staged, sink, assignment, environment)

    await driver.start(SourceView(IDENTITY.ledger_id, "", None, -1), views)
    seen = []
    for batch in range(checkpoints):
        await driver.checkpoint(position(batch), stage)
        if batch % LOOK_EVERY == 0:
            seen.append((batch, resident_bytes(), (folder / "ledger" / "ledger.json").stat().st_size))
    await driver.drained()
    for coordinator in coordinators:
        coordinator.stop()
    await asyncio.gather(*running)
    _check(sink.evidence(), checkpoints)
    return seen


def _check(evidence: Evidence | None, checkpoints: int) -> None:
    if evidence is None or evidence.checkpoint != checkpoints:
        raise RuntimeError(f"the target proves {evidence}, and {checkpoints} checkpoints were decided")


def resident_bytes() -> int:
    """What this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(int(sys.argv[1]), Path(sys.argv[2])))))
