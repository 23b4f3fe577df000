"""A stateful job killed with all its processes, at labelled steps: the next run gives each window once."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.lines import read
from tests.spark.processes import kill_tree, wait_gone
from tests.spark.stateful_job import REPOSITORY, expected, job, seen

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = 6
WAIT_SECONDS = 120.0


def write_input(folder: Path) -> list[tuple[int, str]]:
    """Rows in order of their time, a file per eight seconds."""
    (folder / "in").mkdir(parents=True)
    rows = [(second, "ab"[second % 2]) for second in range(8 * FILES)]
    for number in range(FILES):
        text = "".join(
            f"2026-11-21T00:{second // 60:02d}:{second % 60:02d}Z,{key}\n"
            for second, key in rows[8 * number : 8 * number + 8]
        )
        path = folder / "in" / f"{number}.csv"
        path.write_text(text)
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest first
    return rows


def start(folder: Path, point: str | None = None) -> subprocess.Popen[bytes]:
    """The job in a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    if point is not None:
        crash = folder / "crash"
        crash.mkdir()
        environment |= {"SINKJOB_CRASH_POINT": point, "SINKJOB_CRASH_DIR": str(crash)}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stateful_job", str(folder)],
            cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def kill_at(folder: Path, point: str) -> None:
    """Run until some process stands at the point, then kill them all."""
    process = start(folder, point)
    hit = folder / "crash" / f"{point.partition('@')[0]}.hit"
    until = time.monotonic() + WAIT_SECONDS
    try:
        while not hit.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, f"{point} was never reached"
            time.sleep(0.05)
    finally:
        victims = kill_tree(process.pid)
        process.wait(20)
    assert int(hit.read_text()) in victims, "a live process stood there"
    wait_gone(victims)


#: Each runs Spark twice; the kill matrix kills at all of them.
SELDOM = [pytest.param(point, marks=pytest.mark.exhaustive) for point in ("S1.before@3", "S8.after@3", "S14.before@3")]


@pytest.mark.parametrize("point", ["S5.after@5", "S8.before@3", *SELDOM])
def test_windows_come_once_after_a_kill(tmp_path: Path, point: str) -> None:
    rows = write_input(tmp_path)
    kill_at(tmp_path, point)
    assert seen(read(tmp_path / "t")) != expected(rows), "it was killed on the way"
    process = start(tmp_path)
    assert process.wait(WAIT_SECONDS) == 0, (tmp_path / "log").read_text()
    assert seen(read(tmp_path / "t")) == expected(rows)
    assert job(tmp_path).ledger().epoch == 2
    assert list((tmp_path / "t" / "staged").iterdir()) == [], "nothing staged is left"
