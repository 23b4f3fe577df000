"""Whose the checkpoint location is, where the job's ledger is new: one of the two may have been lost.

A local run asks before it creates the ledger, a driver pod before its start check, for there the operator has created
the ledger. A ledger that has decided something is compared by the start check itself (`sinkruntime.protocol.start`).
It writes nothing: whoever asks puts the acceptance on record first, then marks the location as its own.
"""

from __future__ import annotations

from sinkruntime.errors import StartRefused
from sinkruntime.protocol.ledger import Acceptance
from sinkruntime.protocol.start import ADVICE, StartReason
from sinkruntime.spark.query import Query
from sinkruntime.spec.delivery import Recovery


def taken_over(query: Query, ledger_id: str, job: str, recovery: Recovery) -> Acceptance | None:
    """None: the location is this ledger's, or nobody's. Else what `recovery.accept` says to another's marker.

    Raises `StartRefused` with `LedgerLost` (the marker names this very job: its former ledger is gone) or
    `CheckpointOwnedByAnother`, where that is not accepted. The nonce of an accepted loss is kept in the marker, for the
    ledger that knew it may be lost too: it is not taken a second time.
    """
    marker, owner = query.files.owner()
    if marker in ("", ledger_id):
        return None
    lost = owner in ("", job)
    reason = StartReason.LEDGER_LOST if lost else StartReason.CHECKPOINT_OWNED_BY_ANOTHER
    message = f"{query.job.checkpoint} belongs to ledger {marker} of job {owner or 'unknown'}"
    if reason not in recovery.accept:
        raise StartRefused(reason, f"{message}, and this job has no such ledger", ADVICE[reason])
    if lost and query.files.accepted_nonce() == str(recovery.nonce):
        advice = f"look at it again, then accept with recovery.nonce above {recovery.nonce}"
        raise StartRefused(reason, f"{message}; {reason} was accepted with nonce {recovery.nonce}", advice)
    return Acceptance(recovery.nonce, reason, message)


def mark_taken(query: Query, ledger_id: str, job: str, acceptance: Acceptance) -> None:
    """Make the location this ledger's, on the person's word."""
    lost = acceptance.reason == StartReason.LEDGER_LOST
    query.files.take_over(ledger_id, job, str(acceptance.nonce) if lost else "")
