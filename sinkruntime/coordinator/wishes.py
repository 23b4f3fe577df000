"""A person's word on what is pending: try again what is held, give up what is lost, take as landed, abandon. Pure.

The coordinator asks `overrule` before every look, with `recovery.accept` of the present manifest. A reason is taken
once per nonce, so a word never answers a question that came up after it was given.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkruntime.protocol.events import Accept, BeginAbort, Event, Release
from sinkruntime.protocol.ledger import FINAL_PARTS, Acceptance, Authority, CheckpointState, Ledger, PartState

#: The reasons of `recovery.accept` that speak of pending checkpoints.
COMMITTABLE_LOST = "CommittableLost"
IN_DOUBT = "InDoubt"
ABANDON_PENDING = "AbandonPending"


@dataclass(frozen=True, slots=True)
class Wishes:
    """`spec.recovery`, and whether held parts are to be tried again (a new revision, a restart, `retry`)."""

    nonce: int = 0
    accept: frozenset[str] = frozenset()
    retry_held: bool = False
    who: str = ""


def release(ledger: Ledger, authority: Authority, fence: int) -> Event | None:
    """Held parts of this authority are tried again."""
    parts = [p for r in ledger.records if r.state is CheckpointState.DECIDED for p in r.parts.values()]
    held = any(part.state is PartState.HELD and part.authority is authority for part in parts)
    return Release(authority, fence) if held else None


def overrule(ledger: Ledger, authority: Authority, fence: int, wishes: Wishes) -> Event | None:
    """The event that puts the person's word on record; None where it speaks of nothing that is there."""
    open_reasons = {
        r for r in wishes.accept if not any((a.nonce, a.reason) == (wishes.nonce, r) for a in ledger.acceptances)
    }
    lost = _parts(ledger, PartState.HELD, COMMITTABLE_LOST)
    if COMMITTABLE_LOST in open_reasons and lost:
        return Accept(authority, fence, wishes.nonce, COMMITTABLE_LOST, wishes.who, lost=lost)
    doubted = _parts(ledger, PartState.IN_DOUBT, IN_DOUBT)
    if IN_DOUBT in open_reasons and doubted:
        return Accept(authority, fence, wishes.nonce, IN_DOUBT, wishes.who, landed=doubted)
    if ABANDON_PENDING in open_reasons and authority is Authority.TOKEN:
        return _abandon(ledger, fence, wishes)
    return None


def _parts(ledger: Ledger, state: PartState, reason: str) -> tuple[tuple[int, str], ...]:
    return tuple(
        (record.number, sink)
        for record in ledger.records
        if record.state is CheckpointState.DECIDED
        for sink, part in record.parts.items()
        if part.state is state and part.reason == reason
    )


def _abandon(ledger: Ledger, fence: int, wishes: Wishes) -> Event | None:
    """Abort the longest pending suffix of which no sink has committed anything; older ones stay, and are committed."""
    first = 0
    for record in reversed(ledger.records):
        landed = any(part.state in FINAL_PARTS or part.done for part in record.parts.values())
        if landed or record.state is not CheckpointState.DECIDED:
            break
        first = record.number
    held = any(part.state is PartState.HELD for record in ledger.pending for part in record.parts.values())
    why = f"recovery.accept AbandonPending, nonce {wishes.nonce}"
    words = (Acceptance(wishes.nonce, ABANDON_PENDING, wishes.who),)
    return BeginAbort(fence, first, wishes.who, why, words) if first and held else None
