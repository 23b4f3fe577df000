"""A bound on what a worker may fill the operator's log with: so many lines a second, and a count of the others.

Used by the worker, which is polite, and by the operator, which does not rely on that.
"""

from __future__ import annotations

from collections.abc import Callable

LINES_PER_SECOND = 50


class Allowance:
    """So many a second."""

    def __init__(self, per_second: int, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._second = 0
        self._spent = 0
        self._left_out = 0

    def spend(self) -> bool:
        """Whether one more is within it."""
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._spent = second, 0
        self._spent += 1
        within = self._spent <= self._per_second
        self._left_out += not within
        return within

    def left_out(self) -> int:
        """How many were above it since this was asked last."""
        count, self._left_out = self._left_out, 0
        return count
