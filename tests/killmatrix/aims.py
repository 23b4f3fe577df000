"""At which instant a run is killed: at a labelled step, at a random time, or while a decided checkpoint is pending.

`plan` makes aims from a seed, `matrix` shoots. An aim that is not hit is a failure of the harness, never skipped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.killmatrix.job import POLL_SECONDS, Run
from tests.killmatrix.tree import HarnessError

Side = Literal["before", "after"]

#: How long a run may take to come to the instant that it is to be killed at.
REACH_SECONDS_MAX = 180.0
WATCH_SECONDS = 0.001


class Aim(ABC):
    """An instant."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A word for the progress line."""

    def environment(self, folder: Path) -> Mapping[str, str]:
        """What the run needs to be told; `folder` is empty, and this kill's own."""
        return {}

    @abstractmethod
    def shoot(self, run: Run, folder: Path) -> tuple[int, str]:
        """Wait for the instant, kill; how many processes were hit, and what was seen at that instant.

        Raises `RunEnded`, `HarnessError`.
        """


@dataclass(frozen=True, slots=True)
class Step(Aim):
    """The `count`-th time that a process of the run is at `side` of `step`, where it stops and waits to be killed."""

    step: str
    side: Side
    count: int

    @property
    def label(self) -> str:
        return f"{self.step}.{self.side}@{self.count}"

    def environment(self, folder: Path) -> Mapping[str, str]:
        return {"SINKJOB_CRASH_POINT": self.label, "SINKJOB_CRASH_DIR": str(folder)}

    def shoot(self, run: Run, folder: Path) -> tuple[int, str]:
        hit = folder / f"{self.step}.{self.side}.hit"
        until = time.monotonic() + REACH_SECONDS_MAX
        while not hit.exists():
            run.tick()
            if time.monotonic() > until:
                tail = run.tree.tail()
                run.tree.kill()
                raise HarnessError(f"{self.label} was not reached; the end of the log:\n{tail}")
            time.sleep(POLL_SECONDS)
        pid = int(hit.read_text())
        if not run.tree.has(pid):
            raise HarnessError(f"{self.label} was announced by {pid}, which is no living process of the run")
        who = "driver" if pid == run.tree.leader.pid else "Python worker"
        return run.tree.kill(), f"{who} {pid} stood there"


@dataclass(frozen=True, slots=True)
class Instant(Aim):
    """`delay_seconds` after the run began, raised its epoch (and recovers), or made its first decision."""

    after: Literal["start", "epoch", "decision"]
    delay_seconds: float

    @property
    def label(self) -> str:
        return f"{self.after}+{self.delay_seconds:.2f}s"

    def shoot(self, run: Run, folder: Path) -> tuple[int, str]:
        until = time.monotonic() + REACH_SECONDS_MAX
        while not self._due(run):
            if time.monotonic() > until:
                tail = run.tree.tail()
                run.tree.kill()
                raise HarnessError(f"{self.label} was not reached; the end of the log:\n{tail}")
            time.sleep(POLL_SECONDS)
        run.wait(self.delay_seconds)
        return run.tree.kill(), ""

    def _due(self, run: Run) -> bool:
        now = run.tick()
        if self.after == "epoch":
            return now.epoch > run.began.epoch
        return self.after == "start" or now.decided > run.began.decided


@dataclass(frozen=True, slots=True)
class Pending(Aim):
    """Between decision and commit: the `count`-th time that a checkpoint is seen pending in the ledger.

    The leader, who writes the ledger, is stopped first and the ledger read again, so a record is pending at the kill.
    """

    count: int
    delay_seconds: float

    @property
    def label(self) -> str:
        return f"pending@{self.count}"

    def shoot(self, run: Run, folder: Path) -> tuple[int, str]:
        until = time.monotonic() + REACH_SECONDS_MAX
        seen: set[int] = set()
        while time.monotonic() < until:
            seen.update(run.tick().pending)
            if len(seen) >= self.count and run.job.ledger.read().pending:
                time.sleep(self.delay_seconds)
                with run.tree.frozen():
                    pending = run.job.ledger.read().pending
                    if pending:
                        return run.tree.kill(), f"pending {list(pending)}"
            time.sleep(WATCH_SECONDS)
        tail = run.tree.tail()
        run.tree.kill()
        raise HarnessError(f"no checkpoint was found pending; the end of the log:\n{tail}")
