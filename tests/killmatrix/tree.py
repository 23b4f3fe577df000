"""A job's process tree, told by its session and by a mark in its environment: stopped, killed, and seen to be gone.

The kill matrix starts every run through it. Needs `/proc` (Linux). It signals only processes that it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "SINKJOB_TEST_TREE"
GONE_SECONDS_MAX = 20.0
POLL_SECONDS = 0.01
LOG_TAIL_LINES = 40


class HarnessError(Exception):
    """The harness could not do what it must; the matrix has then shown nothing."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One run: its leader leads a session of its own, and all that it starts inherits the mark."""

    leader: subprocess.Popen[bytes]
    mark: str
    log: Path

    @classmethod
    def start(cls, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Tree:
        """Start it in `folder`; output is added to `log`."""
        mark = uuid.uuid4().hex
        with log.open("ab") as output:
            leader = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | dict(environment) | {MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(leader, mark, log)

    def pids(self) -> list[int]:
        """Its living processes; a zombie, which runs nothing any more, is none."""
        needle = f"{MARK}={self.mark}".encode()
        return [pid for pid in _processes() if _session(pid) == self.leader.pid or needle in _environment(pid)]

    def has(self, pid: int) -> bool:
        """Whether this process is alive and of this tree."""
        return pid in self.pids()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The leader, who alone writes the ledger, stands still inside; whoever is killed there wakes no more."""
        os.kill(self.leader.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if self.leader.poll() is None:
                os.kill(self.leader.pid, signal.SIGCONT)

    def kill(self) -> int:
        """SIGKILL to every process until none is left; how many were hit. Raises `HarnessError`."""
        hit: set[int] = set()
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while left := self.pids():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    hit.add(pid)
            if time.monotonic() > deadline:
                raise HarnessError(f"processes {left} outlive SIGKILL")
            self.leader.poll()
            time.sleep(POLL_SECONDS)
        self.leader.wait(GONE_SECONDS_MAX)
        return len(hit)

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session(pid: int) -> int | None:
    """The session of a process; None for one that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, _, _, session, *_ = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(session)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()  # empty for a zombie
    except OSError:
        return b""
