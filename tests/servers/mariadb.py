"""A real MariaDB for tests.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session: tests take databases of their own.
What runs without pytest, as the kill matrix does, calls `serve`. Root starts it as the user `mysql`, or as `nobody`.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.servers.database_programs import account, acting_as
from tests.servers.database_programs import mariadb as programs_of_mariadb
from tests.servers.process import Program, restartable
from tests.servers.programs import ProgramMissingError

ACCOUNT = "mysql"
USER = "sinkjob"
PASSWORD = "testsecret"  # a test looks for it in every message
SETUP_TIMEOUT_SECONDS = 120
READY_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class MariaDBServer:
    """A running server; `USER` may do everything. It may be killed and started again."""

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
        return f"mariadb://{USER}:{PASSWORD}@{address or self.address}/{database}"

    def connect(self, database: str | None = None) -> Any:
        """A connection that commits each statement. Close it."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=database, autocommit=True,
            charset="utf8mb4",
        )  # fmt: skip

    def make_database(self, name: str) -> str:
        """Makes an empty database and returns its name."""
        connection = self.connect()
        try:
            connection.cursor().execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        finally:
            connection.close()
        return name

    def kill(self) -> None:
        """`kill -9`."""
        self.program.kill()

    def start(self) -> None:
        """Start it again on the same data, and wait until it has recovered."""
        self.program.start()
        _wait_for_the_user(self)


@contextmanager
def serve() -> Iterator[MariaDBServer]:
    """Runs a server with its data in a folder of its own, and removes that. Raises ProgramMissingError."""
    name = account(ACCOUNT)
    prefix = acting_as(name)
    # Not below pytest's own folders: those let nobody else in.
    folder = Path(tempfile.mkdtemp(prefix="sinkjob-mariadb-"))
    try:
        folder.chmod(0o755)
        data = folder / "data"
        data.mkdir()
        if name:
            shutil.chown(data, name)
        programs = programs_of_mariadb(folder / "programs")
        setup = [
            *prefix,
            str(programs.install_db),
            "--no-defaults",
            *programs.base,
            f"--datadir={data}",
            "--skip-test-db",
        ]
        subprocess.run(
            [*setup, "--auth-root-authentication-method=normal"],
            check=True, capture_output=True, timeout=SETUP_TIMEOUT_SECONDS, cwd="/",
        )  # fmt: skip
        start = folder / "start.sql"
        start.write_text(f"CREATE USER IF NOT EXISTS {USER} IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO {USER};\n")

        def command(port: int) -> list[str]:
            place = [
                f"--datadir={data}",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                f"--port={port}",
                f"--socket={data}/my.sock",
            ]
            sizes = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M", f"--init-file={start}"]
            sizes.append("--innodb-flush-log-at-trx-commit=2")  # survives a killed server, not a power cut
            begin = [*prefix, str(programs.mariadbd), "--no-defaults", *programs.places]
            return [*begin, *place, f"--pid-file={data}/my.pid", *sizes]

        with restartable(command, folder / "log") as program:
            found = MariaDBServer(program)
            _wait_for_the_user(found)
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_the_user(server: MariaDBServer) -> None:
    """The port is open before the init file has run."""
    until = time.monotonic() + READY_TIMEOUT_SECONDS
    while True:
        try:
            server.connect().close()
            return
        except pymysql.MySQLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serve())
        except ProgramMissingError as error:
            pytest.skip(f"missing server: {error}")
        yield server
