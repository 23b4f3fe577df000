"""The Kafka sink over TLS: writers, evidence and committers trust the same authority and prove who they are by it.

The broker's side of TLS is a small terminator in front of the listener that a proxy would have.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sinkruntime.api import Answer
from sinkruntime.errors import TargetError
from tests.servers.kafka import KafkaServer
from tests.sinks import harness
from tests.sinks.contract import ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.kafka import Place, make_place

pytestmark = pytest.mark.integration

BUFFER_BYTES = 65_536


@pytest.fixture
def place(kafka_server: KafkaServer, certificate: Path) -> Iterator[Place]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate / "cert.pem"))
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with terminator(context, kafka_server.proxy_port, kafka_server.inner_port):
        yield make_place(kafka_server.bootstrap, f"127.0.0.1:{kafka_server.proxy_port}")


@contextlib.contextmanager
def terminator(context: ssl.SSLContext, port: int, upstream: int) -> Iterator[None]:
    """Takes TLS off connections to `port` and passes their bytes on."""
    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=_accept, args=(listener, context, upstream), daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, context: ssl.SSLContext, upstream: int) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(plain, context, upstream), daemon=True).start()


def _serve(plain: socket.socket, context: ssl.SSLContext, upstream: int) -> None:
    with (
        contextlib.suppress(OSError),
        plain,
        context.wrap_socket(plain, server_side=True) as client,
        socket.create_connection(("127.0.0.1", upstream)) as broker,
    ):
        back = threading.Thread(target=_pass_on, args=(broker, client), daemon=True)
        back.start()
        _pass_on(client, broker)
        back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(BUFFER_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def settings(certificate: Path, **more: Any) -> dict[str, Any]:
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificate / "cert.pem"),
        "ssl.certificate.location": str(certificate / "cert.pem"),
        "ssl.key.location": str(certificate / "key.pem"),
        **more,
    }


def test_rows_are_staged_and_committed_over_tls(place: Place, certificate: Path) -> None:
    sink = place.sink(transactionalIdPrefix=place.prefix, producer=settings(certificate))
    sink.prepare_target(harness.SCHEMA)
    assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
    assert sink.prove(1, 1)
    assert sum(place.rows().values()) == len(ROWS)


def test_a_broker_of_an_unknown_authority_is_not_spoken_to(place: Place, certificate: Path) -> None:
    stranger = settings(certificate)
    del stranger["ssl.ca.location"]
    sink = place.sink(transactionalIdPrefix=place.prefix, producer=stranger)
    with pytest.raises(TargetError, match="certificate") as caught:
        sink.prove(1, 1)
    assert caught.value.reason == "BrokerUnreachable"


def test_a_certificate_that_cannot_be_read_is_told(place: Place, certificate: Path) -> None:
    wrong = settings(certificate, **{"ssl.key.location": str(certificate / "none.pem")})
    with pytest.raises(TargetError) as caught:
        place.sink(producer=wrong).prove(1, 1)
    assert (caught.value.reason, caught.value.path) == ("CertificateUnreadable", "options.producer")
