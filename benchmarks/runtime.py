"""The suite `runtime`: what exactly-once costs against Spark alone, what pipelining gains, whether memory stays flat.

`docs/benchmarks.md` says how each figure is taken.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.figures import Measurement, run_suite
from benchmarks.files import BatchWrite, StreamWrite
from benchmarks.jobs import Bench
from benchmarks.memory import Memory
from benchmarks.pipelining import Pipelining

NEEDS_SPARK: dict[str, Callable[[Bench, float], Measurement]] = {
    "batch": BatchWrite,
    "stream": StreamWrite,
    "pipelining": Pipelining,
}
MEMORY = "memory"
NAMES = (*NEEDS_SPARK, MEMORY)


def run(rounds: int, scale: float, only: Collection[str]) -> bool:
    """Run the suite, or those of its measurements that are named; whether every figure is ok."""
    folder = Path(tempfile.mkdtemp(prefix="sinkjob-bench-"))
    wanted = [name for name in NEEDS_SPARK if not only or name in only]
    try:
        good = True
        if wanted:
            bench = Bench(folder)
            try:
                good = run_suite([NEEDS_SPARK[name](bench, scale) for name in wanted], rounds)
            finally:
                bench.close()
        if not only or MEMORY in only:
            good = run_suite([Memory(folder, scale)], rounds) and good
        return good
    finally:
        shutil.rmtree(folder)
