"""SIGTERM in a pod: stop at a checkpoint boundary, in the time that the pod has; a second one ends the process at once.

The entry points enter `stop_signals` in their main thread before anything slow. The process is number 1 of its
container: the kernel drops a signal that it has no handler for, so both have one.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sinkruntime.api import Clock

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Before the grace period is over, and SIGKILL leaves no word: what is not done by then stays for the next epoch.
MARGIN_SECONDS = 2.0
#: Of that, what is kept for Spark to go in order.
CLOSE_SECONDS = 3.0


class Stop:
    """Whether the process is to end, and until when: `event` is what waits look at."""

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self.event = threading.Event()
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._asked: float | None = None

    @property
    def asked(self) -> bool:
        """Whether somebody outside wants the process to end."""
        return self._asked is not None

    def give_up(self) -> None:
        """The run itself cannot go on."""
        self.event.set()

    def ask(self) -> None:
        """The first signal."""
        self._asked = self._clock.monotonic()
        self.event.set()

    @property
    def limit_seconds(self) -> float:
        """From the signal to the last moment in which a word can be left."""
        return max(self._grace_seconds - MARGIN_SECONDS, self._grace_seconds / 2)

    def left_seconds(self) -> float:
        """For commits that are still owed; endless as long as nobody has asked."""
        if self._asked is None:
            return float("inf")
        return max(0.0, self._asked + self.limit_seconds - CLOSE_SECONDS - self._clock.monotonic())


@contextmanager
def stop_signals(stop: Stop, out_of_time: Callable[[], None]) -> Iterator[None]:
    """Handle the signals; `out_of_time` is called where the process is still there when its time is nearly over."""
    timers: list[threading.Timer] = []

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            os._exit(128 + number)
        stop.ask()
        timer = threading.Timer(stop.limit_seconds, out_of_time)
        timer.daemon = True
        timer.start()
        timers.append(timer)

    former = {number: signal.signal(number, asked) for number in SIGNALS}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in former.items():
            signal.signal(number, handler)
