"""SIGTERM: a flag first, an end at once at the second one, and how much time is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from sinkruntime.cluster.stopping import CLOSE_SECONDS, MARGIN_SECONDS, Stop, stop_signals
from sinkruntime.environment import SystemClock


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_time_is_endless_until_somebody_asks_and_then_less_than_the_grace_period() -> None:
    clock = Hand()
    stop = Stop(clock, 30.0)
    assert stop.left_seconds() == float("inf")
    stop.ask()
    assert stop.left_seconds() == 30.0 - MARGIN_SECONDS - CLOSE_SECONDS
    clock.now += 60.0
    assert stop.left_seconds() == 0.0


def test_a_run_that_gives_up_was_not_asked_to_stop() -> None:
    stop = Stop(Hand(), 30.0)
    stop.give_up()
    assert stop.event.is_set()
    assert not stop.asked


def test_the_first_signal_only_asks_and_afterwards_the_handlers_are_the_former_ones() -> None:
    stop = Stop(SystemClock(), 30.0)
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals(stop, lambda: None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.event.wait(5)
        assert stop.asked
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_that_does_not_come_to_its_end_is_told_so_in_time() -> None:
    called = threading.Event()
    stop = Stop(SystemClock(), 0.2)
    with stop_signals(stop, called.set):
        os.kill(os.getpid(), signal.SIGTERM)
        assert called.wait(5)


def test_no_timer_outlives_an_end_in_order() -> None:
    called = threading.Event()
    stop = Stop(SystemClock(), 0.4)
    with stop_signals(stop, called.set):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.event.wait(5)
    assert not called.wait(0.6)


SCRIPT = """
import os, signal, time
from sinkruntime.cluster.stopping import Stop, stop_signals
from sinkruntime.environment import SystemClock
with stop_signals(Stop(SystemClock(), 30.0), lambda: None):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(second)
        assert process.wait(10) == 128 + second
