"""The kill matrix: one job, killed again and again, and compared with its input at the end.

`__main__` and the tests call `run`. `RowMatrix` knows each row: after every kill it looks that nothing is there twice,
nothing undecided is visible, and nothing that was visible is gone; after the last one the job runs to its end, and
both sinks must equal the input as multisets. `bulk` has the matrix of many rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.killmatrix.aims import Aim, Pending
from tests.killmatrix.bench import Bench
from tests.killmatrix.job import Job, RunEnded
from tests.killmatrix.rows import Input, Rows
from tests.killmatrix.tree import HarnessError

#: Runs that a disturbed target ended before the kill, in a row.
RESTARTS_MAX = 8
FINAL_SECONDS_MAX = 300.0
FINAL_RUNS_MAX = 3

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What came of it. `problems` are violations seen on the way."""

    kills: int = 0
    pending_kills: int = 0
    missing: int = 0
    extra: int = 0
    leftovers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether everything is as it must be."""
        return not (self.missing or self.extra or self.leftovers or self.problems)

    def line(self, sink: str) -> str:
        """The last line."""
        return (
            f"{sink}: {self.kills} kills, missing {self.missing}, extra {self.extra}, leftovers {len(self.leftovers)}"
        )


class Matrix(ABC):
    """One job and its kills."""

    final_seconds_max = FINAL_SECONDS_MAX

    def __init__(self, job: Job, bench: Bench, say: Say) -> None:
        self._job = job
        self._bench = bench
        self._say = say
        self.result = Result()

    def run(self, aims: Sequence[Aim]) -> Result:
        """Kill it at each aim, let it end, compare."""
        for number, aim in enumerate(aims, start=1):
            self._kill(number, len(aims), aim)
            self._look()
        self._finish()
        self._compare()
        self._clear()
        return self.result

    @abstractmethod
    def _look(self) -> None:
        """After a kill: at what a reader sees, with nothing running."""

    @abstractmethod
    def _compare(self) -> None:
        """After the last run: the targets with the input."""

    def _kill(self, number: int, of: int, aim: Aim) -> None:
        """One kill; a run that a disturbed target has ended first is started again."""
        crash = self._job.folder / "crash" / str(number)
        crash.mkdir(parents=True)
        began = time.monotonic()
        for _ in range(RESTARTS_MAX):
            self._job.feed(self._job.ledger.read())
            run = self._job.start(aim.environment(crash))
            try:
                hit, seen = aim.shoot(run, crash)
                break
            except RunEnded as ended:
                if not self._bench.disturbs or ended.code not in (1, 3):
                    raise HarnessError(f"{aim.label}: {ended}") from ended
                self._say(f"    ended by itself with {ended.code}, is started again")
            finally:
                self._bench.calm()
        else:
            raise HarnessError(f"{aim.label}: {RESTARTS_MAX} runs ended by themselves")
        self.result.kills += 1
        self.result.pending_kills += isinstance(aim, Pending)
        ledger = self._job.ledger.read()
        facts = f"decided {ledger.decided}, pending {len(ledger.pending)}, epoch {ledger.epoch}"
        took = time.monotonic() - began
        self._say(f"{number:3}/{of} {aim.label:<16} {hit} processes, {facts}, {took:.0f} s {seen}")

    @property
    def _sinks(self) -> list[str]:
        return [sink["name"] for sink in self._bench.sinks()]

    def _finish(self) -> None:
        """Run it to the end of its input; nothing disturbs it now."""
        self._job.feed(self._job.ledger.read())
        for _ in range(FINAL_RUNS_MAX):
            run = self._job.start({}, "--available-now")
            code = run.end(self.final_seconds_max)
            if code == 0:
                break
            self._problem(f"the last run ended with exit code {code}; the end of its log:\n{run.tree.tail()}")
        ledger = self._job.ledger.read()
        if ledger.pending:
            self._problem(f"checkpoints {list(ledger.pending)} are still pending")

    def _clear(self) -> None:
        """Nothing may be left over."""
        ledger = self._job.ledger.read()
        self.result.leftovers = [*self._bench.leftovers(ledger.ledger_id), *self._payloads()]
        for name in self.result.leftovers:
            self._say(f"    left over: {name}")
        self._say(
            f"{self._job.input.files} files, {ledger.decided} checkpoints, {ledger.epoch} epochs, "
            f"{self.result.pending_kills} kills while pending, {self._bench.told()}"
        )

    def _payloads(self) -> list[str]:
        """Payload objects and temporary files beside the ledger, and the job's own in Spark's checkpoint location."""
        job = self._job
        beside = [*job.workspace.glob("ledger/objects/*"), *job.workspace.glob("ledger/*.tmp")]
        own = [*job.checkpoint.glob("_sinkjob/.*"), *job.workspace.glob("revisions/*.tmp")]
        return [str(path) for path in (*beside, *own)]

    def _problem(self, text: str) -> None:
        self.result.problems.append(text)
        self._say(f"    WRONG: {text}")


class RowMatrix(Matrix):
    """The matrix of small files, with every row at hand."""

    def __init__(self, folder: Path, bench: Bench, rows: Input, say: Say) -> None:
        super().__init__(Job(folder, bench, rows), bench, say)
        self._input = rows

    def _look(self) -> None:
        ledger, job = self._job.ledger.read(), self._job
        for sink in self._sinks:
            rows = self._read(sink)
            extra = rows - self._input.rows
            if extra:
                self._problem(f"sink {sink} shows {extra.total()} rows too many, such as {next(iter(extra))}")
            early = job.undecided(rows, ledger)
            if early:
                self._problem(f"sink {sink} shows {early.total()} undecided rows, such as {next(iter(early))}")

    def _read(self, sink: str) -> Rows:
        try:
            return self._bench.read(sink)
        except AssertionError as error:
            self._problem(f"sink {sink}: {error}")
            return Rows()

    def _compare(self) -> None:
        expected = self._input.rows
        self._say(f"{expected.total()} rows, {len(expected)} different ones")
        for sink in self._sinks:
            rows = self._read(sink)
            missing, extra = expected - rows, rows - expected
            self.result.missing += missing.total()
            self.result.extra += extra.total()
            for word, some in (("missing", missing), ("extra", extra)):
                if some:
                    self._say(f"    sink {sink}: {some.total()} rows {word}, such as {next(iter(some))}")
        for difference in self._bench.differences(expected):
            self._problem(difference)
