"""The suite `tables`: streaming appends into table formats, beside Spark's own streaming writers into the same catalog;
and what the committers of tables take.

One Spark runs all of them; each measurement says what it needs when Spark starts. `docs/benchmarks.md` says how each
figure is taken.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from benchmarks.figures import Measurement, run_suite
from benchmarks.jobs import Bench
from benchmarks.table_commits import delta_commits, iceberg_commits
from benchmarks.tables_delta import DeltaAppend
from benchmarks.tables_iceberg import IcebergAppend


class InOneSpark(Measurement, Protocol):
    """A measurement that shares its SparkSession with others."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        ...

    def use(self, bench: Bench) -> None:
        """The session to measure in."""


Make = Callable[[ExitStack, Path, float], InOneSpark]

#: By name; a further format adds its class here.
FORMATS: Mapping[str, Make] = {
    "iceberg": IcebergAppend,
    "delta": DeltaAppend,
    "iceberg-commits": iceberg_commits,
    "delta-commits": delta_commits,
}
NAMES = tuple(FORMATS)


def run(rounds: int, scale: float, only: Collection[str]) -> bool:
    """Run the suite, or those of its measurements that are named; whether every figure is ok."""
    return run_in_one_spark(FORMATS, rounds, scale, only)


def run_in_one_spark(kinds: Mapping[str, Make], rounds: int, scale: float, only: Collection[str]) -> bool:
    """Run those of `kinds` that are named, or all of them; whether every figure is ok."""
    folder = Path(tempfile.mkdtemp(prefix="sinkjob-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        made = [make(stack, folder, scale) for name, make in kinds.items() if not only or name in only]
        settings: dict[str, str] = {}
        for measurement in made:
            jars = ",".join(filter(None, [settings.get("spark.jars"), measurement.settings.get("spark.jars")]))
            settings |= {**measurement.settings, "spark.jars": jars}
        bench = Bench(folder, settings)
        stack.callback(bench.close)
        measurements: list[Measurement] = []
        for measurement in made:
            measurement.use(bench)
            measurements.append(measurement)
        return run_suite(measurements, rounds)
