"""A real Kafka broker (KRaft, one node) for tests; its jars come from Maven, once, into the cache of the tests.

Loaded as a pytest plugin by `tests/conftest.py`. One broker for the session: tests take topics of their own. What runs
without pytest, as the kill matrix does, calls `serve`. A second listener is advertised as `proxy_port`, where a test
puts a proxy: clients that come that way stay on it.
"""

import base64
import contextlib
import socket
import subprocess
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.jars import fetched, locate_jars
from tests.servers.process import free_port
from tests.servers.programs import ProgramMissingError
from tests.servers.toxiproxy import Proxy, Toxiproxy

VERSION = "4.2.0"
LISTING = Path(__file__).with_name("kafka_jars.txt")
DRIVER_LISTING = Path(__file__).parents[2] / "requirements" / "jars.txt"
START_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.05
LOG_TAIL_CHARACTERS = 2000
MAX_TIMEOUT_SECONDS = 900

JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},VIAPROXY://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}{more_listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},VIAPROXY://127.0.0.1:{proxy}{more_listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,VIAPROXY:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
log.dirs={logs}
num.partitions=2
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.max.timeout.ms={max_timeout}
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
"""

LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.c.ref = C
appender.c.type = Console
appender.c.name = C
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d %p %c %m%n
"""

USER = "writer"
PASSWORD = "s3cret-of-the-writer"


@dataclass(slots=True)
class KafkaServer:
    """A broker. It may be killed and started again: data and ports stay."""

    folder: Path
    jars: Path
    port: int = field(default_factory=free_port)
    inner_port: int = field(default_factory=free_port)
    proxy_port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    sasl_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` of the plain listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """`host:port` of the listener that asks who one is: `USER`, `PASSWORD`."""
        return f"127.0.0.1:{self.sasl_port}"

    @contextmanager
    def proxied(self, toxiproxy: Toxiproxy) -> Iterator[Proxy]:
        """A proxy in front of the broker; its `listen` is the bootstrap address, and all connections go through it."""
        with toxiproxy.proxy(f"127.0.0.1:{self.inner_port}", f"127.0.0.1:{self.proxy_port}") as proxy:
            yield proxy

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers. Raises RuntimeError with the end of its log."""
        config = self._configure()
        if not (self.folder / "data" / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
            tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
            command = self._java(*tool)
            made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_TIMEOUT_SECONDS)
            if made.returncode:
                raise RuntimeError(f"the data folder was not made: {made.stdout[-LOG_TAIL_CHARACTERS:]}{made.stderr}")
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                self._java("kafka.Kafka", str(config)), stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(POLL_SECONDS)
        self.stop()
        tail = (self.folder / "log").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
        raise RuntimeError(f"the broker did not start; the end of its log:\n{tail}")

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """End it; nothing of it is needed afterwards, so it has no time to put its house in order."""
        self.kill()

    def _configure(self) -> Path:
        config = self.folder / "server.properties"
        config.write_text(
            PROPERTIES.format(
                port=self.port,
                inner=self.inner_port,
                proxy=self.proxy_port,
                controller=self.controller_port,
                more_listeners=f",SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}",
                logs=self.folder / "data",
                max_timeout=MAX_TIMEOUT_SECONDS * 1000,
                user=USER,
                password=PASSWORD,
            )
        )
        (self.folder / "log4j2.properties").write_text(LOGGING)
        return config

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return ["java", *JAVA_OPTIONS, logging, "-cp", f"{self.jars}/*", *arguments]


def locate() -> Path:
    """The folder of the broker's jars, fetched if need be. Raises ProgramMissingError."""
    return locate_jars(f"kafka-{VERSION}", LISTING)


def locate_connector() -> list[Path]:
    """The jars of Spark's Kafka connector, as the driver image has them. Raises ProgramMissingError."""
    wanted = "\n".join(line for line in DRIVER_LISTING.read_text().splitlines() if _is_connector(line))
    return sorted(fetched(f"spark-kafka-{zlib.crc32(wanted.encode()):08x}", wanted).glob("*.jar"))


def _is_connector(line: str) -> bool:
    return not line.startswith("#") and ("kafka" in line or "commons-pool2" in line)


@contextmanager
def serve(folder: Path) -> Iterator[KafkaServer]:
    """Runs a broker with its data below `folder`. Raises ProgramMissingError."""
    server = KafkaServer(folder, locate())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Starts the broker. Skips where it is missing, which is a failure in CI."""
    try:
        locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("kafka")) as server:
        yield server
