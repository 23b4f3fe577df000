"""Applying an event to a stored ledger: read, step, compare-and-swap, again.

Driver, coordinator and launcher change the ledger through `change` and in no other way. It decides nothing: the
caller makes the event from the ledger as it is at that moment, and says by None that nothing is left to do, which is
also how one's own change is known again after its answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sinkruntime.environment import Environment
from sinkruntime.errors import AnswerLost, LedgerConflict, LedgerCorrupt, LedgerOutOfReach, LedgerUnavailable
from sinkruntime.ledger.store import LedgerStore, Stored
from sinkruntime.protocol.events import Event
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.protocol.machine import step

_Result = TypeVar("_Result")

#: Waits between tries at a store that is not reachable: doubling from the first to the last.
FIRST_WAIT_SECONDS = 0.05
LAST_WAIT_SECONDS = 5.0


async def read(store: LedgerStore, environment: Environment, give_up_seconds: float) -> Stored:
    """The present ledger, waited for while the store is away; `LedgerOutOfReach` when the time is over."""
    return await _read(store, environment, give_up_seconds, environment.clock.monotonic() + give_up_seconds)


async def _read(store: LedgerStore, environment: Environment, give_up_seconds: float, deadline: float) -> Stored:
    stored = await _until(store.load, "the ledger could not be read", environment, give_up_seconds, deadline)
    if stored is None:
        raise LedgerCorrupt("the ledger is gone", "restore it from a backup, or accept LedgerLost")
    return stored


async def patiently(
    work: Callable[[], Awaitable[_Result]], what: str, environment: Environment, give_up_seconds: float
) -> _Result:
    """Do what may be done twice, again while the store is unreachable; `LedgerOutOfReach` when the time is over."""
    return await _until(work, what, environment, give_up_seconds, environment.clock.monotonic() + give_up_seconds)


async def _until(
    work: Callable[[], Awaitable[_Result]], what: str, environment: Environment, give_up_seconds: float, deadline: float
) -> _Result:
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            return await work()
        except (AnswerLost, LedgerUnavailable) as error:
            if environment.clock.monotonic() >= deadline:
                said = f"{what} for {give_up_seconds:.0f} s: {error.message}"
                raise LedgerOutOfReach(said) from error
            await asyncio.sleep(_pause(error, wait, environment))
            wait = min(2 * wait, LAST_WAIT_SECONDS)


def _pause(error: AnswerLost | LedgerUnavailable, wait_seconds: float, environment: Environment) -> float:
    """What the store asks for, if that is longer; it is bounded where it comes in."""
    asked = error.retry_after_seconds if isinstance(error, LedgerUnavailable) else 0.0
    return max(asked, wait_seconds * (0.5 + environment.random.random()))


async def change(
    store: LedgerStore,
    make_event: Callable[[Ledger], Event | None],
    environment: Environment,
    give_up_seconds: float,
) -> Stored:
    """Apply the event that `make_event` makes of the present ledger; returns the ledger after it.

    Conflicts and lost answers are read again, an unreachable store is waited for. Raises `Refused` when the ledger
    does not take the event, `LedgerOutOfReach` when the time is over and a write may be under way.
    """
    deadline = environment.clock.monotonic() + give_up_seconds
    while True:
        stored = await _read(store, environment, give_up_seconds, deadline)
        event = make_event(stored.ledger)
        if event is None:
            return stored
        after, _ = step(stored.ledger, event)
        try:
            return await store.replace(after, stored.version)
        except LedgerConflict as error:
            if environment.clock.monotonic() >= deadline:
                raise LedgerOutOfReach(f"others were faster for {give_up_seconds:.0f} s: {error.message}") from error
            await asyncio.sleep(0)
        except (AnswerLost, LedgerUnavailable) as error:
            if environment.clock.monotonic() >= deadline:
                raise LedgerOutOfReach(
                    f"the ledger did not answer for {give_up_seconds:.0f} s: {error.message}"
                ) from error
            await asyncio.sleep(_pause(error, FIRST_WAIT_SECONDS, environment))
