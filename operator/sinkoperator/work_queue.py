"""A queue of keys to look at: never one of them twice at a time, never lost, and no key that delays the others.

Events, watches and timers `add` a key (a job); the queue calls `handle` with it. A key says only "look", so adding it
twice is the same as adding it once, and adding it while it runs makes it run again afterwards. It runs in the event
loop of whoever adds, starts no thread, and knows nothing of jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError, SinkjobError

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

#: `done`, `failed`, `timeout` or `cancelled`; and when to look again.
_Outcome = tuple[str, float | None]

#: 2 to this power is more than any bound of a backoff.
DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds. A hung key holds one of `concurrency` places for `run_seconds` at most."""

    concurrency: int = 16
    run_seconds: float = 60.0
    backoff_first_seconds: float = 0.5
    backoff_max_seconds: float = 120.0

    def __post_init__(self) -> None:
        backoff = 0 < self.backoff_first_seconds <= self.backoff_max_seconds
        if self.concurrency < 1 or self.run_seconds <= 0 or not backoff:
            raise ConfigurationError("InvalidSettings", f"the work queue cannot run with {self}")

    def backoff_after(self, failures: int, jitter: float) -> float:
        """The wait after so many failures in a row; `jitter` in [0, 1) takes off up to half of it."""
        doubled: float = self.backoff_first_seconds * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
        return min(doubled, self.backoff_max_seconds) * (1.0 - jitter / 2.0)


class QueueHooks(Protocol):
    """What a queue tells of itself; `OperatorMetrics` is one."""

    def queue_depth(self, keys: int) -> None:
        """So many keys wait for a place."""

    def queue_waited(self, seconds: float) -> None:
        """From being due to being run."""

    def queue_ran(self, seconds: float, outcome: str) -> None:
        """A run has ended: `done`, `failed`, `timeout` or `cancelled`."""

    def queue_retried(self) -> None:
        """A key waits to be run again because its run failed."""


