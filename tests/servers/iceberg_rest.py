"""A real Iceberg REST catalog (Iceberg's own reference server, over SQLite) for tests; its jars come from Maven.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session: tests take namespaces of their own. What
runs without pytest, as the kill matrix does, calls `serve`.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.jars import locate_jars
from tests.servers.process import running
from tests.servers.programs import ProgramMissingError

VERSION = "1.11.0"
LISTING = Path(__file__).with_name("iceberg_rest_jars.txt")
SOURCE = Path(__file__).with_name("IcebergRest.java")
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True)
class IcebergRest:
    """A running catalog; its tables lie in `warehouse`."""

    uri: str
    warehouse: Path

    @property
    def address(self) -> str:
        """`host:port`, as a proxy's upstream."""
        return self.uri.removeprefix("http://")


def locate() -> Path:
    """The folder of the server's jars. Raises ProgramMissingError."""
    if shutil.which("javac") is None:
        raise ProgramMissingError("the Iceberg REST catalog needs a JDK, not only a Java runtime")
    return locate_jars(f"iceberg-rest-{VERSION}", LISTING)


@contextmanager
def serve(folder: Path) -> Iterator[IcebergRest]:
    """Runs a server with its data below `folder`. Raises ProgramMissingError."""
    jars = locate()
    warehouse = folder / "warehouse"
    warehouse.mkdir()

    def command(port: int) -> list[str]:
        # Java compiles the one source file by itself.
        start = ["java", *JAVA_OPTIONS, "-cp", f"{jars}/*", str(SOURCE)]
        return [*start, str(port), str(folder / "catalog.db"), str(warehouse)]

    with running(command, folder / "log", {}) as port:
        yield IcebergRest(f"http://127.0.0.1:{port}", warehouse)


@pytest.fixture(scope="session")
def iceberg_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    try:
        locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("iceberg-rest")) as server:
        yield server
