"""Real Hive metastores (4.0.1 and 3.1.3, over Derby) for tests; their jars come from Maven, once, into a cache.

Loaded as a pytest plugin by `tests/conftest.py`. One of each for the session: tests take databases of their own. What
runs without pytest, as the kill matrix does, calls `serve`; `python -m tests.servers.hive_metastore PORT` runs a 4.0.1
for people, until it is interrupted. 3.1.3 listens on all interfaces and cannot be told not to:
it runs in a network of its own, and is reached through a socket in the file system.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.jars import locate_jars
from tests.servers.process import free_port
from tests.servers.programs import ProgramMissingError
from tests.servers.s3 import S3Server

VERSIONS = {4: "4.0.1", 3: "3.1.3"}
START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.1
LOG_TAIL_CHARACTERS = 2000
#: The one bucket that a metastore knows: to it, `s3a://hive-tables/…` is the folder `Metastore.bucket`.
BUCKET = "hive-tables"

JAVA_OPTIONS = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("net", "lang", "util", "util.concurrent", "nio")),
)


@dataclass(slots=True)
class Metastore:
    """A running metastore."""

    folder: Path
    version: int
    port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        """`host:port`, as a proxy's upstream."""
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        return f"thrift://{self.address}"

    @property
    def external(self) -> Path:
        """Where external tables may be."""
        return self.folder / "external"

    @property
    def bucket(self) -> Path:
        """What the metastore takes for the bucket `BUCKET`: a folder, or a link to the S3 server's."""
        return self.folder / "bucket"

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A Thrift client of our own, to make and look at tables past the sink."""
        from hive_metastore import ThriftHiveMetastore
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

        transport = TBufferedTransport(TSocket("127.0.0.1", self.port))
        transport.open()
        try:
            yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        finally:
            transport.close()

    def make_database(self) -> str:
        """Makes a database of a new name, its tables below folders of its own, and returns the name."""
        from hive_metastore.ttypes import Database

        name = f"db_{uuid.uuid4().hex[:12]}"
        warehouse = self.folder / "warehouse" / f"{name}.db"
        with self.client() as client:
            client.create_database(Database(name=name, locationUri=f"file://{warehouse}", parameters={}))
        return name


def settings(server: Metastore) -> dict[str, str]:
    """Of `metastore-site.xml`."""
    found = {
        "metastore.thrift.bind.host": "127.0.0.1",
        "metastore.warehouse.dir": f"file://{server.folder / 'warehouse'}",
        "metastore.warehouse.external.dir": f"file://{server.external}",
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={server.folder / 'derby'};create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "metastore.schema.verification": "false",
        "metastore.event.db.notification.api.auth": "false",
        "metastore.compactor.initiator.on": "false",
        "metastore.task.threads.always": "",
        "metastore.server.min.threads": "8",
        # To the metastore, a bucket is a folder: it looks into it, and the sink writes by way of a real S3 server.
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.s3a.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.{BUCKET}.linkMergeSlash": f"file://{server.bucket}",
    }
    if server.version == 3:
        found |= {
            "metastore.client.capability.check": "false",
            "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
            "hive.in.test": "true",
            "metastore.in.test": "true",
            "hive.metastore.schema.verification": "false",
            "metastore.schema.verification.record.version": "false",
            "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        }
    return found


def locate(version: int) -> Path:
    """The folder of its jars, fetched if need be. Raises ProgramMissingError."""
    listing = Path(__file__).with_name(f"hive_metastore_{version}_jars.txt")
    return locate_jars(f"hive-metastore-{VERSIONS[version]}", listing)


@contextmanager
def serve(folder: Path, version: int = 4, port: int = 0) -> Iterator[Metastore]:
    """Runs a metastore with its data below `folder`. Raises ProgramMissingError."""
    jars = locate(version)
    server = Metastore(folder, version, port or free_port())
    for name in ("warehouse", "external", "conf"):
        (folder / name).mkdir()
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings(server).items()
    )
    for name in ("metastore-site.xml", "core-site.xml"):
        (folder / "conf" / name).write_text(f"<configuration>{properties}</configuration>")
    command = [
        "java", *JAVA_OPTIONS, f"-Dderby.stream.error.file={folder / 'derby.log'}",
        "-cp", f"{folder / 'conf'}:{jars}/*",
        "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(server.port),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        if version == 3:
            relay = str(folder / "socket")
            inside = [sys.executable, str(Path(__file__).with_name("relay.py")), relay, str(server.port), *command]
            command = ["unshare", "--net", *inside]
            stack.enter_context(_relayed(server.port, relay))
        with (folder / "log").open("ab") as output:
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        stack.callback(_stop, process)
        _wait_until_it_answers(server, process)
        yield server


def _wait_until_it_answers(server: Metastore, process: "subprocess.Popen[bytes]") -> None:
    from thrift.Thrift import TException

    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, TException), server.client() as client:
            client.get_all_databases()
            return
        time.sleep(POLL_SECONDS)
    tail = (server.folder / "log").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
    raise RuntimeError(f"the metastore did not start; the end of its log:\n{tail}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Nothing of it is needed afterwards."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)


@contextmanager
def _relayed(port: int, path: str) -> Iterator[None]:
    """Connections to a port of the loopback interface go to the socket at `path`, for this block."""
    from tests.servers.relay import serve_relay

    listener = socket.create_server(("127.0.0.1", port))

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)
        except OSError:  # it is not there yet
            made.close()
            raise
        return made

    threading.Thread(target=serve_relay, args=(listener, connect), daemon=True).start()
    try:
        yield
    finally:
        listener.close()


def can_have_a_network() -> bool:
    """Whether this process may make a network of its own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    made = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    return made.returncode == 0


@pytest.fixture(scope="session")
def hive_metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """Starts Hive's metastore 4. Skips where it is missing, which is a failure in CI."""
    try:
        locate(4)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("hive4")) as server:
        yield server


@pytest.fixture(scope="session")
def hive_metastore_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """Starts Hive's metastore 3, in a network of its own."""
    if os.geteuid() != 0 or not can_have_a_network():
        pytest.skip("by design: Hive's metastore 3 listens on all interfaces, and only root can give it its own")
    try:
        locate(3)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("hive3"), 3) as server:
        yield server


@pytest.fixture
def hive_database(hive_metastore: Metastore) -> str:
    """A database of the test's own."""
    return hive_metastore.make_database()


@pytest.fixture(scope="session")
def hive_bucket(hive_metastore: Metastore, s3_server: S3Server) -> S3Server:
    """The S3 server, with the bucket that the metastore knows."""
    s3_server.make_bucket(BUCKET)
    hive_metastore.bucket.symlink_to(s3_server.data_dir / BUCKET)
    return s3_server


def main(port: int) -> None:
    """Run one until it is interrupted; its data go with it."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), port=port) as server:
        print(f"{server.uri} is ready; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
