"""What goes wrong around a job: a damaged ledger, a full disk, no Java, no source, a signal. Each a clear end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.place import Place
from tests.killmatrix.tree import Tree

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COMMAND = (sys.executable, "-m", "sinkruntime.cli.main", "run", "job.yaml", "--master", "local[2]")
WAIT_SECONDS_MAX = 120.0
TOO_SMALL, LARGE_ENOUGH = "256k", "16m"
ROWS = 3000


def _torn(text: str) -> str:
    return text[: len(text) // 2]


def _edited(text: str) -> str:
    return text.replace('"decided":3', '"decided":2')


def _newer(text: str) -> str:
    return text.replace('{"format":1', '{"format":99')


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(_torn, "LedgerCorrupt"), (_edited, "LedgerCorrupt"), (_newer, "LedgerFormatTooNew")],
    ids=["torn", "edited by hand", "of a newer release"],
)
def test_a_ledger_that_cannot_be_read_stops_the_job_and_is_left_alone(
    place: Place, spoil: Callable[[str], str], reason: str
) -> None:
    place.restore("late")
    path = place.ledger / "ledger.json"
    spoilt = spoil(path.read_text())
    assert spoilt != path.read_text()
    path.write_text(spoilt)
    place.add_file(4)
    answer = place.run()
    assert (answer.code, reason in answer.output) == (1, True), answer.output
    assert "ledger/ledger.json" in answer.output, "it says where"
    assert path.read_text() == spoilt
    assert place.numbers("lake") == {1: 1, 2: 1, 3: 1}


def test_a_source_that_does_not_exist_is_named_with_its_field(place: Place) -> None:
    place.restore("late")
    place.write_manifest(source={"format": "json", "path": "nowhere", "schema": "id BIGINT, name STRING"})
    answer = place.run()
    assert answer.code in (1, 2), answer.output
    assert "job.yaml:" in answer.output
    assert "spec.source.path" in answer.output
    assert "nowhere" in answer.output


def test_a_missing_java_is_said_before_anything_is_touched(place: Place, tmp_path: Path) -> None:
    place.restore("late")
    before = {path: path.stat().st_mtime_ns for path in place.ledger.rglob("*.json")}
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path)
    ended = subprocess.run(
        COMMAND, check=False, cwd=place.work, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1, ended.stderr
    assert "Java 17" in ended.stderr
    assert {path: path.stat().st_mtime_ns for path in place.ledger.rglob("*.json")} == before


def test_a_full_disk_of_the_target_stops_the_job_and_loses_nothing(place: Place) -> None:
    place.restore("late")
    place.write_manifest("full.yaml", name="full", out="small", checkpoint={"location": str(place.work / "of-full")})
    place.add_file(4, ROWS)
    with _tmpfs(place.work / "small"):
        full = place.run("full.yaml")
        assert full.code == 1, full.output
        assert "No space left on device" in full.output
        assert "sink l" in full.output, "it says which sink"
        assert 4 not in place.numbers("lake", "small")
        assert 4 not in place.numbers("lines", "small")
        subprocess.run(["mount", "-o", f"remount,size={LARGE_ENOUGH}", str(place.work / "small")], check=True)
        roomy = place.run("full.yaml")
        assert roomy.code == 0, roomy.output
        assert place.numbers("lake", "small") == place.numbers("lines", "small") == {1: 1, 2: 1, 3: 1, 4: ROWS}
        assert not [path for path in place.work.rglob("small/*/_sinkjob/staging/**/*") if path.is_file()]


@contextmanager
def _tmpfs(folder: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("by design: only root can mount a small file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TOO_SMALL}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_signal_ends_a_streaming_job_at_a_checkpoint_with_nothing_pending(place: Place, tmp_path: Path) -> None:
    place.restore("late")
    place.write_manifest(trigger={"type": "ProcessingTime", "interval": "100ms"})
    tree = Tree.start(COMMAND, place.work, {}, tmp_path / "log")
    try:
        number, deadline = 4, time.monotonic() + WAIT_SECONDS_MAX
        while place.decided() < 5:
            assert tree.leader.poll() is None, tree.tail()
            assert time.monotonic() < deadline, tree.tail()
            place.add_file(number)
            number += 1
            time.sleep(0.3)
        os.kill(tree.leader.pid, signal.SIGTERM)
        assert tree.leader.wait(WAIT_SECONDS_MAX) == 0, tree.tail()
    finally:
        tree.kill()
    assert "asked to stop" in tree.tail()
    assert place.pending() == 0
    assert len(place.numbers("lake")) == len(place.numbers("lines")) == place.decided()
