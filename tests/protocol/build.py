"""Small ledgers and events for the protocol's tests. Time and identity are plain constants here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sinkruntime.protocol.events import (
    BeginAbort,
    ClaimEpoch,
    Decide,
    Event,
    NoteRecovered,
    Outcome,
    OutcomeKind,
    RaiseEpoch,
    RaiseToken,
    Refusal,
    Refused,
    Report,
)
from sinkruntime.protocol.ledger import (
    Authority,
    CheckpointState,
    Ledger,
    Offsets,
    Part,
    PartState,
    Payload,
    Position,
    Record,
)
from sinkruntime.protocol.machine import step

NEW = Ledger("ledger-1", "team/flights")
TOKEN, EPOCH = Authority.TOKEN, Authority.EPOCH


def offset(value: int) -> Offsets:
    """The end of batch `value - 1`, the start of batch `value`."""
    return Offsets(hashlib.sha256(f"{value}".encode()).hexdigest(), f'{{"x":{value}}}')


def position(batch: int, query: str = "query-1") -> Position:
    """Batch `batch` of a source in which each batch starts where the one before ended."""
    return Position(query, batch, offset(batch), offset(batch + 1))


def stored(name: str, inline: bool = False) -> Payload:
    """A payload beside the ledger, or in it."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Payload(digest, 5, inline="aGVsbG8=") if inline else Payload(digest, 5, pointer=name)


def record(number: int, epoch: int = 1, sinks: Mapping[str, Part] | None = None, **fields: Any) -> Record:
    """A decision record as a driver makes it: batch `number - 1`, sinks `a` and `b`."""
    parts = {"a": Part(), "b": Part()} if sinks is None else sinks
    return replace(Record(number, f"record-{number}", epoch, "rev-1", position(number - 1), parts), **fields)


def decision(number: int, epoch: int = 1, sinks: Mapping[str, Part] | None = None, **fields: Any) -> Decide:
    """The decision of `record(number)` by the process that claimed the epoch."""
    event = Decide(record(number, epoch, sinks), f"driver-{epoch}", max_pending=4, commit_timeout_seconds=60.0)
    return replace(event, **fields)


def after(ledger: Ledger, *events: Event) -> Ledger:
    """The ledger after these events, each of which it takes."""
    for event in events:
        ledger, _ = step(ledger, event)
    return ledger


def running(epoch: int = 1, token: int = 1) -> Ledger:
    """A ledger in its epoch and tenure: claimed, recovered, nothing decided."""
    ledger = NEW
    for number in range(1, token + 1):
        ledger = after(ledger, RaiseToken(number, f"coordinator-{number}"))
    for number in range(1, epoch + 1):
        ledger = after(ledger, *opening(number, token))
    return ledger


def opening(epoch: int, token: int = 1) -> tuple[Event, ...]:
    """How an epoch begins, up to its first decision, where nothing of older epochs is pending."""
    return (
        RaiseEpoch(epoch),
        ClaimEpoch(epoch, f"driver-{epoch}"),
        NoteRecovered(TOKEN, token, epoch, final=False),
        NoteRecovered(EPOCH, epoch, epoch, final=False),
    )


def report(*outcomes: Outcome, token: int = 1) -> Report:
    """Outcomes under the token."""
    return Report(TOKEN, token, outcomes)


def outcome(number: int, sink: str, kind: OutcomeKind, **fields: Any) -> Outcome:
    """An outcome; a commit leaves evidence unless said otherwise."""
    return replace(Outcome(number, sink, kind, evidence=kind is OutcomeKind.COMMITTED), **fields)


def decided(*numbers: int, **fields: Any) -> Ledger:
    """A running ledger in which these checkpoints are decided, and nothing of them committed."""
    return after(running(), *(decision(number, **fields) for number in numbers))


def committed(ledger: Ledger, number: int, *sinks: str) -> Ledger:
    """The same, with these sinks of a checkpoint committed."""
    return after(ledger, report(*(outcome(number, sink, OutcomeKind.COMMITTED) for sink in sinks)))


def aborting(ledger: Ledger, first: int, who: str = "ann", why: str = "wrong table") -> Ledger:
    """The same, with an abort of the suffix from `first` on begun."""
    return after(ledger, BeginAbort(ledger.token, first, who, why))


def in_state(state: CheckpointState, part: PartState) -> Ledger:
    """A ledger whose only record is checkpoint 1 of sink `a`, in exactly these states, however it came there."""
    ledger = decided(1, sinks={"a": Part()})
    only = ledger.records[0]
    return replace(ledger, records=(replace(only, state=state, parts={"a": Part(state=part)}),))


def refused(ledger: Ledger, event: Event) -> Refusal:
    """Why the ledger does not take the event; it is the very same ledger afterwards."""
    before = replace(ledger)
    with pytest.raises(Refused) as caught:
        step(ledger, event)
    assert ledger == before
    assert str(caught.value).startswith(caught.value.refusal)
    return caught.value.refusal


def part_of(ledger: Ledger, number: int, sink: str) -> Part:
    """One part, which must be there."""
    found = ledger.record(number)
    assert found is not None
    return found.parts[sink]
