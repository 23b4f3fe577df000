"""Paimon's own Python library, in an environment of its own: it needs older versions of what we have.

Loaded as a pytest plugin by `tests/conftest.py`. One process for the session reads and writes tables as another program
would. The environment is made once, in the cache of the tests, by uv or pip with the machine's own settings. What runs
without pytest, as the kill matrix does, calls `serve`.
"""

import base64
import json
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.environments import locate_environment
from tests.servers.programs import ProgramMissingError

REQUIREMENT = "pypaimon==2.1.0"
PEER = Path(__file__).with_name("paimon_peer.py")
INSTALL_TIMEOUT_SECONDS = 600
STOP_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PaimonPeer:
    """The running process. Its values are Python's own: no Arrow, no pandas."""

    process: "subprocess.Popen[str]"

    def rows(self, warehouse: Path, table: str) -> list[dict[str, Any]]:
        """All rows that a reader of the table sees."""
        found: list[dict[str, Any]] = self.call("rows", warehouse=str(warehouse), table=table)
        return found

    def export(self, warehouse: Path, table: str, out: Path) -> None:
        """Write all rows that a reader sees as Parquet into the folder `out`."""
        self.call("export", warehouse=str(warehouse), table=table, out=str(out))

    def leftovers(self, warehouse: Path, table: str) -> set[str]:
        """Files of a table that no snapshot needs: markers, temporary files, data files and manifests of nobody."""
        database, _, name = table.partition(".")
        root = warehouse / f"{database}.db" / name
        needed = set(self.call("referenced", warehouse=str(warehouse), table=table))
        kept = {"schema", "snapshot", "consumer"}
        paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        found = {path.as_posix() for path in paths if path.parts[0] not in kept or path.name.startswith(".")}
        return found - needed

    def create(self, warehouse: Path, table: str, fields: list[tuple[str, str, bool]], **more: Any) -> None:
        """Make a table: (name, Arrow's function for the type, nullable) each; `more` as `Schema` takes it."""
        self.call("create", warehouse=str(warehouse), table=table, fields=fields, **more)

    def append(self, warehouse: Path, table: str, records: list[dict[str, Any]], times: int = 1) -> None:
        """Another writer: so many snapshots, each with these rows."""
        self.call("append", warehouse=str(warehouse), table=table, records=records, times=times)

    def buckets(self, kinds: list[str], records: list[tuple[Any, ...]], count: int) -> list[tuple[bytes, int]]:
        """Each key as a binary row, and its bucket."""
        text = base64.b64encode(pickle.dumps(records)).decode()
        found: list[tuple[bytes, int]] = self.call("buckets", kinds=kinds, records=text, count=count)
        return found

    def call(self, name: str, **arguments: Any) -> Any:
        """Ask it. Raises AssertionError with its traceback."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"Paimon's process ended with {self.process.poll()}"
        kind, value = pickle.loads(base64.b64decode(line))
        assert kind == "ok", value
        return value


@contextmanager
def serve() -> Iterator[PaimonPeer]:
    """Runs the process. Raises ProgramMissingError."""
    command = [str(locate()), str(PEER)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield PaimonPeer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def paimon_peer() -> Iterator[PaimonPeer]:
    """The process. Skips where its environment cannot be made, which is a failure in CI."""
    try:
        locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing library: {error}")
    with serve() as peer:
        yield peer


def locate() -> Path:
    """The Python of the environment, made if need be. Raises ProgramMissingError."""
    return locate_environment("pypaimon", [REQUIREMENT])
