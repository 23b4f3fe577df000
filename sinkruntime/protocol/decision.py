"""The rules of the decision: what must hold before a decision record may enter the ledger.

`machine` asks for every `Decide`; the driver asks nothing of it directly. Pure; changes nothing.
"""

from __future__ import annotations

from sinkruntime.protocol.events import Decide, Refusal, Refused
from sinkruntime.protocol.ledger import CheckpointState, LastDecision, Ledger, Record

C = CheckpointState


def check_decision(ledger: Ledger, event: Decide) -> None:
    """Every rule of the decision; raises `Refused` with the first that is broken."""
    record, pending = event.record, ledger.pending
    require(record.epoch == ledger.epoch, Refusal.STALE_EPOCH, f"epoch {record.epoch} is not {ledger.epoch}")
    require(bool(ledger.claim) and event.claimant == ledger.claim, Refusal.NOT_CLAIMED, f"by {event.claimant}")
    require(record.number == ledger.decided + 1, Refusal.NOT_NEXT, f"{record.number} after {ledger.decided}")
    unaccepted = any(not abort.accepted for abort in ledger.aborts)
    require(not unaccepted, Refusal.ABORTED, "aborted checkpoints are not accepted yet")
    require(all(r.state is C.DECIDED for r in pending), Refusal.ABORTED, "an abort is under way")
    older = [r.number for r in pending if r.epoch < ledger.epoch]
    require(not older, Refusal.OLDER_PENDING, f"checkpoints {older} of older epochs are pending")
    for authority in {part.authority for part in record.parts.values()}:
        ran = ledger.recovered.get(authority, 0) == ledger.epoch
        require(ran, Refusal.NOT_RECOVERED, f"recover has not run in epoch {ledger.epoch}")
    require(len(pending) < event.max_pending, Refusal.NO_SLOT, f"{len(pending)} checkpoints are pending")
    if event.remaining_life_seconds is not None:
        enough = event.remaining_life_seconds >= 2 * event.commit_timeout_seconds
        require(enough, Refusal.EXPIRES_TOO_SOON, f"{event.remaining_life_seconds:.0f} s of life left")
    require(event.batch not in ledger.batches or not event.batch, Refusal.BATCH_DECIDED, event.batch)
    if ledger.last is not None and not event.batch:
        _check_follows(record, ledger.last)


def _check_follows(record: Record, last: LastDecision) -> None:
    mine, other = record.position, last.position
    require(mine.query_id == other.query_id, Refusal.QUERY_CHANGED, f"{mine.query_id} is not {other.query_id}")
    require(mine.batch_id > other.batch_id, Refusal.OLDER_BATCH, f"batch {mine.batch_id} after {other.batch_id}")
    follows = mine.start.digest == other.end.digest
    require(follows, Refusal.NOT_PREDECESSOR, f"batch {mine.batch_id} does not start where {last.number} ended")


def require(condition: bool, refusal: Refusal, message: str) -> None:
    if not condition:
        raise Refused(refusal, message)
