"""What the evidence in a table alone decides of a commit: it must be exactly that of the predecessor to go on.

Called by the committers of table sinks with the checkpoint that the table proves. Pure.
"""

from __future__ import annotations

from sinkruntime.api import Answer, CommitRequest


def answered(request: CommitRequest, proved: int) -> bool:
    """Whether the evidence `proved` answers the request: it is there already, or it cannot be committed on this."""
    if proved >= request.lineage.checkpoint:
        request.reply(Answer.ALREADY_COMMITTED)
    elif proved < request.previous:
        message = f"the table proves checkpoint {proved}, the ledger expects {request.previous} there"
        request.reply(Answer.REFUSED, "TargetBehindLedger", message)
    elif proved > request.previous:
        message = f"the table proves checkpoint {proved}, the ledger knows of none after {request.previous}"
        request.reply(Answer.REFUSED, "TargetAheadOfLedger", message)
    else:
        return False
    return True
