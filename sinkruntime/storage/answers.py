"""What errors of a storage, and the evidence in it, mean for a commit request.

Called by committers of sinks that write files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.errors import TargetError
from sinkruntime.storage.base import AnswerLost


@contextmanager
def answering(*requests: CommitRequest) -> Iterator[None]:
    """What goes wrong inside becomes the requests' answer."""
    answer = Answer.RETRY_LATER
    try:
        yield
    except AnswerLost as error:
        answer, reason, message = Answer.UNKNOWN, "AnswerLost", str(error)
    except TargetError as error:
        answer, reason, message = Answer.REFUSED, error.reason, error.message
    except OSError as error:
        reason, message = type(error).__name__, str(error)
    else:
        return
    for request in requests:
        request.reply(answer, reason, message)


def answer_by_evidence(request: CommitRequest, proved: int) -> bool:
    """Answer what the evidence alone decides: it must be exactly that of the predecessor, for a commit to go on."""
    checkpoint = request.lineage.checkpoint
    if proved >= checkpoint:
        request.reply(Answer.ALREADY_COMMITTED)
    elif proved < request.previous:
        message = f"the target proves checkpoint {proved}, the ledger expects {request.previous} there"
        request.reply(Answer.REFUSED, "TargetBehindLedger", message)
    elif proved > request.previous:
        message = f"the target proves checkpoint {proved}, the ledger knows of none after {request.previous}"
        request.reply(Answer.REFUSED, "TargetAheadOfLedger", message)
    else:
        return False
    return True
