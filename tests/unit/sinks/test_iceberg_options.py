"""The catalog's settings reach pyiceberg and nobody else; credentials that are refused are said so, without them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sinkruntime.api import RunOn
from sinkruntime.errors import TargetError
from sinkruntime.sinks.iceberg import IcebergSink, catalog
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.spec.options_from import Secrets
from sinkruntime.spec.sink_options import parse_options
from tests.sinks import harness


def options(**given: Any) -> Options:
    return Options.model_validate({"table": "db.rows", "catalog": given})


def test_further_settings_are_passed_on_as_text_and_never_shown() -> None:
    made = options(type="rest", uri="https://user:pass-word@x/", **{"token": "s3cret", "s3.path-style-access": True})
    assert made.catalog.properties() == {
        "type": "rest",
        "uri": "https://user:pass-word@x/",
        "token": "s3cret",
        "s3.path-style-access": "true",
    }
    assert "s3cret" not in repr(made)
    assert "pass-word" not in repr(made)


def test_a_secret_with_dots_in_its_name_reaches_the_catalog() -> None:
    given = {"table": "db.rows", "catalog": {"type": "rest", "uri": "https://x"}}
    read = parse_options(IcebergSink, given, ("options",), Secrets({"catalog.s3.secret-access-key": "s3cret"}))
    assert isinstance(read, Options)
    assert read.catalog.properties()["s3.secret-access-key"] == "s3cret"


def test_relative_places_begin_at_the_manifest_and_are_committed_by_the_driver() -> None:
    here = options(type="sql", uri="sqlite:///lake/catalog.db", warehouse="./lake")
    made = IcebergSink.located(here, "/jobs/one")
    assert made.catalog.properties()["uri"] == "sqlite:////jobs/one/lake/catalog.db"
    assert made.catalog.warehouse == "/jobs/one/lake"
    assert IcebergSink.located(made, "/elsewhere") == made
    assert IcebergSink.default_run_on(made) is RunOn.DRIVER
    far = options(type="sql", uri="postgresql+psycopg://db/x", warehouse="s3://lake")
    assert IcebergSink.default_run_on(far) is RunOn.OPERATOR
    assert IcebergSink.located(far, "/jobs").catalog.properties() == far.catalog.properties()


def test_an_error_that_holds_a_secret_is_shown_without_it() -> None:
    made = options(type="sql", uri="postgresql://me:pass-word@db/x", token="s3cret")
    text = catalog.hide(OSError("me:pass-word@db said s3cret is no token"), made)
    assert text == "OSError: ***@db said *** is no token"


class Refusing(BaseHTTPRequestHandler):
    """Answers as Iceberg's REST specification says for credentials that are not accepted. A stand-in: Iceberg's
    reference server asks for none."""

    def do_GET(self) -> None:
        body = b'{"error": {"message": "no such user", "type": "NotAuthorizedException", "code": 401}}'
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refused_credentials_are_said_by_name_and_not_shown(refusing: str) -> None:
    sink = IcebergSink(options(type="rest", uri=refusing, token="s3cret"), harness.identity())
    with pytest.raises(TargetError, match=r"options\.catalog: PermissionDenied: the catalog refuses") as caught:
        sink.prepare_target(harness.SCHEMA)
    assert "s3cret" not in str(caught.value)
