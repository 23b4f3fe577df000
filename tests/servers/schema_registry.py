"""A real schema registry (Apicurio's, which speaks Confluent's API too) for tests; it comes from Maven.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session, which keeps schemas in memory: tests take
topics of their own.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.process import running
from tests.servers.programs import ProgramMissingError

VERSION = "2.6.13.Final"
SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"
FETCH_TIMEOUT_SECONDS = 900
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1")


@dataclass(frozen=True, slots=True)
class SchemaRegistryServer:
    """A running registry."""

    port: int

    @property
    def url(self) -> str:
        """Of Confluent's API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"


def locate() -> Path:
    """The folder of the unpacked server. Raises ProgramMissingError."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ProgramMissingError(f"{program} is missing: the schema registry needs Java 17 and, once, Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkjob-tests"
    folder = cache / f"schema-registry-{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            _fetch(Path(work))
            Path(work, "unpacked").rename(folder)
    return folder


def _fetch(work: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
    command = ["mvn", "-q", "-B", copy, f"-Dartifact={artifact}", f"-DoutputDirectory={work}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ProgramMissingError(f"the schema registry was not fetched: {error}") from error
    archive = work / ARCHIVE
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ProgramMissingError(f"{ARCHIVE} has SHA-256 {found}, and {SHA256} is wanted")
    with tarfile.open(archive) as packed:
        packed.extractall(work / "unpacked", filter="data")


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryServer]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    try:
        folder = locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")

    def command(port: int) -> list[str]:
        jar = folder / f"apicurio-registry-app-{VERSION}-runner.jar"
        return ["java", *JAVA_OPTIONS, f"-Dquarkus.http.port={port}", "-jar", str(jar)]

    with running(command, tmp_path_factory.mktemp("schema-registry") / "log", {}) as port:
        yield SchemaRegistryServer(port)
