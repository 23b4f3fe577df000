"""A worker process as the operator holds it: calls with a time limit, its log, its end.

`pool` makes it, the proxies call it. A call that runs out of time kills the worker; whatever was under way in it is
then unknown, in that worker and in no other. What arrives from it is data that is checked, never code.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sinkoperator.commits import frames
from sinkoperator.commits.allowance import LINES_PER_SECOND, Allowance
from sinkoperator.commits.frames import BadFrame, Json
from sinkoperator.commits.nursery import Child, Nursery
from sinkruntime.coordinator.runner import NotStarted, OutOfTime
from sinkruntime.errors import SinkjobError

log = logging.getLogger(__name__)
output = logging.getLogger("sinkoperator.commits.output")

#: How long to wait, after its socket has closed, to be told how it ended.
OBITUARY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose worker it is."""

    namespace: str
    job: str
    revision: str
    sink: str

    def __str__(self) -> str:
        return f"job {self.namespace}/{self.job}, sink {self.sink}"

    @property
    def facts(self) -> dict[str, str]:
        """For structured logs."""
        return {"job": f"{self.namespace}/{self.job}", "sink": self.sink, "revision": self.revision}


class WorkerGone(SinkjobError):
    """The worker ended while the call was under way: what it had done is not known."""


class Unusable(SinkjobError, ValueError):
    """What trying again will not mend: a committable that this release cannot read, a sink that is not there."""


class Worker:
    """One opened sink in its process."""

    def __init__(self, owner: Owner, child: Child, nursery: Nursery, ended: Callable[[Worker], None]) -> None:
        self.owner = owner
        self.facts: Json = {}
        self.users = 0  # rounds that use it
        self.used_at = 0.0
        self.suspect = False  # something went wrong that a fresh opening may mend
        self.gone = ""  # why, once it is
        self.closing = False
        self._child = child
        self._nursery = nursery
        self._ended = ended
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._under_way: set[int] = set()  # sent and not answered, whether or not anyone waits
        self._allowance = Allowance(2 * LINES_PER_SECOND, asyncio.get_running_loop().time)
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def name(self) -> str:
        """For logs."""
        return f"worker {self._child.number} ({self.owner})"

    async def connect(self) -> None:
        """Begin to listen to it."""
        connecting = asyncio.ensure_future(asyncio.open_connection(sock=self._child.connection))
        try:
            reader, self._writer = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            _, self._writer = await connecting  # else nobody would close it
            raise
        self._reading = asyncio.create_task(self._read(reader), name=self.name)

    async def call(self, operation: str, arguments: Json, timeout_seconds: float) -> Any:
        """Its answer. Raises `SinkjobError` as the sink did, `NotStarted` where nothing was sent, `WorkerGone` or
        `OutOfTime` where it is not known what happened; then the worker is no more."""
        if self.gone or self.closing or self._writer is None:
            raise NotStarted(f"{self.name} is gone: {self.gone or 'it was closed'}")
        return await self._exchange(operation, arguments, timeout_seconds)

    async def _exchange(self, operation: str, arguments: Json, timeout_seconds: float) -> Any:
        assert self._writer is not None, "connected before it is used"
        number = next(self._ids)
        try:
            frame = frames.pack({"id": number, "operation": operation, "arguments": arguments})
        except BadFrame as error:
            raise Unusable("TooLarge", str(error)) from error
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._under_way.add(number)
        try:
            self._writer.write(frame)
            await asyncio.wait([answer], timeout=timeout_seconds)
            if answer.done():
                return answer.result()
            log.warning("%s: %s had no answer within %.1f s; it is killed", self.name, operation, timeout_seconds)
            self.kill(f"a call had no answer within {timeout_seconds:.1f} s")
            raise OutOfTime(f"no answer within {timeout_seconds:.1f} s")
        finally:
            self._calls.pop(number, None)

    def kill(self, why: str) -> None:
        """End it at once; the calls under way are unknown."""
        self._nursery.kill(self._child)
        self._end(why)

    async def close(self, timeout_seconds: float) -> None:
        """Let the sink close what it has open, unless a call is under way; then end the process."""
        if self.gone:
            return
        self.closing = True  # later calls are turned down
        if not self._under_way:
            try:
                await self._exchange("close", {}, timeout_seconds)
            except (SinkjobError, OutOfTime, NotStarted) as error:
                log.info("%s did not close well: %s", self.name, error)
        self.kill("it was closed")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = ""
        try:
            while True:
                size = frames.length(await reader.readexactly(frames.HEAD.size))
                self._take(frames.unpack(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            why = self.gone or await self._obituary()
        except (BadFrame, KeyError, TypeError) as error:
            self._nursery.kill(self._child)
            why = f"it answered nonsense: {error}"
        if not self.gone:
            log.warning("%s is gone: %s", self.name, why, extra={"sinkjob": self.owner.facts})
        self._end(why)

    async def _obituary(self) -> str:
        done, _ = await asyncio.wait([self._child.ended], timeout=OBITUARY_SECONDS)
        return (self._child.ended.result() if done else "") or "it ended by itself"

    def _take(self, frame: Json) -> None:
        if "log" in frame:
            if not self._allowance.spend():
                return
            text = str(frame["log"])[: frames.TEXT_CHARS_MAX]
            output.info("%s: %s", self.owner, text, extra={"sinkjob": self.owner.facts})
            return
        number = frame["id"]
        self._under_way.discard(number)
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if "error" in frame:
            answer.set_exception(_error(frame["error"]))
        else:
            answer.set_result(frame["value"])

    def _end(self, why: str) -> None:
        if self.gone:
            return
        self.gone = why
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(WorkerGone("WorkerGone", f"the worker process ended in the middle: {why}"))
                answer.exception()  # whoever waits for it sees it; where nobody does, it is no news
        if self._writer is not None:
            self._writer.close()
        self._ended(self)

    async def finish(self) -> None:
        """After its end: wait until nothing of it is left here."""
        if self._reading is not None:
            await asyncio.wait([self._reading])


def _error(told: Json) -> SinkjobError:
    kind = Unusable if told["final"] else SinkjobError
    reason, message, advice = (str(told[key])[: frames.TEXT_CHARS_MAX] for key in ("reason", "message", "advice"))
    return kind(reason, message, advice)
