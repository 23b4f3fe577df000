"""`sinkjob run` as a person starts it: in a process of its own, with a real Spark."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: small}
spec:
  source:
    format: csv
    path: in
    schema: "a INT, b STRING"
    options: {header: "true", maxFilesPerTrigger: "1"}
  trigger: {type: ProcessingTime, interval: 200ms}
  sinks:
  - name: lake
    type: file
    options: {path: out, format: csv}
"""
RUN_SECONDS = 150.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job of three files with two rows each."""
    (tmp_path / "in").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "in" / f"{number}.csv").write_text(f"a,b\n{number},x\n{number},ö\n")
    (tmp_path / "job.yaml").write_text(MANIFEST)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sinkruntime.cli.main", *arguments]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, from the folder above the manifest's."""
    return subprocess.run(
        command(*arguments), cwd=folder.parent, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )


def rows(folder: Path) -> list[list[str]]:
    """What a reader of the target sees."""
    return sorted(row for file in folder.glob("out/*.csv") for row in csv.reader(file.read_text().splitlines()))


EXPECTED = sorted([str(number), text] for number in (1, 2, 3) for text in "xö")


def test_a_run_ends_with_0_and_everything_in_place_and_says_what_it_did(folder: Path) -> None:
    job = f"{folder.name}/job.yaml"
    done = call(folder, "run", job, "--available-now", "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    assert rows(folder) == EXPECTED
    first, *progress, last = done.stdout.splitlines()
    assert first.startswith("job default/small, ledger ")
    assert "lake (file, ExactlyOnce)" in first
    assert progress[0].startswith("checkpoint 1 committed, ")
    assert progress[-1].startswith("checkpoint 3 committed, 6 rows, ")
    assert last == "ended: the source is done; 3 checkpoints decided; committed up to: lake 3"
    listed = json.loads(call(folder, "commits", job, "-o", "json").stdout)["checkpoints"]
    assert [(entry["state"], entry["evidence"]["lake"]["proved"]) for entry in listed] == [("committed", "yes")] * 3
    again = call(folder, "run", job, "--available-now", "--master", "local[1]")
    assert again.returncode == 0, again.stderr
    assert rows(folder) == EXPECTED, "a second run finds nothing to do"


def test_sigterm_stops_at_a_checkpoint_and_a_terminal_sees_a_picture(folder: Path) -> None:
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        command("run", str(folder / "job.yaml"), "--master", "local[1]"),
        stdout=terminal, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(terminal)
    deadline, shown = time.monotonic() + RUN_SECONDS, b""
    try:
        while b"3 decided, 3 committed" not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(main, 65536)
        process.send_signal(signal.SIGTERM)
        while chunk := _read(main):
            shown += chunk
        assert process.wait(RUN_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    text = shown.decode()
    assert "stopping at the next checkpoint" in text
    assert "committed up to 3" in text
    assert "ended: asked to stop; 3 checkpoints decided; committed up to: lake 3" in text
    assert rows(folder) == EXPECTED


def _read(descriptor: int) -> bytes:
    """What the terminal got; b"" when the other side is closed, which Linux says by an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("type: ProcessingTime, interval: 200ms", "type: Processing", 2, "{job}:10: spec.trigger.type: "),
        ("  sinks:", "  transform:\n  - sql: SELECT nope FROM input\n  sinks:", 1,
         "{job}:12: spec.transform[0].sql: InvalidSql: "),
        ("path: out", "path: in/1.csv/out", 1, "{job}:14: spec.sinks[0].options.path: NotADirectory: "),
    ],
)  # fmt: skip
def test_what_stops_a_run_is_said_with_the_manifests_line(
    old: str, new: str, code: int, message: str, folder: Path
) -> None:
    text = (folder / "job.yaml").read_text()
    assert old in text
    (folder / "job.yaml").write_text(text.replace(old, new))
    job = f"{folder.name}/job.yaml"
    done = call(folder, "run", job, "--available-now", "--master", "local[1]")
    assert done.returncode == code, done.stderr
    assert message.format(job=job) in done.stderr
    assert "Traceback" not in done.stderr
    assert rows(folder) == []


def test_a_run_without_java_says_what_to_install(folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(folder)}
    done = subprocess.run(
        command("run", str(folder / "job.yaml")),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "JavaMissing: Spark needs Java, and there is no java on PATH\ninstall Java 17 or 21 ("
    )
