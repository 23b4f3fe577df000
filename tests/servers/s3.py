"""A real S3 server (versitygw over a folder) for tests.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session: tests take buckets of their own.
What runs without pytest, as the kill matrix does, calls `serve`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from tests.servers.process import running
from tests.servers.programs import VERSITYGW, ProgramMissingError, locate

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS_KEY = "testkey"
SECRET_KEY = "testsecret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server. `data_dir` holds each bucket as a folder and each object as a plain file."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    data_dir: Path

    @property
    def address(self) -> str:
        """`host:port`, as a proxy's upstream."""
        return self.endpoint.removeprefix("http://")

    def storage(self, endpoint: str | None = None) -> dict[str, Any]:
        """A sink's `storage` options for this server, or for a proxy in front of it."""
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        return {"endpoint": endpoint or self.endpoint, "region": self.region, "pathStyle": True, **keys}

    def client(self, endpoint: str | None = None) -> "S3Client":
        """A client of this server, or of a proxy in front of it: one attempt, short time limits. Close it."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=5,
                read_timeout=10,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                proxies={},
            ),
        )

    def make_bucket(self, name: str) -> str:
        """Makes a bucket (names have three characters or more) and returns its name."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


@contextmanager
def serve(folder: Path) -> Iterator[S3Server]:
    """Runs a server with its data below `folder`. Raises ProgramMissingError."""
    program = locate(VERSITYGW)
    data, metadata = folder / "data", folder / "metadata"
    data.mkdir()
    metadata.mkdir()

    def command(port: int) -> list[str]:
        # Without --sidecar it keeps metadata in extended attributes, which not every file system has.
        return [str(program), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(metadata), str(data)]

    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with running(command, folder / "log", keys) as port:
        yield S3Server(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, "us-east-1", data)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    try:
        locate(VERSITYGW)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("s3")) as server:
        yield server
