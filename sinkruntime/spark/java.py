"""Finds Java before Spark is started, so that a missing or old one is a clear error and not a dead gateway.

Called by `session.py` and `sinkjob doctor`. Reads the `release` file beside the program where there is one; it starts
a JVM only to ask a Java without such a file for its version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sinkruntime.errors import ConfigurationError

#: Spark 4's own lower bound ("Java 17/21", https://spark.apache.org/docs/4.1.0/).
JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_SECONDS = 20.0

_ADVICE = "install Java 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark would use."""

    program: Path
    version: str

    @property
    def major(self) -> int:
        """17 of 17.0.15, 8 of 1.8.0_402."""
        numbers = re.findall(r"\d+", self.version)
        return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def find_java() -> Java:
    """The Java of JAVA_HOME, else of PATH, as Spark looks for it; raises `ConfigurationError` without a usable one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise ConfigurationError("JavaMissing", f"JAVA_HOME is {home}, which has no bin/java", advice=_ADVICE)
    else:
        found = shutil.which("java")
        if found is None:
            raise ConfigurationError("JavaMissing", "Spark needs Java, and there is no java on PATH", advice=_ADVICE)
        program = Path(found)
    java = Java(program, _version(program))
    if java.major < JAVA_VERSION_MIN:
        message = f"{program} is Java {java.version}, Spark needs {JAVA_VERSION_MIN} or later"
        raise ConfigurationError("JavaTooOld", message, advice=_ADVICE)
    return java


def _version(program: Path) -> str:
    release = program.resolve().parent.parent / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else _ask(program)
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d[^"]*)"', text)
    if found is None:
        message = f"{program} does not say its version: {text.strip()[:200]!r}"
        raise ConfigurationError("JavaUnusable", message, advice=_ADVICE)
    return found.group(1)


def _ask(program: Path) -> str:
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError("JavaUnusable", f"{program} does not start: {error}", advice=_ADVICE) from error
    return done.stderr + done.stdout
