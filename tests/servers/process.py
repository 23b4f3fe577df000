"""Runs a server program for the time of a test session.

Called by the server fixtures. Ends only the process it started, and that one's children; waits are bounded.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.05
# Another process may take a port between its choice and its use.
PORT_ATTEMPTS = 3
LOG_TAIL_CHARACTERS = 2000


def free_port() -> int:
    """Returns a port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Program:
    """A server program on a port of its own. It may be killed and started again there."""

    command: Callable[[int], list[str]]
    log: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again, and wait until it listens. Raises RuntimeError with the end of its log."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(self.port),
                env=os.environ | dict(self.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if not _wait_until_it_listens(self.process, self.port):
            self.stop()
            tail = self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
            raise RuntimeError(f"{self.command(0)[0]} did not start; the end of {self.log}:\n{tail}")

    def kill(self) -> None:
        """`kill -9` to it and to its children, each of which may lead a group of its own."""
        assert self.process is not None
        pid = self.process.pid
        os.kill(pid, signal.SIGSTOP)  # it starts no more of them
        children = _children(pid)
        for child in (*children, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_SECONDS)
        until = time.monotonic() + STOP_TIMEOUT_SECONDS
        while any(_lives(child) for child in children):
            if time.monotonic() > until:
                raise RuntimeError(f"children of {pid} outlive SIGKILL: {children}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End it, in order if it does so in time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_SECONDS)


@contextlib.contextmanager
def restartable(
    command: Callable[[int], list[str]], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Starts `command(port)`, yields the program when it accepts connections, ends it afterwards.

    Output goes to `log`. Raises RuntimeError with the end of the log if the server does not come up.
    """
    for attempt in range(1, PORT_ATTEMPTS + 1):
        program = Program(command, log, environment or {})
        try:
            program.start()
            break
        except RuntimeError:
            if attempt == PORT_ATTEMPTS:
                raise
    try:
        yield program
    finally:
        program.stop()


@contextlib.contextmanager
def running(command: Callable[[int], list[str]], log: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """As `restartable`, for who needs no more than its port."""
    with restartable(command, log, environment) as program:
        yield program.port


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    """Whether it runs: a zombie runs nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
