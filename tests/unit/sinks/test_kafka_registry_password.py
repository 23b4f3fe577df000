"""The password of a schema registry goes to its own address and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sinkruntime.sinks.kafka.options import SchemaRegistry
from sinkruntime.sinks.kafka.registry import head

asked: list[str | None] = []


class _Elsewhere(BaseHTTPRequestHandler):
    """Sends everybody on to another host name; notes who comes."""

    def do_POST(self) -> None:
        self.send_response(302)
        port = self.headers["Host"].rpartition(":")[2]
        self.send_header("Location", f"http://localhost:{port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        asked.append(self.headers["Authorization"])
        self.send_error(404)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_registry_that_sends_us_elsewhere_is_not_followed(address: str) -> None:
    options = SchemaRegistry.model_validate({"url": address, "username": "u", "password": "geheim"})
    with pytest.raises(ConnectionError, match="HTTP 302"):
        head(options, "t-value", "{}")
    assert asked == []
