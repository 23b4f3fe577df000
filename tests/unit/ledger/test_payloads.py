"""Committables and writer states in their written form: packed, placed, read back, checked."""

import asyncio
import os
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.api import Lineage
from sinkruntime.driver.staging import Written
from sinkruntime.errors import LedgerCorrupt, SinkjobError
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.payloads import (
    INLINE_BYTES_MAX,
    INLINE_BYTES_TOTAL_MAX,
    UNPACKED_BYTES_MAX,
    inline_left,
    load_payload,
    object_epoch,
    object_name,
    pack,
    store_payloads,
    unpack,
)
from sinkruntime.protocol.ledger import LastDecision, Ledger, Offsets, Part, Payload, Position, Record

numbers = st.integers(0, 2**31 - 1)
items = st.lists(
    st.tuples(
        st.builds(Lineage, numbers, numbers, numbers, numbers, numbers),
        st.builds(Written, numbers, st.binary(max_size=50)),
    ),
    max_size=4,
)


@given(items)
def test_what_is_packed_is_unpacked_the_same(values: list[tuple[Lineage, Written]]) -> None:
    assert unpack(pack(values)) == values
    assert pack(values) == pack(values)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_payload_are_corrupt(data: bytes) -> None:
    with pytest.raises(LedgerCorrupt):
        unpack(data)


def test_a_payload_cut_short_inside_is_corrupt() -> None:
    whole = zlib.decompress(pack([(Lineage(1, 1, 0, 1, 0), Written(1, b"abcdef"))]))
    for length in range(5, len(whole)):
        with pytest.raises(LedgerCorrupt):
            unpack(zlib.compress(whole[:length]))


def place(sizes: dict[str, int]) -> tuple[MemoryLedgerStore, dict[str, Payload]]:
    store = MemoryLedgerStore()
    return store, asyncio.run(store_payloads(store, 3, {name: os.urandom(size) for name, size in sizes.items()}))


def test_small_payloads_travel_in_the_ledger_and_large_ones_beside_it() -> None:
    store, payloads = place({"a": INLINE_BYTES_MAX, "b": INLINE_BYTES_MAX + 1})
    assert payloads["a"].inline is not None
    assert payloads["a"].pointer is None
    assert payloads["b"].inline is None
    assert payloads["b"].pointer == object_name(3, payloads["b"].sha256)
    assert [object_epoch(name) for name in store.objects] == [3]


def test_all_inline_payloads_together_have_a_bound() -> None:
    fit = INLINE_BYTES_TOTAL_MAX // INLINE_BYTES_MAX
    store, payloads = place({f"sink-{index:02d}": INLINE_BYTES_MAX for index in range(fit + 2)})
    assert sum(payload.inline is not None for payload in payloads.values()) == fit
    assert len(store.objects) == 2


def test_what_the_ledger_holds_already_counts() -> None:
    """Else a few pending checkpoints, each within its bound, would not fit into a ConfigMap."""
    inline, beside = Payload("a", 40_000, inline="x"), Payload("b", 90_000, pointer="1-b")
    position = Position("q", 0, Offsets("s"), Offsets("e"))
    record = Record(1, "r", 1, "rev", position, {"a": Part(inline), "b": Part(beside), "c": Part()})
    ledger = replace(Ledger("l", "j"), records=(record, replace(record, number=2)))
    assert inline_left(ledger) == INLINE_BYTES_TOTAL_MAX - 2 * 40_000
    last = LastDecision(2, "r", position, {"a": replace(inline, size_bytes=1000)})
    assert inline_left(replace(ledger, last=last)) == INLINE_BYTES_TOTAL_MAX - 81_000

    async def place_in(left: int) -> dict[str, Payload]:
        return await store_payloads(MemoryLedgerStore(), 3, {"a": os.urandom(1000), "b": os.urandom(2000)}, left)

    for left, inside in ((3000, {"a", "b"}), (2999, {"a"}), (999, set[str]()), (-5, set[str]())):
        placed = asyncio.run(place_in(left))
        assert {name for name, payload in placed.items() if payload.inline is not None} == inside


def test_a_payload_is_read_from_where_it_lies() -> None:
    values = [(Lineage(1, 1, 0, 1, 0), Written(1, os.urandom(size))) for size in (10, INLINE_BYTES_MAX)]
    for chosen in (values[:1], values):
        store = MemoryLedgerStore()
        payloads = asyncio.run(store_payloads(store, 1, {"a": pack(chosen)}))
        assert asyncio.run(load_payload(store, payloads["a"])) == chosen
    assert asyncio.run(load_payload(store, None)) == []


def test_a_payload_with_another_digest_is_corrupt() -> None:
    store, payloads = place({"b": INLINE_BYTES_MAX + 1})
    pointer = payloads["b"].pointer
    assert pointer is not None
    store.objects[pointer] = store.objects[pointer][:-1]
    with pytest.raises(LedgerCorrupt, match="digest"):
        asyncio.run(load_payload(store, payloads["b"]))


@pytest.mark.parametrize(("name", "epoch"), [("12-abc", 12), ("12-abc.x1.tmp", 12), ("x-abc", None), ("-1", None)])
def test_the_epoch_is_read_off_an_objects_name(name: str, epoch: int | None) -> None:
    assert object_epoch(name) == epoch


def test_a_payload_that_would_fill_the_memory_is_corrupt_and_is_not_made() -> None:
    with pytest.raises(LedgerCorrupt, match="larger than one can be"):
        unpack(zlib.compress(b"SJP1" + bytes(UNPACKED_BYTES_MAX)))
    half = Written(1, bytes(UNPACKED_BYTES_MAX // 2))
    with pytest.raises(SinkjobError, match="PayloadTooLarge"):
        pack([(Lineage(1, 1, subtask, 2, 0), half) for subtask in range(2)])
