"""Python environments of their own for programs whose packages do not fit into the tests' one; made once, in the cache.

Called by fixtures. Packages come from the registry that pip is set up for.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.programs import ProgramMissingError

INSTALL_TIMEOUT_SECONDS = 1200
SAID_CHARACTERS = 2000


def locate_environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of the environment `name` with these packages (`name==version`). Raises ProgramMissingError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkjob-tests" / "environments"
    folder = cache / name
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    # An environment cannot be moved, so it is made in place, by one run at a time.
    lock = os.open(cache / f"{name}.lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, packages)
    finally:
        os.close(lock)
    return python


def _make(folder: Path, packages: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])
    (folder / "complete").touch()


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(getattr(error, "stderr", None) or error)
        raise ProgramMissingError(f"{' '.join(command)} failed: {said[-SAID_CHARACTERS:]}") from error
