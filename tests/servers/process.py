"""Runs a server program for the time of a test session.

Called by the server fixtures. Ends only the process it started; waits are bounded.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
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


@contextlib.contextmanager
def running(command: Callable[[int], list[str]], log: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Starts `command(port)`, yields the port when it accepts connections, ends the process afterwards.

    Output goes to `log`. Raises RuntimeError with the end of the log if the server does not come up.
    """
    for _ in range(PORT_ATTEMPTS):
        port = free_port()
        with log.open("ab") as output:
            process = subprocess.Popen(
                command(port), env=os.environ | dict(environment), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            if _wait_until_it_listens(process, port):
                yield port
                return
        finally:
            _stop(process)
    tail = log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
    raise RuntimeError(f"{command(0)[0]} did not start; the end of {log}:\n{tail}")


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)
