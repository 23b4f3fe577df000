"""The Kafka sink with a schema registry: what a record begins with leads a consumer to its schema."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka import registry
from tests.servers.kafka import KafkaServer
from tests.servers.schema_registry import SchemaRegistryServer
from tests.sinks.kafka import Place, make_place, write_rows

pytestmark = pytest.mark.integration

FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "to": pa.string()}
SCHEMA = pa.schema(FIELDS)
PASSWORD = "open sesame"


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """No number of a schema is known from another test."""
    registry.head.cache_clear()


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


def options(url: str, **more: Any) -> dict[str, Any]:
    given = {"key": ["id"], "keyFormat": "avro", "value": ["name"], "valueFormat": "avro"}
    return given | {"schemaRegistry": {"url": url} | more}


def row(id: int, name: str | None, to: str | None = None) -> dict[str, Any]:
    return {"id": id, "name": name, "to": to}


def ask(url: str, path: str, body: Any = None, method: str = "GET") -> Any:
    request = urllib.request.Request(
        url + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def decoded(url: str, data: bytes | None) -> Any:
    """As a consumer does it: by the schema that the record names."""
    assert data is not None
    assert data[:1] == b"\0"
    schema = json.loads(ask(url, f"/schemas/ids/{int.from_bytes(data[1:5], 'big')}")["schema"])
    return fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)


def test_a_consumer_finds_the_schemas_of_keys_and_values(place: Place, schema_registry: SchemaRegistryServer) -> None:
    url = schema_registry.url
    sink = place.sink(**options(url))
    sink.prepare_target(SCHEMA)
    subjects = ask(url, "/subjects")
    assert {f"{place.topic}-key", f"{place.topic}-value"} <= set(subjects)
    write_rows(sink, [row(1, "ünï"), row(2, None)], SCHEMA)
    found = [(decoded(url, one.key()), decoded(url, one.value())) for one in place.messages()]
    assert sorted(found, key=lambda pair: pair[0]["id"]) == [({"id": 1}, {"name": "ünï"}), ({"id": 2}, {"name": None})]


def test_tombstones_have_no_schema(place: Place, schema_registry: SchemaRegistryServer) -> None:
    sink = place.sink(**options(schema_registry.url), tombstones=True)
    write_rows(sink, [row(1, None)], SCHEMA)
    (message,) = place.messages()
    assert message.value() is None
    assert decoded(schema_registry.url, message.key()) == {"id": 1}


def test_each_topic_of_a_field_has_subjects_of_its_own_and_a_missing_one_none(
    place: Place, kafka_server: KafkaServer, schema_registry: SchemaRegistryServer
) -> None:
    url, other = schema_registry.url, make_place(kafka_server.bootstrap)
    sink = place.sink(**options(url), topicField="to")
    write_rows(sink, [row(1, "a", place.topic), row(2, "b", other.topic)], SCHEMA)
    assert [decoded(url, one.value()) for one in other.messages()] == [{"name": "b"}]
    assert {f"{place.topic}-value", f"{other.topic}-value"} <= set(ask(url, "/subjects"))
    with pytest.raises(TargetError, match="no-such-topic"):
        write_rows(sink, [row(3, "c", "no-such-topic")], SCHEMA)
    assert "no-such-topic-value" not in ask(url, "/subjects")


def test_columns_that_do_not_follow_on_the_subjects_schema_are_refused_at_start(
    place: Place, schema_registry: SchemaRegistryServer
) -> None:
    url = schema_registry.url
    place.sink(**options(url)).prepare_target(SCHEMA)
    ask(url, f"/config/{place.topic}-value", {"compatibility": "BACKWARD"}, "PUT")
    other = pa.schema(FIELDS | {"name": pa.bool_()})
    with pytest.raises(TargetError, match=f"{place.topic}-value") as refused:
        place.sink(**options(url)).prepare_target(other)
    assert (refused.value.reason, refused.value.path) == ("SchemaIncompatible", "options.schemaRegistry")


def test_without_auto_register_a_schema_must_be_there(place: Place, schema_registry: SchemaRegistryServer) -> None:
    url = schema_registry.url
    sink = place.sink(**options(url, autoRegister=False))
    with pytest.raises(TargetError, match=f"{place.topic}-key") as refused:
        sink.prepare_target(SCHEMA)
    assert refused.value.reason == "SchemaNotRegistered"
    assert "autoRegister" in refused.value.advice
    assert f"{place.topic}-key" not in ask(url, "/subjects")
    place.sink(**options(url)).prepare_target(SCHEMA)
    write_rows(sink, [row(1, "a")], SCHEMA)
    assert [decoded(url, one.value()) for one in place.messages()] == [{"name": "a"}]


def test_a_registry_that_is_away_stops_who_has_not_asked_before(place: Place) -> None:
    with pytest.raises(ConnectionError, match="not reached"):
        place.sink(**options("http://127.0.0.1:1")).prepare_target(SCHEMA)


def test_a_registry_that_goes_away_stops_nobody_who_has_asked(
    place: Place, schema_registry: SchemaRegistryServer
) -> None:
    with guarded(schema_registry.url) as url:
        sink = place.sink(**options(url, username="sinkjob", password=PASSWORD))
        sink.prepare_target(SCHEMA)
    write_rows(sink, [row(1, "a")], SCHEMA)
    assert [decoded(schema_registry.url, one.value()) for one in place.messages()] == [{"name": "a"}]


def test_a_registry_behind_tls_lets_in_who_has_the_password(
    place: Place, schema_registry: SchemaRegistryServer, certificate: Path
) -> None:
    with guarded(schema_registry.url, certificate) as url:
        known = {"username": "sinkjob", "caFile": str(certificate / "cert.pem")}
        place.sink(**options(url, **known, password=PASSWORD)).prepare_target(SCHEMA)
        registry.head.cache_clear()
        with pytest.raises(TargetError, match="HTTP 401") as refused:
            place.sink(**options(url, **known, password="wrong secret")).prepare_target(SCHEMA)
        assert refused.value.reason == "PermissionDenied"
        assert "wrong secret" not in str(refused.value)
        with pytest.raises(ConnectionError, match="certificate"):
            place.sink(**options(url)).prepare_target(SCHEMA)


@contextlib.contextmanager
def guarded(upstream: str, certificate: Path | None = None) -> Iterator[str]:
    """A gate before the registry, which has no users of its own: it wants a password, and passes on what has it."""

    class Gate(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            wanted = base64.b64encode(f"sinkjob:{PASSWORD}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {wanted}":
                self.answer(401, b'{"error_code": 40101, "message": "who are you?"}')
                return
            request = urllib.request.Request(upstream + self.path, body, {"Content-Type": self.headers["Content-Type"]})
            with urllib.request.urlopen(request, timeout=20) as found:
                self.answer(200, found.read())

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
