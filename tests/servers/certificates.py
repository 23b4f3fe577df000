"""A certificate for servers of tests, made by openssl. Loaded as a pytest plugin by `tests/conftest.py`."""

import subprocess
from pathlib import Path

import pytest

from tests.servers.programs import OPENSSL, ProgramMissingError, locate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem`, which signs itself for 127.0.0.1, and `key.pem`."""
    try:
        openssl = locate(OPENSSL)
    except ProgramMissingError as error:
        pytest.skip(f"missing program: {error}")
    folder = tmp_path_factory.mktemp("tls")
    command = (
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=broker -addext subjectAltName=IP:127.0.0.1 "
        "-keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=30)
    return folder
