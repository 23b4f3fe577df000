"""Runs command lines of `sinkjob` one after another in one process, so that they share a JVM that is warm.

`python -m tests.integration.warm` reads a JSON line `{"folder", "arguments"}` and answers with one,
`{"code", "output"}`, until its input ends. `Warm` is the other end, for tests. Each command line is the real one,
with a Spark session of its own; only the seconds in which a JVM starts are saved.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command line ended with, and what it wrote on standard output and standard error."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Warm:
    """The process, as tests see it."""

    process: subprocess.Popen[str]

    def run(self, folder: Path, *arguments: str) -> Answer:
        """Run one command line in a folder; raises RuntimeError where the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the warm process ended with {self.process.wait()} in {' '.join(arguments)}")
        answer = json.loads(line)
        return Answer(answer["code"], answer["output"])


@contextlib.contextmanager
def warm(log: Path) -> Iterator[Warm]:
    """Start one; its JVM's own output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.warm"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
        try:
            yield Warm(process)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else writes to standard output, the JVM first of all
    from pyspark import SparkContext

    # Before the first run marks its environment: this JVM outlives them all, and belongs to none.
    SparkContext._ensure_initialized()
    for line in sys.stdin:
        asked = json.loads(line)
        os.chdir(asked["folder"])
        answers.write(json.dumps(_run(asked["arguments"])) + "\n")
        answers.flush()


def _run(arguments: Sequence[str]) -> dict[str, object]:
    from sinkruntime.cli.main import cli

    said = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cli(list(arguments), prog_name="sinkjob")
        except SystemExit as ended:
            code = ended.code or 0
    return {"code": code, "output": said.getvalue()}


if __name__ == "__main__":
    _serve()
