"""Kafka's bytes: what is written reads back, and no broken answer does anything but raise `WireError`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.sinks.kafka import wire

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TAGS = st.lists(st.tuples(st.integers(0, 100), st.binary(max_size=5)), max_size=2)


def tags(found: list[tuple[int, bytes]]) -> bytes:
    fields = b"".join(wire.varint(tag) + wire.varint(len(data)) + data for tag, data in found)
    return wire.varint(len(found)) + fields


def array(items: list[bytes]) -> bytes:
    return wire.varint(len(items) + 1) + b"".join(items)


@given(st.integers(0, 2**35 - 1))
def test_varints_read_back(number: int) -> None:
    assert wire.Reader(wire.varint(number)).varint() == number


@given(TEXTS, TAGS)
def test_texts_read_back(text: str, more: list[tuple[int, bytes]]) -> None:
    reader = wire.Reader(wire.compact(text) + tags(more) + wire.string(text))
    assert reader.compact() == text
    reader.tags()
    assert reader.string() == text
    reader.done()


@given(st.lists(st.tuples(INT16, TEXTS, TEXTS, INT32, INT64, INT64, INT16, TAGS), max_size=4), TAGS)
def test_descriptions_read_back(rows: list[Any], more: list[tuple[int, bytes]]) -> None:
    def encoded(row: Any) -> bytes:
        error, id, state, timeout, started, producer, epoch, after = row
        head = struct.pack(">h", error) + wire.compact(id) + wire.compact(state)
        topics = array([wire.compact("t") + array([struct.pack(">i", 3)]) + b"\0"])
        return head + struct.pack(">iqqh", timeout, started, producer, epoch) + topics + tags(after)

    found = wire.read_transactions(struct.pack(">i", 0) + array([encoded(row) for row in rows]) + tags(more))
    assert found == [wire.Transaction(id, error, state, *rest[:-1]) for error, id, state, *rest in rows]


@given(st.lists(st.tuples(TEXTS, INT64, TEXTS), max_size=4), INT16)
def test_lists_read_back(rows: list[tuple[str, int, str]], error: int) -> None:
    items = [wire.compact(id) + struct.pack(">q", pid) + wire.compact(state) + b"\0" for id, pid, state in rows]
    data = struct.pack(">ih", 0, error) + array([wire.compact("Odd")]) + array(items) + b"\0"
    assert wire.read_listed(data) == (error, [wire.Listed(*row) for row in rows])


@given(TEXTS, st.lists(st.tuples(INT32, INT64, TEXTS, INT16), max_size=4), INT16)
def test_offsets_read_back(topic: str, rows: list[tuple[int, int, str, int]], error: int) -> None:
    items = [
        struct.pack(">iqi", partition, offset, -1) + wire.compact(metadata) + struct.pack(">h", wrong) + b"\0"
        for partition, offset, metadata, wrong in rows
    ]
    data = struct.pack(">i", 0) + array([wire.compact(topic) + array(items) + b"\0"]) + struct.pack(">h", error) + b"\0"
    assert wire.read_offsets(data) == (error, [wire.Offset(topic, *row) for row in rows])


READERS: list[Callable[[bytes], Any]] = [
    wire.read_coordinators,
    wire.read_cluster,
    wire.read_offsets,
    wire.read_transactions,
    wire.read_listed,
    wire.read_ended,
    wire.read_handshake,
    wire.read_authenticated,
]


@pytest.mark.parametrize("read", READERS)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(read: Callable[[bytes], Any], data: bytes) -> None:
    try:
        read(data)
    except wire.WireError:
        return


@given(st.integers(0, 30))
def test_an_answer_that_is_cut_short_is_refused(length: int) -> None:
    whole = struct.pack(">ihi", 0, 0, 0)[:6]
    assert wire.read_ended(whole) == 0
    with pytest.raises(wire.WireError):
        wire.read_ended(whole[: min(length, 5)])


def test_requests_are_kafkas_own_bytes() -> None:
    """Written down once from a broker's point of view; brokers of the integration tests read them."""
    ended = wire.end_transaction("id", 7, 3, commit=True).frame(5)
    head = struct.pack(">hhi", 26, 1, 5) + struct.pack(">h", 7) + b"sinkjob"
    body = struct.pack(">h", 2) + b"id" + struct.pack(">qh", 7, 3) + b"\1"
    assert ended == struct.pack(">i", len(head + body)) + head + body
    described = wire.describe_transactions(["id"])
    assert described.body == b"\x02\x03id\x00"
    assert described.frame(1)[4:8] == struct.pack(">hh", 65, 0)
    assert wire.list_transactions(["Ongoing"]).body == b"\x02\x08Ongoing\x01\x00"
    assert wire.find_coordinators(["a"], wire.TRANSACTION).body == b"\x01\x02\x02a\x00"
    assert wire.fetch_offsets("g").body == b"\x02g\x00\x01\x00"
