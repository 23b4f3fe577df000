"""Crash points: nothing happens unless asked for; then exactly one process waits there, and says so."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkruntime import crashpoints
from sinkruntime.crashpoints import STEPS, CrashPoint, reached

ROOT = Path(__file__).resolve().parents[2]
WALK = """
from sinkruntime.crashpoints import STEPS, reached
for step in STEPS:
    reached(step, "before")
    print(step, flush=True)
    reached(step, "after")
"""


def walk(point: str | None, folder: Path) -> subprocess.Popen[str]:
    """A process that walks through all steps."""
    chosen = {"SINKJOB_CRASH_POINT": point, "SINKJOB_CRASH_DIR": str(folder)} if point else {}
    others = {name: value for name, value in os.environ.items() if not name.startswith("SINKJOB_CRASH")}
    return subprocess.Popen([sys.executable, "-c", WALK], cwd=ROOT, env={**others, **chosen}, stdout=-1, text=True)


def wait_for(path: Path) -> str:
    for _ in range(2000):
        if path.exists():
            return path.read_text()
        time.sleep(0.005)
    raise AssertionError(f"{path.name} never came")


def test_without_a_crash_point_everything_goes_on(tmp_path: Path) -> None:
    out, _ = walk(None, tmp_path).communicate(timeout=20)
    assert out.split() == list(STEPS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("point", "passed"), [("S3.before", ["S1", "S2"]), ("S3.after@1", ["S1", "S2", "S3"])])
def test_the_process_waits_at_its_point_until_it_is_killed(tmp_path: Path, point: str, passed: list[str]) -> None:
    with walk(point, tmp_path) as process:
        hit = wait_for(tmp_path / f"{point.partition('@')[0]}.hit")
        assert hit == str(process.pid)
        assert process.poll() is None
        process.kill()
        assert process.communicate(timeout=10)[0].split() == passed
    assert process.returncode == -signal.SIGKILL


def test_only_the_counted_visit_of_all_processes_stops(tmp_path: Path) -> None:
    for _ in range(2):
        assert walk("S8.before@3", tmp_path).communicate(timeout=20)[0].split() == list(STEPS)
    assert not (tmp_path / "S8.before.hit").exists()
    with walk("S8.before@3", tmp_path) as third:
        assert wait_for(tmp_path / "S8.before.hit") == str(third.pid)
        third.kill()
    assert walk("S8.before@3", tmp_path).communicate(timeout=20)[0].split() == list(STEPS), "the fourth goes on"


def test_a_wait_that_nobody_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashpoints, "_point", CrashPoint("S1", "before", 1, tmp_path))
    monkeypatch.setattr(crashpoints, "WAIT_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"stopped at S1\.before"):
        reached("S1", "before")
    reached("S1", "after")
    reached("S1", "before")


@pytest.mark.parametrize("text", ["", "S0.before", "S15.after", "S3", "S3.during", "3.before", "S3.before@x"])
def test_a_crash_point_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected S1\.\.S14|invalid literal"):
        CrashPoint.parse(text, "folder")


def test_a_crash_point_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="SINKJOB_CRASH_DIR"):
        CrashPoint.parse("S3.before", "")
