"""A real toxiproxy for tests: connections that are cut, slow, or lose their answers.

Loaded as a pytest plugin by `tests/conftest.py`. One server for the session: each test makes proxies of its own.
What runs without pytest, as the kill matrix does, calls `serve`.
"""

import json
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.servers.process import running
from tests.servers.programs import TOXIPROXY, ProgramMissingError, locate

REQUEST_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy. `listen` is its own `host:port`."""

    api: str
    name: str
    listen: str

    def add_toxic(self, kind: str, stream: Literal["downstream", "upstream"] = "downstream", **attributes: int) -> str:
        """Adds a toxic and returns its name. `downstream` is what the server answers.

        `limit_data` with `bytes=0` downstream loses the answer; `timeout` with `timeout=0` (ms) lets nothing
        through and keeps the connection; `latency` takes `latency` and `jitter` (ms); `bandwidth` takes `rate` (KB/s).
        """
        toxic = {"type": kind, "stream": stream, "attributes": attributes}
        name: str = _call("POST", f"{self._url}/toxics", toxic)["name"]
        return name

    def remove_toxic(self, name: str) -> None:
        """Takes a toxic away; it also ends the connections that the toxic held."""
        _call("DELETE", f"{self._url}/toxics/{name}")

    def disable(self) -> None:
        """Cuts all connections and refuses new ones, until `enable`."""
        _call("POST", self._url, {"enabled": False})

    def enable(self) -> None:
        """Accepts connections again, on the same port."""
        _call("POST", self._url, {"enabled": True})

    @property
    def _url(self) -> str:
        return f"{self.api}/proxies/{self.name}"


@dataclass(frozen=True, slots=True)
class Toxiproxy:
    """A running toxiproxy."""

    api: str

    @contextmanager
    def proxy(self, upstream: str, listen: str = "127.0.0.1:0") -> Iterator[Proxy]:
        """Puts a proxy (by default on a free port) in front of `upstream` (`host:port`), and removes it afterwards."""
        request = {"name": uuid.uuid4().hex, "listen": listen, "upstream": upstream, "enabled": True}
        made = _call("POST", f"{self.api}/proxies", request)
        try:
            # The port is named from here on, so that `enable` takes the same one.
            yield Proxy(self.api, made["name"], made["listen"])
        finally:
            _call("DELETE", f"{self.api}/proxies/{made['name']}")


def _call(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    # An opener without proxies: the environment's may not reach the loopback interface.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=REQUEST_TIMEOUT_SECONDS) as response:
        text = response.read()
    answer: dict[str, Any] = json.loads(text) if text else {}
    return answer


@contextmanager
def serve(folder: Path) -> Iterator[Toxiproxy]:
    """Runs a server; its log goes into `folder`. Raises ProgramMissingError."""
    program = locate(TOXIPROXY)

    def command(port: int) -> list[str]:
        return [str(program), "-host", "127.0.0.1", "-port", str(port)]

    with running(command, folder / "log", {}) as port:
        yield Toxiproxy(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def toxiproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    """Starts the server. Skips where it is missing, which is a failure in CI."""
    try:
        locate(TOXIPROXY)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve(tmp_path_factory.mktemp("toxiproxy")) as server:
        yield server
