"""What a target's evidence alone decides of a commit: it must be exactly that of the predecessor to go on.

Called by committers with the checkpoint that the target proves. Pure.
"""

from __future__ import annotations

from sinkruntime.api import Answer, CommitRequest


def already_committed(request: CommitRequest, proved: int) -> bool:
    """Whether the evidence says that the request is committed, which is then its answer."""
    if proved < request.lineage.checkpoint:
        return False
    request.reply(Answer.ALREADY_COMMITTED)
    return True


def answer_by_evidence(request: CommitRequest, proved: int, target: str = "target") -> bool:
    """Whether the evidence answers the request: it is committed, or cannot be committed on this. `target`: a word for
    who proves."""
    if already_committed(request, proved):
        return True
    if proved < request.previous:
        message = f"the {target} proves checkpoint {proved}, the ledger expects {request.previous} there"
        request.reply(Answer.REFUSED, "TargetBehindLedger", message)
    elif proved > request.previous:
        message = f"the {target} proves checkpoint {proved}, the ledger knows of none after {request.previous}"
        request.reply(Answer.REFUSED, "TargetAheadOfLedger", message)
    else:
        return False
    return True
