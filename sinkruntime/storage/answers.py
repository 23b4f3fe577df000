"""What errors of a storage mean for a commit request.

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
