"""A real PostgreSQL for tests.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session: tests take databases of their own.
What runs without pytest, as the kill matrix does, calls `serve`. The server refuses root, so that root starts it as
the user `postgres`, or as `nobody`.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.servers.database_programs import account, acting_as
from tests.servers.database_programs import postgresql as programs_of_postgresql
from tests.servers.process import Program, restartable
from tests.servers.programs import ProgramMissingError

ACCOUNT = "postgres"
USER = "sinkjob"
PASSWORD = "testsecret"  # a test looks for it in every message
SETUP_TIMEOUT_SECONDS = 60
READY_TIMEOUT_SECONDS = 30.0
PREPARED_MAX = 64


@dataclass(frozen=True, slots=True)
class PostgreSQLServer:
    """A running server; `USER` owns the databases that `make_database` makes. It may be killed and started again."""

    program: Program

    @property
    def port(self) -> int:
        """It listens here, also after it was started again."""
        return self.program.port

    @property
    def address(self) -> str:
        """`host:port`, as a proxy's upstream."""
        return f"127.0.0.1:{self.port}"

    def url(self, database: str, address: str = "") -> str:
        """The URL of a database, with its password; `address` is that of a proxy in front of the server."""
        return f"postgresql://{USER}:{PASSWORD}@{address or self.address}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection that commits each statement. Close it."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=10)

    def make_database(self, name: str) -> str:
        """Makes an empty database and returns its name."""
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return name

    def kill(self) -> None:
        """`kill -9` to all its processes."""
        self.program.kill()

    def start(self) -> None:
        """Start it again on the same data, and wait until it has recovered."""
        self.program.start()
        _wait_until_it_serves(self)


@contextmanager
def serve(prepared_max: int = PREPARED_MAX, settings: Mapping[str, str] | None = None) -> Iterator[PostgreSQLServer]:
    """Runs a server with its data in a folder of its own, and removes that. Raises ProgramMissingError.

    It flushes nothing to disk, unless `settings` say so: what is written survives a killed server, not a power cut.
    """
    name = account(ACCOUNT)
    prefix = acting_as(name)
    # Not below pytest's own folders: those let nobody else in.
    folder = Path(tempfile.mkdtemp(prefix="sinkjob-postgresql-"))
    try:
        programs = programs_of_postgresql(folder / "programs")
        data = folder / "data"
        data.mkdir(mode=0o700)
        password = folder / "password"
        password.write_text(f"{PASSWORD}\n")
        folder.chmod(0o755)
        if name:
            shutil.chown(data, name)
            shutil.chown(password, name)
        setup = [*prefix, str(programs / "initdb"), "-D", str(data), "-A", "scram-sha-256", "-U", USER, "-E", "UTF8"]
        subprocess.run(
            [*setup, "--locale=C.UTF-8", f"--pwfile={password}", "--no-sync"],
            check=True, capture_output=True, timeout=SETUP_TIMEOUT_SECONDS, cwd="/",
        )  # fmt: skip

        def command(port: int) -> list[str]:
            usual = {"max_prepared_transactions": prepared_max, "max_connections": 100, "shared_buffers": "64MB"}
            wanted = usual | {"fsync": "off"} | dict(settings or {})
            given = [part for name, value in wanted.items() for part in ("-c", f"{name}={value}")]
            place = ["-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
            return [*prefix, str(programs / "postgres"), *place, *given]

        with restartable(command, folder / "log") as program:
            server = PostgreSQLServer(program)
            _wait_until_it_serves(server)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_serves(server: PostgreSQLServer) -> None:
    """The port is open before the server takes anybody."""
    until = time.monotonic() + READY_TIMEOUT_SECONDS
    while True:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serve())
        except ProgramMissingError as error:
            pytest.skip(f"missing server: {error}")
        yield server
