"""What a driver waits for before it ends: the parts under its own authority, never those of the operator. Pure."""

from __future__ import annotations

from enum import StrEnum

from sinkruntime.cluster.report import Ended
from sinkruntime.driver.driver import stuck
from sinkruntime.errors import ExitCode
from sinkruntime.protocol.ledger import FINAL_PARTS, Authority, Ledger, Part, PartState


class Owed(StrEnum):
    """How far the parts of one authority are."""

    COMMITS = "commits"  # a part is to be made visible, and nobody has to speak first
    CLEANING = "cleaning"  # all are visible; staged data of losing attempts may be left, or an abort goes on
    STUCK = "stuck"  # a part waits for a person, and nothing before it is under way
    NOTHING = "nothing"


def owed(ledger: Ledger, authority: Authority) -> Owed:
    """What is owed in the ledger under one authority."""
    parts = [
        (record, sink, part)
        for record in ledger.records
        for sink, part in record.parts.items()
        if part.authority is authority
    ]
    waiting = {(number, sink) for number, sink, _ in stuck(ledger)}
    blocked = {sink for _, sink in waiting}
    for record, sink, part in parts:
        settled = part.state in FINAL_PARTS or part.state is PartState.FENCED  # the other sinks' fences come first
        if record.pending and not settled and sink not in blocked:
            return Owed.COMMITS
    if any((record.number, sink) in waiting for record, sink, _ in parts):
        return Owed.STUCK
    return Owed.CLEANING if any(part.state is not PartState.CLEANED for _, _, part in parts) else Owed.NOTHING


def waits_for_a_person(ledger: Ledger, authority: Authority) -> Ended | None:
    """The end of a process that can do nothing more about the first stuck part; None: there is none."""
    found = [(number, sink, part) for number, sink, part in stuck(ledger) if part.authority is authority]
    if not found:
        return None
    number, sink, part = found[0]
    advice = "mend the cause and raise restartNonce, or accept what it names, with a new recovery.nonce"
    return Ended(part.reason, _said(number, sink, part), advice, code=ExitCode.FENCED_OR_IN_DOUBT)


def _said(number: int, sink: str, part: Part) -> str:
    return f"checkpoint {number} of sink {sink} is {part.state.replace('_', ' ')}: {part.message}"
