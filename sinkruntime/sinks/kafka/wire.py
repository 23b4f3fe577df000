"""The few requests of Kafka's protocol that no client library offers: bytes out, values in.

`broker` sends them. Pure: no socket, no clock. Each is one fixed version that every broker since 3.0 speaks
(`kafka/clients/src/main/resources/common/message/*.json` in Kafka's repository is where the layouts come from).
Broken bytes raise `WireError`, whatever they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

CLIENT_ID = "sinkjob"
#: More than any answer to these requests should have; a length beyond it is not one of Kafka's.
ANSWER_BYTES_MAX = 64 * 1024**2

NO_ERROR = 0
COORDINATOR_LOADING = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
GROUP_NOT_AUTHORIZED = 30
FENCED_EPOCH = 47
INVALID_TXN_STATE = 48
UNKNOWN_PRODUCER_ID = 49
CONCURRENT_TRANSACTIONS = 51
NOT_AUTHORIZED = 53
UNSTABLE_OFFSET = 88
PRODUCER_FENCED = 90
ID_NOT_FOUND = 105
#: What a coordinator coordinates.
GROUP, TRANSACTION = 0, 1
#: The coordinator has moved or is not ready: ask again, and who it is.
PASSING = frozenset({COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})


class WireError(ValueError):
    """The bytes are no answer to what was asked."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: which, its body, and whether it has the newer, flexible framing."""

    api: int
    version: int
    body: bytes
    flexible: bool

    def frame(self, correlation: int) -> bytes:
        """With its header, and the length before it."""
        head = struct.pack(">hhi", self.api, self.version, correlation) + string(CLIENT_ID)
        tags = b"\0" if self.flexible else b""
        return struct.pack(">i", len(head) + len(tags) + len(self.body)) + head + tags + self.body


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Who coordinates a transactional id."""

    key: str
    host: str
    port: int
    error: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a coordinator says of a transactional id; `state` is "" in an error."""

    id: str
    error: int
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Offset:
    """What a group has committed for a partition; `offset` -1: nothing."""

    topic: str
    partition: int
    offset: int
    metadata: str
    error: int


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of a broker's list of transactions."""

    id: str
    producer_id: int
    state: str


# --- requests


def find_coordinators(keys: Sequence[str], kind: int) -> Request:
    """FindCoordinator v4: the coordinators of groups or of transactional ids."""
    return Request(10, 4, struct.pack(">b", kind) + _array(keys) + b"\0", flexible=True)


def describe_cluster() -> Request:
    """DescribeCluster v0: which brokers there are."""
    return Request(60, 0, b"\0\0", flexible=True)


def fetch_offsets(group: str) -> Request:
    """OffsetFetch v7: all that a group has committed, where it is stable."""
    return Request(9, 7, compact(group) + varint(0) + b"\1\0", flexible=True)


def describe_transactions(ids: Sequence[str]) -> Request:
    """DescribeTransactions v0."""
    return Request(65, 0, _array(ids) + b"\0", flexible=True)


def list_transactions(states: Sequence[str]) -> Request:
    """ListTransactions v0: all of one broker's that are in one of the states."""
    return Request(66, 0, _array(states) + varint(1) + b"\0", flexible=True)


def end_transaction(id: str, producer_id: int, producer_epoch: int, commit: bool) -> Request:
    """EndTxn v1, which leaves the producer's epoch as it is."""
    return Request(26, 1, string(id) + struct.pack(">qh?", producer_id, producer_epoch, commit), flexible=False)


def sasl_handshake(mechanism: str) -> Request:
    """SaslHandshake v1."""
    return Request(17, 1, string(mechanism), flexible=False)


def sasl_authenticate(token: bytes) -> Request:
    """SaslAuthenticate v1."""
    return Request(36, 1, struct.pack(">i", len(token)) + token, flexible=False)


# --- answers, each without its header


def read_coordinators(data: bytes) -> list[Coordinator]:
    reader = Reader(data)
    reader.int32()  # throttle time
    found = reader.array(_read_coordinator)
    reader.end()
    return found


def read_cluster(data: bytes) -> tuple[int, list[tuple[str, int]]]:
    """The error code, and the brokers' hosts and ports."""
    reader = Reader(data)
    reader.int32()
    error = reader.int16()
    reader.compact()  # the error in words
    reader.compact()  # the cluster's id
    reader.int32()  # the controller's
    found = reader.array(_read_broker)
    reader.int32()  # what the user may do
    reader.end()
    return error, found


def read_offsets(data: bytes) -> tuple[int, list[Offset]]:
    """The error code of the whole, and each partition."""
    reader = Reader(data)
    reader.int32()
    topics = reader.array(_read_topic_offsets)
    error = reader.int16()
    reader.end()
    return error, [one for topic in topics for one in topic]


