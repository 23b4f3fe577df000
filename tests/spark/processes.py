"""Whole process trees for tests that kill: Spark's Python, its JVM, its Python workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def tree(root: int) -> list[int]:
    """A process and all its descendants, as /proc has them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def kill_tree(root: int) -> list[int]:
    """SIGKILL all of them at once, the root last found first frozen so that nothing new is born."""
    victims = tree(root)
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue  # it has just ended
    return victims


def wait_gone(pids: list[int], seconds: float = 20.0) -> None:
    """Until none of them runs (a zombie does not)."""
    until = time.monotonic() + seconds
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, f"still there: {pids}"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
