"""A virtual event loop: several processes on one seeded scheduler, with time that only jumps.

`world` makes one per seed and starts the real shells on it. Which process goes next is drawn by the seed; within a
process the order is asyncio's own. Time moves only when nothing can run. A process may be killed between any two
steps: none of its handles ever runs again, not even a `finally`. It knows nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

#: How often `run` asks whether to end.
STEPS_BETWEEN_LOOKS = 8


class Handle:
    """A callback that is due; what `call_soon` and `call_at` return."""

    __slots__ = ("args", "callback", "context", "live", "process")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process: Process = context.get(PROCESS, NATURE)
        self.live = True

    def cancel(self) -> None:
        """It will not run."""
        self.live = False

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return not self.live


class Process:
    """A simulated operating system process: what is due in it, and how its clocks go wrong."""

    __slots__ = ("alive", "drift", "epoch", "kind", "name", "paused", "ready", "skew_seconds")

    def __init__(self, name: str, kind: str, epoch: int = 0) -> None:
        self.name = name
        self.kind = kind
        self.epoch = epoch
        self.alive = True
        self.paused = False
        self.skew_seconds = 0.0
        self.drift = 1.0
        self.ready: deque[Handle] = deque()

    def __repr__(self) -> str:
        return self.name


#: Whose code runs. What belongs to nobody (the network, the targets) never dies.
NATURE = Process("nature", "nature")
PROCESS: ContextVar[Process] = ContextVar("PROCESS", default=NATURE)
#: Who speaks: a process, or one tenure of several in it.
ACTOR: ContextVar[str] = ContextVar("ACTOR", default="nature")


class SimLoop:
    """What asyncio's tasks and futures need of an event loop, and no more."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._now = 0.0
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._runnable: list[Process] = []
        self.steps = 0
        self.processes: list[Process] = [NATURE]
        self._tasks: list[asyncio.Task[Any]] = []
        self.failed: BaseException | None = None
        self.stopping = False

    # What asyncio calls.

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def get_debug(self) -> bool:
        """Asked by asyncio's tasks."""
        return False

    def is_running(self) -> bool:
        """Asked by asyncio."""
        return True

    def is_closed(self) -> bool:
        """Asked by asyncio."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """A task; it belongs to the process of its context."""
        task = asyncio.Task(coro, loop=cast(asyncio.AbstractEventLoop, self), name=name or "", context=context)
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:
        """Run it in its process's turn."""
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._enqueue(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run it after so many virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run it at a virtual instant."""
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaits: the simulator's own mistake, or a bug."""
        if PROCESS.get().alive and self.failed is None:
            self.failed = context.get("exception") or RuntimeError(str(context.get("message")))

    # What the world calls.

    def stop(self) -> None:
        """End the run after the present step."""
        self.stopping = True

    def start(self, process: Process, main: Coroutine[Any, Any, Any], actor: str = "") -> asyncio.Task[Any]:
        """Run `main` as a task of `process`."""
        context = copy_context()
        context.run(PROCESS.set, process)
        context.run(ACTOR.set, actor or process.name)
        if process not in self.processes:
            self.processes.append(process)
        return self.create_task(main, context=context)

    def nature(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Something that happens though whoever caused it may be dead by then."""
        context = copy_context()
        context.run(PROCESS.set, NATURE)
        return self.call_later(delay, callback, *args, context=context)

    def kill(self, process: Process) -> None:
        """Nothing of it ever runs again."""
        process.alive = False
        process.ready.clear()
        if process in self._runnable:
            self._runnable.remove(process)

    def pause(self, process: Process) -> None:
        """Keep its handles back until `wake`."""
        if process.alive and not process.paused:
            process.paused = True
            if process in self._runnable:
                self._runnable.remove(process)

    def wake(self, process: Process) -> None:
        """A paused process goes on where it was, as if no time had passed for it."""
        if process.alive and process.paused:
            process.paused = False
            if process.ready:
                self._runnable.append(process)

    def _enqueue(self, handle: Handle) -> None:
        process = handle.process
        if process.alive:
            if not process.ready and not process.paused:
                self._runnable.append(process)
            process.ready.append(handle)

    def run(self, until: Callable[[], bool], steps_max: int) -> bool:
        """Run until `until` says so (True), nothing is left, or the steps are used up (False).

        `until` is asked now and then; `stop` ends the run after the present step.
        """
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self))
        try:
            while not until():
                for _ in range(STEPS_BETWEEN_LOOKS):
                    if self.stopping or self.steps >= steps_max or not self._step():
                        return self.stopping or until()
            return True
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> bool:
        """One handle; False where nothing is left to run."""
        runnable = self._runnable
        while not runnable:
            if not self._timers:
                return False
            self._advance()
        count = len(runnable)
        index = int(self._random() * count) if count > 1 else 0
        process = runnable[index]
        handle = process.ready.popleft()
        if not process.ready:
            runnable[index] = runnable[-1]
            runnable.pop()
        if handle.live:
            self.steps += 1
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001  (told by `failed`)
                self.failed = self.failed or error
        return True

    def _advance(self) -> None:
        """To the next timer."""
        when, _, handle = heapq.heappop(self._timers)
        if handle.live and handle.process.alive:
            self._now = max(self._now, when)
            self._enqueue(handle)

    def close(self) -> None:
        """End what is left, silently: nothing that these coroutines still do reaches anybody."""
        for process in self.processes:
            self.kill(process)
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _end(cast(Coroutine[Any, Any, Any], task.get_coro()))
            elif not task.cancelled():
                task.exception()
        self._tasks.clear()
        self._timers.clear()
        NATURE.alive = True  # for the next world


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that may await in its `finally`; the world is over, so no effect of it is seen."""
    for _ in range(20):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it awaited once more
        except Exception:  # noqa: BLE001, S112  (an error of an ended process)
            continue
        return
