"""Fetches the jars of a Java server for tests with Maven, once, into the cache of the tests.

Called by the server fixtures. Downloads only what a list in this folder names, by way of `images/fetch_jars.py`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.programs import ProgramMissingError

FETCH = Path(__file__).parents[2] / "images" / "fetch_jars.py"
FETCH_TIMEOUT_SECONDS = 900
SAID_CHARACTERS = 2000


def locate_jars(name: str, listing: Path) -> Path:
    """The folder of the jars of `listing`, named `name` in the cache. Raises ProgramMissingError."""
    return fetched(name, listing.read_text())


def fetched(name: str, listing: str) -> Path:
    """As `locate_jars`, for the lines of a listing."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ProgramMissingError(f"{program} is missing: {name} needs Java 17 and, once, Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkjob-tests"
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(listing)
            file.flush()
            command = [sys.executable, str(FETCH), file.name, str(folder)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if folder.exists():  # another run was first
            return folder
        said = str(getattr(error, "stderr", None) or error)
        raise ProgramMissingError(f"the jars of {name} were not fetched: {said[-SAID_CHARACTERS:]}") from error
    return folder