def read_transactions(data: bytes) -> list[Transaction]:
    reader = Reader(data)
    reader.int32()
    found = reader.array(_read_transaction)
    reader.end()
    return found


def read_listed(data: bytes) -> tuple[int, list[Listed]]:
    """The error code of the whole, and the list."""
    reader = Reader(data)
    reader.int32()
    error = reader.int16()
    reader.array(lambda inner: inner.compact())  # states that the broker does not know
    found = reader.array(_read_listed)
    reader.end()
    return error, found


def read_ended(data: bytes) -> int:
    """The error code of an EndTxn."""
    reader = Reader(data)
    reader.int32()
    error = reader.int16()
    reader.done()
    return error


def read_handshake(data: bytes) -> tuple[int, list[str]]:
    """The error code, and the mechanisms that the broker knows."""
    reader = Reader(data)
    error = reader.int16()
    count = reader.int32()
    if not 0 <= count <= len(data):
        raise WireError(f"an array of {count}")
    names = [reader.string() for _ in range(count)]
    reader.done()
    return error, names


def read_authenticated(data: bytes) -> tuple[int, str, bytes]:
    """The error code, the broker's words, its token."""
    reader = Reader(data)
    error, message = reader.int16(), reader.string()
    token = reader.take(max(0, reader.int32()))
    reader.int64()  # the session's life
    reader.done()
    return error, message, token


def _read_coordinator(reader: Reader) -> Coordinator:
    key = reader.compact()
    reader.int32()  # node id
    host, port = reader.compact(), reader.int32()
    error = reader.int16()
    reader.compact()  # the error in words
    reader.tags()
    return Coordinator(key, host, port, error)


def _read_broker(reader: Reader) -> tuple[str, int]:
    reader.int32()  # node id
    host, port = reader.compact(), reader.int32()
    reader.compact()  # rack
    reader.tags()
    return host, port


def _read_topic_offsets(reader: Reader) -> list[Offset]:
    topic = reader.compact()
    found = reader.array(lambda inner: _read_offset(inner, topic))
    reader.tags()
    return found


def _read_offset(reader: Reader, topic: str) -> Offset:
    partition, offset = reader.int32(), reader.int64()
    reader.int32()  # leader epoch
    metadata, error = reader.compact(), reader.int16()
    reader.tags()
    return Offset(topic, partition, offset, metadata, error)


def _read_transaction(reader: Reader) -> Transaction:
    error, id, state = reader.int16(), reader.compact(), reader.compact()
    timeout_ms, started_ms = reader.int32(), reader.int64()
    producer_id, producer_epoch = reader.int64(), reader.int16()
    reader.array(_skip_topic)
    reader.tags()
    return Transaction(id, error, state, timeout_ms, started_ms, producer_id, producer_epoch)


def _skip_topic(reader: Reader) -> None:
    reader.compact()
    reader.array(lambda inner: inner.int32())
    reader.tags()


def _read_listed(reader: Reader) -> Listed:
    listed = Listed(reader.compact(), reader.int64(), reader.compact())
    reader.tags()
    return listed


# --- the types of the protocol


def string(text: str) -> bytes:
    """A text with its length in two bytes."""
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def compact(text: str) -> bytes:
    """A text with its length plus one as varint."""
    data = text.encode()
    return varint(len(data) + 1) + data


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _array(texts: Sequence[str]) -> bytes:
    return varint(len(texts) + 1) + b"".join(compact(text) for text in texts)


class Reader:
    """Reads values off the front of an answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise WireError(f"{count} bytes wanted at {self._at} of {len(self._data)}")
        self._at += count
        return self._data[self._at - count : self._at]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise WireError("a length of more than five bytes")

    def string(self) -> str:
        """ "" for null."""
        return self._text(max(0, self.int16()))

    def compact(self) -> str:
        """ "" for null."""
        return self._text(max(0, self.varint() - 1))

    def _text(self, count: int) -> str:
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise WireError("a text that is not UTF-8") from error

    def array(self, read: Callable[[Reader], T]) -> list[T]:
        count = self.varint() - 1
        if count > len(self._data):  # each item has a byte at least
            raise WireError(f"an array of {count}")
        return [read(self) for _ in range(count)]

    def tags(self) -> None:
        """Fields that were added later; each says how long it is."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def end(self) -> None:
        """Of a flexible answer."""
        self.tags()
        self.done()

    def done(self) -> None:
        if self._at != len(self._data):
            raise WireError(f"{len(self._data) - self._at} bytes too many")
