"""The job that the kill matrix kills: its folder, manifest, input, and one run of it.

`aims` and `matrix` use it. A run is the command line in a process tree of its own.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import yaml

from tests.killmatrix.bench import Bench
from tests.killmatrix.ledger import LedgerFile, LedgerView, source_log
from tests.killmatrix.rows import DDL, Rows
from tests.killmatrix.tree import HarnessError, Tree

COMMAND = (sys.executable, "-m", "sinkruntime.cli.main", "--log-level", "info")
NAMESPACE, NAME = "tests", "kill-matrix"
#: A run lives for seconds: what makes a JVM start quickly matters more than what makes it fast later.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MASTER = "local[2,4]"  # a task is tried four times, as on a cluster

#: So many input files lie ahead of the job; what it takes is put there again.
AHEAD_FILES = 4
RETRY = {"initialBackoff": "50ms", "maxBackoff": "1s"}
POLL_SECONDS = 0.01


class RunEnded(Exception):
    """The run ended by itself, before it could be killed."""

    def __init__(self, code: int, tail: str) -> None:
        super().__init__(f"the run ended by itself with exit code {code}; the end of its log:\n{tail}")
        self.code = code


class Feed(Protocol):
    """The input of a job: a folder of files `in-NUMBER.FORMAT`, which grows."""

    format: str
    files_per_trigger: int
    commit_timeout: str
    files: int

    def add(self, files: int) -> None:
        """Add so many files, each of which appears whole."""


class Job:
    """The folder of one matrix: manifest, input, targets, ledger, logs."""

    def __init__(self, folder: Path, bench: Bench, feed: Feed) -> None:
        self.folder = folder
        self.bench = bench
        self.input = feed
        root = folder / ".sinkjob" / NAMESPACE / NAME
        self.workspace = root
        self.ledger = LedgerFile(root / "ledger" / "ledger.json")
        self.checkpoint = root / "checkpoint"
        self.log = folder / "runs.log"
        self._write_manifest()

    def _write_manifest(self) -> None:
        source = {
            "format": self.input.format,
            "path": "input",
            "schema": DDL,
            "options": {"maxFilesPerTrigger": str(self.input.files_per_trigger)},
        }
        spec = {
            "source": source,
            "trigger": {"type": "ProcessingTime", "interval": "100ms"},
            "commit": {"maxPending": 3, "timeout": self.input.commit_timeout, "retry": RETRY},
            "sinks": self.bench.sinks(),
            "sparkConf": {"spark.sql.codegen.wholeStage": "false"},
        }
        manifest = {
            "apiVersion": "sinkjob.io/v1alpha1",
            "kind": "SinkJob",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": spec,
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True))

    def start(self, environment: Mapping[str, str], *arguments: str) -> Run:
        """Start a run; what it leaves in temporary folders when it is killed stays below this job's folder."""
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JAVA_TOOL_OPTIONS": JAVA_OPTIONS}
        command = [*COMMAND, "run", "job.yaml", "--master", MASTER, *arguments]
        everything = places | dict(self.bench.environment()) | dict(environment)
        return Run(self, Tree.start(command, self.folder, everything, self.log))

    def feed(self, ledger: LedgerView) -> None:
        """Keep so many files ahead of what is decided."""
        self.input.add(max(0, AHEAD_FILES + self.input.files_per_trigger * ledger.decided - self.input.files))

    def undecided(self, rows: Rows, ledger: LedgerView) -> Rows:
        """Those of the visible rows that no decision in the ledger covers."""
        taken = source_log(self.checkpoint)
        beyond = {origin for origin in range(self.input.files) if taken.get(origin, 2**62) > ledger.source_end}
        return Rows({row: count for row, count in rows.items() if row[1] in beyond})


class Run:
    """One run, from start to kill or end."""

    def __init__(self, job: Job, tree: Tree) -> None:
        self.job = job
        self.tree = tree
        self.began = job.ledger.read()

    def tick(self) -> LedgerView:
        """Feed the source, disturb what the bench disturbs; the ledger now. Raises `RunEnded`."""
        code = self.tree.leader.poll()
        if code is not None:
            self.tree.kill()
            raise RunEnded(code, self.tree.tail())
        ledger = self.job.ledger.read()
        self.job.feed(ledger)
        self.job.bench.disturb()
        return ledger

    def wait(self, seconds: float) -> None:
        """Let it run for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.tick()
            time.sleep(min(left, POLL_SECONDS))

    def end(self, seconds_max: float) -> int:
        """Wait until it ends by itself; its exit code."""
        until = time.monotonic() + seconds_max
        while time.monotonic() < until:
            code = self.tree.leader.poll()
            if code is not None:
                self.tree.kill()
                return code
            time.sleep(POLL_SECONDS)
        tail = self.tree.tail()
        self.tree.kill()
        raise HarnessError(f"the run did not end within {seconds_max:.0f} s; the end of its log:\n{tail}")
