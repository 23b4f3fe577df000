"""Payloads: committables and writer states in their written form, inside the ledger or beside it.

The driver packs and stores them before the decision, the coordinator reads them and removes them after the commit.
Contents are compressed; what is read is checked against the digest in the ledger.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence

from sinkruntime.api import Lineage
from sinkruntime.driver.staging import Written
from sinkruntime.errors import LedgerCorrupt, SinkjobError
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.ledger import Ledger, Payload

#: DESIGN §3.4: what travels in the ledger itself, one payload and all together: as text they are a third larger, and a
#: ConfigMap takes 1 MiB.
INLINE_BYTES_MAX = 64 * 1024
INLINE_BYTES_TOTAL_MAX = 512 * 1024

#: Decompressed. Whoever reads a ledger that another one wrote must not be filled up by it.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024

#: checkpoint, epoch, subtask, subtasks, attempt, version, length; little-endian.
_HEAD = struct.Struct("<qqiiqiI")
_MAGIC = b"SJP1"

Item = tuple[Lineage, Written]


def pack(items: Sequence[Item]) -> bytes:
    """The written form of values with their lineage, compressed; equal items give equal bytes."""
    parts = [_MAGIC]
    for at, written in items:
        numbers = (at.checkpoint, at.epoch, at.subtask, at.subtasks, at.attempt, written.version, len(written.data))
        parts += [_HEAD.pack(*numbers), written.data]
    raw = b"".join(parts)
    if len(raw) > UNPACKED_BYTES_MAX:
        message = (
            f"the committables of one sink have {len(raw)} bytes of {UNPACKED_BYTES_MAX} that a checkpoint may have"
        )
        raise SinkjobError("PayloadTooLarge", message, "let a checkpoint have fewer rows or files")
    return zlib.compress(raw, level=1)


def unpack(data: bytes) -> list[Item]:
    """The inverse of `pack`; raises `LedgerCorrupt`."""
    try:
        reader = zlib.decompressobj()
        raw = reader.decompress(data, UNPACKED_BYTES_MAX + 1)
    except zlib.error as error:
        raise LedgerCorrupt(f"a payload cannot be decompressed: {error}") from error
    if not reader.eof:
        raise LedgerCorrupt("a payload is cut short, or is larger than one can be")
    if raw[:4] != _MAGIC:
        raise LedgerCorrupt("a payload is of an unknown format")
    items, at = [], len(_MAGIC)
    while at < len(raw):
        if at + _HEAD.size > len(raw):
            raise LedgerCorrupt("a payload is cut short")
        *lineage, version, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        if at + length > len(raw):
            raise LedgerCorrupt("a payload is cut short")
        items.append((Lineage(*lineage), Written(version, raw[at : at + length])))
        at += length
    return items


def inline_left(ledger: Ledger) -> int:
    """How many bytes of payloads the ledger itself can still take, beside those of its records and writer states."""
    payloads = [part.payload for record in ledger.records for part in record.parts.values()]
    payloads += list(ledger.last.states.values()) if ledger.last else []
    return INLINE_BYTES_TOTAL_MAX - sum(each.size_bytes for each in payloads if each and each.inline is not None)


async def store_payloads(
    store: LedgerStore, epoch: int, packed: Mapping[str, bytes], inline_bytes_left: int = INLINE_BYTES_TOTAL_MAX
) -> dict[str, Payload]:
    """Put each where its size belongs; those beside the ledger are durable on return. Smallest first stay inline."""
    payloads, left = {}, inline_bytes_left
    for name, data in sorted(packed.items(), key=lambda item: (len(item[1]), item[0])):
        digest = hashlib.sha256(data).hexdigest()
        if len(data) <= min(INLINE_BYTES_MAX, left):
            left -= len(data)
            payloads[name] = Payload(digest, len(data), inline=base64.b64encode(data).decode())
        else:
            pointer = object_name(epoch, digest)
            await store.put_object(pointer, data)
            payloads[name] = Payload(digest, len(data), pointer=pointer)
    return payloads


async def load_payload(store: LedgerStore, payload: Payload | None) -> list[Item]:
    """Read and check one; nothing for None. Raises `LedgerCorrupt` where the digest is wrong or it is missing."""
    if payload is None:
        return []
    if payload.pointer is not None:
        data = await store.get_object(payload.pointer)
    else:
        data = base64.b64decode(payload.inline or "")
    if hashlib.sha256(data).hexdigest() != payload.sha256:
        raise LedgerCorrupt(f"payload {payload.pointer or '(inline)'} does not have the digest that the ledger names")
    return unpack(data)


def object_name(epoch: int, digest: str) -> str:
    """A payload object's name; it holds the epoch, so that orphans can be told by it."""
    return f"{epoch}-{digest[:40]}"


def object_epoch(name: str) -> int | None:
    """The epoch in a payload object's name; None for a name that is not ours."""
    head = name.partition("-")[0]
    return int(head) if head.isdigit() else None