@dataclass(slots=True)
class _State:
    """What is known of a key; forgotten when there is nothing to remember."""

    due: float | None = None  # when it became due, while it waits for a place
    again: bool = False  # it was added while it ran
    run: asyncio.Task[_Outcome] | None = None
    begun: bool = False
    timer: asyncio.TimerHandle | None = None
    timer_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0  # after a failure: an `add` brings it forward, but not to before this
    dropped: bool = False  # while it ran: how that ends is of no interest
    finishing: int = 0  # how many wait for its end: until then it is not added

    @property
    def idle(self) -> bool:
        """Whether it says nothing."""
        quiet = self.due is None and self.run is None and self.timer is None
        return quiet and self.failures == 0 and self.finishing == 0

    def forget(self) -> None:
        """All but the run under way."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.due, self.again = None, None, False
        self.failures, self.not_before = 0, 0.0
        self.dropped = self.run is not None


class WorkQueue(Generic[Key]):
    """`handle(key)` looks at one key; what it returns is after how many seconds to look again (None: when added).

    An exception, or a run over its time limit, is told in the log and tried again after a backoff that doubles.
    """

    def __init__(
        self,
        handle: Callable[[Key], Awaitable[float | None]],
        settings: QueueSettings,
        environment: Environment,
        hooks: QueueHooks | None = None,
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._environment = environment
        self._hooks = hooks
        self._states: dict[Key, _State] = {}
        self._ready: dict[Key, None] = {}  # in order; a dict, so that a dropped key is taken out at once
        self._running: dict[Key, asyncio.Task[_Outcome]] = {}
        self._closed = False

    def __len__(self) -> int:
        """How many keys it remembers: waiting, running, to be looked at later, or failing."""
        return len(self._states)

    @property
    def running(self) -> frozenset[Key]:
        """The keys that run at this instant."""
        return frozenset(self._running)

    def add(self, key: Key) -> None:
        """Look at it as soon as there is a place. Of many calls before its next run one is enough."""
        state = self._states.get(key) or _State()
        if self._closed or state.finishing:
            return
        self._states[key] = state
        wait_seconds = state.not_before - self._now()
        if wait_seconds > 0:
            self._later(key, state, wait_seconds)
        else:
            self._due(key, state)

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at it then; an earlier time that is already set stays."""
        if seconds <= 0:
            self.add(key)
            return
        state = self._states.get(key) or _State()
        if not self._closed and not state.finishing:
            self._states[key] = state
            self._later(key, state, seconds)

    def drop(self, key: Key) -> None:
        """Forget it, with its backoff, and cancel its run; for a job that is not ours any more."""
        self._forget(key)
        if run := self._running.get(key):
            run.cancel()

    async def finish(self, key: Key) -> None:
        """Forget it, and wait until its run has ended by itself (or by its time limit). Until then it is not added."""
        self._forget(key)
        run, state = self._running.get(key), self._states.get(key)
        if run is None or state is None:
            return
        state.finishing += 1
        try:
            await asyncio.wait([run])
        finally:
            state.finishing -= 1
            self._tidy(key)

    async def stop(self, seconds: float) -> None:
        """Begin no further run, wait so long for those under way, then cancel them; returns when none runs."""
        self._closed = True
        for key in list(self._states):
            self._forget(key)
        if self._running:
            await asyncio.wait(self._running.values(), timeout=seconds)
        left = list(self._running.values())
        for run in left:
            run.cancel()
        if left:
            await asyncio.wait(left)

    def _now(self) -> float:
        return self._environment.clock.monotonic()

    def _forget(self, key: Key) -> None:
        self._ready.pop(key, None)
        if state := self._states.get(key):
            state.forget()
            self._tidy(key)

    def _tidy(self, key: Key) -> None:
        if self._states[key].idle:
            del self._states[key]

    def _due(self, key: Key, state: _State) -> None:
        if state.run is not None:
            state.again = state.begun or state.dropped  # a run that has not begun has looked at nothing yet
        elif state.due is None:
            state.due = self._now()
            self._ready[key] = None
            self._pump()

    def _later(self, key: Key, state: _State, seconds: float) -> None:
        at = self._now() + seconds
        if state.timer is not None:
            if state.timer_at <= at:
                return
            state.timer.cancel()
        state.timer_at = at
        state.timer = asyncio.get_running_loop().call_later(seconds, self._ring, key, state)

    def _ring(self, key: Key, state: _State) -> None:
        state.timer = None
        self.add(key)

    def _pump(self) -> None:
        """Give free places to those that have waited longest."""
        while self._ready and len(self._running) < self._settings.concurrency:
            key = next(iter(self._ready))
            del self._ready[key]
            state = self._states[key]
            if self._hooks is not None and state.due is not None:
                self._hooks.queue_waited(self._now() - state.due)
            state.due, state.begun = None, False
            state.run = self._running[key] = asyncio.create_task(self._run(key, state), name=f"look at {key}")
            state.run.add_done_callback(partial(self._ended, key, state))
        if self._hooks is not None:
            self._hooks.queue_depth(len(self._ready))

    async def _run(self, key: Key, state: _State) -> _Outcome:
        state.begun, began = True, self._now()
        outcome, look_again = "cancelled", None
        limit = asyncio.timeout(self._settings.run_seconds)
        try:
            async with limit:
                look_again = await self._handle(key)
            outcome = "done"
        except SinkjobError as error:
            outcome = "failed"
            log.warning("%s: %s", key, error)
        except Exception as error:
            outcome = "timeout" if isinstance(error, TimeoutError) and limit.expired() else "failed"
            log.exception("%s: %s after %.1f s", key, outcome, self._now() - began)
        finally:
            if self._hooks is not None:
                self._hooks.queue_ran(self._now() - began, outcome)
        return outcome, look_again

    def _ended(self, key: Key, state: _State, run: asyncio.Task[_Outcome]) -> None:
        """Called for a run that was cancelled before its first step, too."""
        outcome, look_again = ("cancelled", None) if run.cancelled() else run.result()
        del self._running[key]
        dropped, again = state.dropped, state.again
        state.run, state.dropped, state.again = None, False, False
        if outcome in ("failed", "timeout") and not dropped:
            self._back_off(key, state, again)
        else:
            state.failures, state.not_before = 0, 0.0
            if look_again is not None and not dropped:
                self.add_after(key, look_again)
            if again:
                self._due(key, state)
        self._tidy(key)
        self._pump()

    def _back_off(self, key: Key, state: _State, again: bool) -> None:
        """A key that was added meanwhile may have been put right: it waits for the first backoff only."""
        first_seconds = self._settings.backoff_first_seconds
        state.failures += 1
        state.not_before = self._now() + first_seconds
        wait_seconds = self._settings.backoff_after(state.failures, self._environment.random.random())
        self._later(key, state, first_seconds if again else max(first_seconds, wait_seconds))
        if self._hooks is not None:
            self._hooks.queue_retried()
