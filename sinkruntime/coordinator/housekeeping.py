"""What a coordinator removes: staged data of undecided checkpoints, payload objects that nothing names any more.

The coordinator calls it with a ledger that was read at or after the version that holds the raised epoch. It never
removes anything that a record in this ledger names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sinkruntime.coordinator.handle import SinkHandle
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.ledger.payloads import object_epoch
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.protocol.ledger import Ledger


async def recover(handles: Sequence[SinkHandle], ledger: Ledger, settings: CommitSettings) -> None:
    """Run every sink's `recover`; raises what it raises."""
    garbage = Garbage.of(ledger)
    for handle in handles:
        async with handle.used(settings.timeout_seconds):
            for tier in handle.tiers:
                await handle.call(partial(tier.recover, garbage), settings.timeout_max_seconds, alone=True)


async def remove_orphans(store: LedgerStore, ledger: Ledger) -> None:
    """Payload objects of older epochs that nothing names: their decision never came to be.

    Those of an epoch that still has a record stay: a commit under way may have put an updated one there, and may not
    have told the ledger yet.
    """
    named = _pointers(ledger)
    unfinished = {record.epoch for record in ledger.records}
    for name in await store.list_objects():
        epoch = object_epoch(name)
        older = epoch is not None and epoch < ledger.epoch and epoch not in unfinished
        if older and name not in named:
            await store.remove_object(name)


async def remove_payloads(store: LedgerStore, ledger: Ledger, number: int) -> None:
    """The payload objects of a settled checkpoint, and those that its decision superseded."""
    record = ledger.record(number)
    if record is None:
        return
    own = {part.payload.pointer for part in record.parts.values() if part.payload and part.payload.pointer}
    for pointer in sorted({*record.superseded, *own} - _pointers(ledger, without=number)):
        await store.remove_object(pointer)


def _pointers(ledger: Ledger, without: int = 0) -> set[str]:
    """The payload objects that the ledger names, but for those of one record."""
    records = [record for record in ledger.records if record.number != without]
    payloads = [part.payload for record in records for part in record.parts.values()]
    payloads += list(ledger.last.states.values()) if ledger.last else []
    named = {payload.pointer for payload in payloads if payload is not None and payload.pointer}
    return named.union(*(record.superseded for record in records))
