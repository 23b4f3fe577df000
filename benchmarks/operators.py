"""The suite `operator`: how fast it commits and starts jobs, what that costs the API server, and its memory.

`docs/benchmarks.md` says how each figure is taken.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.commits import Commits
from benchmarks.figures import Measurement, run_suite
from benchmarks.footprint import Footprint
from benchmarks.submits import SteadySubmits, SubmitsAtOnce
from tests.servers.programs import CONTROL_PLANE, KUBE_SCHEDULER, KWOK, ProgramMissingError, locate

PROGRAMS = (*CONTROL_PLANE, KUBE_SCHEDULER, KWOK)

MEASUREMENTS: dict[str, Callable[[Path, float], Measurement]] = {
    "commits": Commits,
    "submits": SteadySubmits,
    "burst": SubmitsAtOnce,
    "footprint": Footprint,
}
NAMES = tuple(MEASUREMENTS)


def run(rounds: int, scale: float, only: Collection[str]) -> bool:
    """Run the suite, or those of its measurements that are named; whether every figure is ok.

    Raises SystemExit where a program is missing.
    """
    try:
        for program in PROGRAMS:
            locate(program)
    except ProgramMissingError as error:
        raise SystemExit(str(error)) from error
    folder = Path(tempfile.mkdtemp(prefix="sinkjob-bench-"))
    try:
        made = [MEASUREMENTS[name](folder, scale) for name in NAMES if not only or name in only]
        return run_suite(made, rounds)
    finally:
        shutil.rmtree(folder)
