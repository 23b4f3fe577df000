"""Times as the API writes them: RFC 3339, whole seconds, UTC. Pure: the time itself is always passed in."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def moment(wall: float) -> str:
    """`2026-11-21T07:00:00Z`; rounded up, so that a time to wait for is never too early."""
    return datetime.fromtimestamp(math.ceil(wall), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """The inverse; ValueError where it is no such time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
