"""Kubernetes Events of SinkJobs: what `kubectl describe` shows, few of them however often something happens.

`post` only notes; one task writes. The same reason for the same object raises the count of one Event instead of making
another; an object has a bucket of writes; what does not fit waits and is told by the next write. A write that fails is
left out: nothing depends on Events, and nothing waits for them. Messages are those of our own errors and decisions,
which never hold a secret value.

They are Events of `v1`, not of `events.k8s.io/v1`: both are the same objects to the API server, and of this form every
tool reads count, first and last time (`kubectl get events --sort-by=.lastTimestamp` finds no time in the other).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

from sinkruntime.environment import Environment
from sinkruntime.kube import EVENT, AlreadyExists, ApiError, Kind, NotFound, Object

log = logging.getLogger(__name__)

#: What the API server takes.
MESSAGE_BYTES_MAX = 1024
REASON_CHARS_MAX = 128
#: Of an Event's name; the rest is for the digits behind the job's name.
JOB_CHARS_MAX = 200
COMPONENT = "sinkjob-operator"


class EventApi(Protocol):
    """What is asked of `sinkruntime.kube.Api`."""

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object: ...
    async def patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object: ...


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Bounds. One object costs `burst` writes at once and then one each `refill_seconds`."""

    burst: int = 10
    refill_seconds: float = 30.0
    repeat_seconds: float = 300.0  # the same message again: only its count changes, and that so often at most
    series_max: int = 4096  # remembered; the longest unused are forgotten
    write_seconds: float = 5.0
    close_seconds: float = 2.0


@dataclass(slots=True)
class _Series:
    """One reason of one object."""

    namespace: str
    name: str  # of the Event
    involved: Object
    reason: str
    kind: str  # Normal or Warning
    message: str
    first: float
    last: float
    count: int = 0
    written: str | None = None  # the message as it was last written; None: not yet
    exists: bool = False
    not_before: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float


_Id = tuple[str, str, str]


class Events:
    """See the module. An async context manager: entering starts the task that writes."""

    def __init__(
        self, api: EventApi, environment: Environment, identity: str, settings: EventSettings | None = None
    ) -> None:
        self._api = api
        self._environment = environment
        self._identity = identity
        self._settings = settings or EventSettings()
        self._series: OrderedDict[_Id, _Series] = OrderedDict()
        self._dirty: dict[_Id, None] = {}
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="events")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(TimeoutError):  # what is left is not worth a slower end
            async with asyncio.timeout(self._settings.close_seconds):
                await self._write_due()

    def post(self, job: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell this of the object. Returns at once; of equal ones one is written."""
        metadata, now = job["metadata"], self._environment.clock.wall()
        kind = "Warning" if warning else "Normal"
        identity = (metadata["uid"], reason, kind)
        series = self._series.get(identity)
        if series is None:
            series = self._series[identity] = self._begin(job, reason[:REASON_CHARS_MAX], kind, now)
        self._series.move_to_end(identity)
        series.count += 1
        series.last = now
        series.message = cut(message)
        self._dirty[identity] = None
        while len(self._series) > self._settings.series_max:
            oldest, _ = self._series.popitem(last=False)
            self._dirty.pop(oldest, None)
        self._wake.set()

    def _begin(self, job: Object, reason: str, kind: str, now: float) -> _Series:
        metadata = job["metadata"]
        involved = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        name = f"{metadata['name'][:JOB_CHARS_MAX].rstrip('.-')}.{self._environment.random.getrandbits(64):016x}"
        return _Series(metadata["namespace"], name, involved, reason, kind, "", now, now)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_seconds = await self._write_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()

    async def _write_due(self) -> float | None:
        """Write what may be written now; answers after how many seconds there is more (None: nothing waits)."""
        waits: list[float] = []
        for identity in list(self._dirty):
            series = self._series.get(identity)
            if series is None:
                self._dirty.pop(identity, None)
                continue
            wait_seconds = self._wait(identity[0], series)
            if wait_seconds > 0:
                waits.append(wait_seconds)
                continue
            self._dirty.pop(identity, None)
            await self._write(series)
        return min(waits, default=None)

    def _wait(self, uid: str, series: _Series) -> float:
        """Seconds until this may be written; 0: now, and its token is taken."""
        now, settings = self._environment.clock.monotonic(), self._settings
        if series.message == series.written and series.not_before > now:
            return series.not_before - now
        bucket = self._buckets.setdefault(uid, _Bucket(float(settings.burst), now))
        self._buckets.move_to_end(uid)
        bucket.tokens = min(settings.burst, bucket.tokens + (now - bucket.filled) / settings.refill_seconds)
        bucket.filled = now
        while len(self._buckets) > settings.series_max:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1.0:
            return (1.0 - bucket.tokens) * settings.refill_seconds + 0.01
        bucket.tokens -= 1.0
        return 0.0

    async def _write(self, series: _Series) -> None:
        series.written = series.message
        series.not_before = self._environment.clock.monotonic() + self._settings.repeat_seconds
        try:
            async with asyncio.timeout(self._settings.write_seconds):
                if series.exists:
                    with contextlib.suppress(NotFound):  # the server keeps Events for an hour
                        await self._api.patch(EVENT, series.namespace, series.name, self._change(series))
                        return
                    series.exists = False
                try:
                    await self._api.create(EVENT, series.namespace, self._whole(series))
                except AlreadyExists:  # by a request whose answer was lost
                    await self._api.patch(EVENT, series.namespace, series.name, self._change(series))
                series.exists = True
        except (ApiError, TimeoutError) as error:
            log.debug("the event %s of %s was not written: %s", series.reason, series.involved["name"], error)

    @staticmethod
    def _change(series: _Series) -> Object:
        return {"count": series.count, "lastTimestamp": _time(series.last), "message": series.message}

    def _whole(self, series: _Series) -> Object:
        return {
            "metadata": {"name": series.name, "namespace": series.namespace},
            "involvedObject": series.involved,
            "reason": series.reason,
            "type": series.kind,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity[:REASON_CHARS_MAX],
            "firstTimestamp": _time(series.first),
            **self._change(series),
        }


def cut(message: str) -> str:
    """The message within the API server's limit, cut between characters."""
    encoded = message.encode()
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return message
    mark = "…"
    return encoded[: MESSAGE_BYTES_MAX - len(mark.encode())].decode(errors="ignore") + mark


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
