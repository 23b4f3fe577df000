"""`make kill-matrix`: kills a streaming job at every step and at random instants, and counts its rows.

The last line is `SINK: n kills, missing 0, extra 0, leftovers 0`; the exit code is 0 only then. A failed run leaves
its folder, and says where.
"""

from __future__ import annotations

import argparse
import importlib
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.killmatrix.bench import Bench
from tests.killmatrix.bulk import BulkMatrix
from tests.killmatrix.matrix import Result, RowMatrix
from tests.killmatrix.plan import FULL, bulk_plan, plan
from tests.killmatrix.rows import Input
from tests.killmatrix.tree import HarnessError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a matrix; 0 when nothing is missing, extra, or left over."""
    parser = argparse.ArgumentParser(prog="python -m tests.killmatrix", description=__doc__)
    parser.add_argument("--sink", default="file", help="file, file-s3, or a later sink's name")
    parser.add_argument("--kills", type=int, default=FULL, help=f"{FULL} or more: every step; fewer: a sample")
    parser.add_argument("--seed", type=int, default=1, help="decides the plan and the input")
    parser.add_argument("--rows", type=int, default=0, help="so many rows and random instants only; 0: small files")
    parser.add_argument("--keep", action="store_true", help="leave the job's folder where it is")
    asked = parser.parse_args(arguments)
    print(f"kill matrix of {asked.sink}: {asked.kills} kills, seed {asked.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"sinkjob-kill-{asked.sink}-"))
    result: Result | None = None
    try:
        result = run_matrix(asked.sink, asked.kills, asked.seed, folder, asked.rows)
    except HarnessError as error:
        print(f"the harness failed: {error}", flush=True)
    if result is None or not result.good or asked.keep:
        print(f"the job's folder: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    if result is None:
        return 1
    print(result.line(asked.sink), flush=True)
    return 0 if result.good and result.kills == asked.kills else 1


def run_matrix(sink: str, kills: int, seed: int, folder: Path, rows: int = 0) -> Result:
    """The matrix of a sink in an empty folder, of so many rows or of small files; prints a line per kill."""
    with bench_class(sink)(folder, random.Random(f"bench {seed}"), bulk=rows > 0) as bench:
        if rows:
            return BulkMatrix(folder, bench, rows, _say).run(bulk_plan(kills, seed))
        feed = Input(folder / "input", random.Random(f"input {seed}"))
        return RowMatrix(folder, bench, feed, _say).run(plan(kills, seed))


def _say(text: str) -> None:
    print(text, flush=True)


def bench_class(sink: str) -> type[Bench]:
    """The bench of the module that is named as the sink is."""
    try:
        found = importlib.import_module(f"tests.killmatrix.{sink.replace('-', '_')}").BENCH
    except (ModuleNotFoundError, AttributeError) as error:
        raise HarnessError(f"there is no bench for --sink {sink}: tests/killmatrix has no such module") from error
    assert isinstance(found, type) and issubclass(found, Bench)  # noqa: PT018
    return found


if __name__ == "__main__":
    sys.exit(main())
