"""What the API server answers other than success, told apart by whether the request can have had an effect.

`translate` is called by the transport with every answer that is not a success; nothing else knows HTTP codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from sinkruntime.errors import SinkjobError

#: A server that asks for a longer pause is asked again after this one.
RETRY_AFTER_SECONDS_MAX = 60.0

#: The server's messages may repeat a whole object.
MESSAGE_CHARACTERS_MAX = 2000


class ApiError(SinkjobError):
    """Base. `code` is the HTTP code (0: none came), `status` the server's `Status` object ({}: none came)."""

    kind: ClassVar[str] = "ApiError"

    def __init__(self, message: str, advice: str = "", *, code: int = 0, status: Mapping[str, Any] | None = None):
        super().__init__(self.kind, message, advice)
        self.code = code
        self.status = dict(status or {})

    @property
    def causes(self) -> list[tuple[str, str]]:
        """The fields that the server complains of, each with what is wrong."""
        details = self.status.get("details") or {}
        return [(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes") or []]


class NotFound(ApiError):
    """There is no such object, or no such namespace or kind. It had no effect."""

    kind = "NotFound"


class AlreadyExists(ApiError):
    """The object to be created is there. It had no effect."""

    kind = "AlreadyExists"


class Conflict(ApiError):
    """The compare-and-swap lost: the object has another resourceVersion by now. It had no effect."""

    kind = "Conflict"


class Forbidden(ApiError):
    """Rights are missing, a quota is used up, or the namespace is terminating; `message` says which. No effect."""

    kind = "Forbidden"


class Invalid(ApiError):
    """The server does not take this object or this request, now or later; the message is its own. No effect."""

    kind = "Invalid"


class Gone(ApiError):
    """The resourceVersion is too old to go on from. No effect."""

    kind = "Gone"


class Unavailable(ApiError):
    """It had no effect and may be tried again, after `retry_after_seconds` where the server names a pause (else 0)."""

    kind = "Unavailable"

    def __init__(
        self,
        message: str,
        advice: str = "",
        *,
        code: int = 0,
        status: Mapping[str, Any] | None = None,
        retry_after_seconds: float = 0.0,
    ):
        super().__init__(message, advice, code=code, status=status)
        self.retry_after_seconds = retry_after_seconds


class Unanswered(ApiError):
    """A write was sent and no answer came, or none that tells: it may have had its effect. Read before all else."""

    kind = "Unanswered"


def translate(code: int, body: bytes, headers: Mapping[str, str], what: str, *, writes: bool) -> ApiError:
    """The error of an answer; `what` names the request. A request that writes nothing is never `Unanswered`."""
    status = _status(body)
    text = str(status.get("message") or body[:200].decode(errors="replace").strip() or f"HTTP {code}")
    message = f"{what}: {text[:MESSAGE_CHARACTERS_MAX]}"
    known: dict[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 410: Gone}
    if code == 409:
        exists = status.get("reason") == "AlreadyExists"
        return (AlreadyExists if exists else Conflict)(message, code=code, status=status)
    if code in known:
        return known[code](message, code=code, status=status)
    if code == 401:
        return Unavailable(message, "the credentials are not accepted", code=code, status=status)
    # A 503 that the API server itself signs was turned away at its door; one of a balancer may come after the fact.
    if code == 429 or (code == 503 and (status or not writes)):
        pause = _retry_after(headers, status)
        return Unavailable(message, code=code, status=status, retry_after_seconds=pause)
    if 400 <= code < 500:
        return Invalid(message, code=code, status=status)
    kind = Unanswered if writes else Unavailable
    return kind(message, code=code, status=status)


def _status(body: bytes) -> dict[str, Any]:
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _retry_after(headers: Mapping[str, str], status: Mapping[str, Any]) -> float:
    """Seconds; RFC 9110 allows a date too, which no API server sends."""
    text = headers.get("Retry-After") or str((status.get("details") or {}).get("retryAfterSeconds", ""))
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isdigit() else 0.0
