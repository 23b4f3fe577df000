"""One connection to a broker for the requests of `wire`: TCP, TLS where asked for, SASL where asked for.

Made and kept by `broker`. A call that gets no answer raises `AnswerLost`; one that was never sent raises
`ConnectionError`. Never retries.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka import sasl, wire

CONNECT_TIMEOUT_SECONDS = 5.0
#: An EndTxn waits for the log of the transactions; a broker that is silent for longer is asked again.
ANSWER_TIMEOUT_SECONDS = 10.0


class AnswerLost(Exception):
    """The request was sent and no answer came: it may have happened."""


class Connection:
    """A socket, and the requests on it, one at a time. Not for several threads at once."""

    def __init__(self, host: str, port: int, settings: Mapping[str, str]) -> None:
        self._where = f"{host}:{port}"
        self._correlation = 0
        self._socket: socket.socket = socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS)
        try:
            self._socket.settimeout(ANSWER_TIMEOUT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            protocol = settings.get("security.protocol", "plaintext").lower()
            if protocol.endswith("ssl"):
                self._socket = _tls(settings).wrap_socket(self._socket, server_hostname=host)
            if protocol.startswith("sasl"):
                self._authenticate(settings)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(self, request: wire.Request) -> bytes:
        """Send it and return the answer without its header."""
        self._correlation += 1
        frame = request.frame(self._correlation)
        try:
            self._socket.sendall(frame)
            (length,) = (int.from_bytes(self._read(4), "big", signed=True),)
            if not 4 <= length <= wire.ANSWER_BYTES_MAX:
                raise AnswerLost(f"{self._where} answers with {length} bytes")
            answer = self._read(length)
        except (OSError, EOFError) as error:
            raise AnswerLost(f"{self._where}: {str(error) or type(error).__name__}") from error
        if int.from_bytes(answer[:4], "big", signed=True) != self._correlation:
            raise AnswerLost(f"{self._where} answers another request")
        # The flexible header has tags, of which brokers send none.
        return answer[5:] if request.flexible else answer[4:]

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return bytes(data)

    def _authenticate(self, settings: Mapping[str, str]) -> None:
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
        error, known = wire.read_handshake(self.call(wire.sasl_handshake(mechanism)))
        if error:
            message = f"the broker does not know {mechanism or 'no mechanism'}; it has {', '.join(known)}"
            raise TargetError("AuthenticationFailed", message, path="options.producer")
        username, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
        sasl.authenticate(mechanism, username, password, self._token)

    def _token(self, token: bytes) -> bytes:
        error, message, answer = wire.read_authenticated(self.call(wire.sasl_authenticate(token)))
        if error:
            said = message or f"error {error}"
            raise TargetError("AuthenticationFailed", f"{self._where}: {said}", path="options.producer")
        return answer


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    """The same trust as librdkafka has by the same settings."""
    try:
        context = ssl.create_default_context(
            cafile=settings.get("ssl.ca.location"), cadata=settings.get("ssl.ca.pem")
        )  # fmt: skip
        certificate = settings.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        message = f"a certificate or key of `ssl.*` cannot be read: {type(error).__name__}"
        raise TargetError("CertificateUnreadable", message, path="options.producer") from error
    if settings.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
