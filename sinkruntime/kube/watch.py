"""A cache of objects that follows the API server: lists, watches, and lists again when it may have missed something.

Made by `Api.watch`; used by the operator and by the ledger store. It never ends by itself: whatever goes wrong is in
`problem` while it lasts. An event is only a hint to look: what a subscriber acts on it reads from the cache or from
the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from sinkruntime.environment import Environment
from sinkruntime.kube.errors import ApiError, Unavailable, translate
from sinkruntime.kube.kinds import Object
from sinkruntime.kube.settings import ApiSettings

_log = logging.getLogger(__name__)

#: "ADDED", "MODIFIED" or "DELETED", and the object (the last one known, where it was deleted unseen).
Callback = Callable[[str, Object], None]
_Key = tuple[str, str]


class _Surroundings(Protocol):
    settings: ApiSettings
    environment: Environment


class Watch:
    """An async context manager: entering starts the task, leaving ends it.

    `synced` is set once a first list is in the cache. `problem` is what the last try ran into, None while all is
    well. The cache's objects are shared: never change one. They come without `managedFields`.
    """

    def __init__(
        self,
        list_objects: Callable[[], Awaitable[tuple[list[Object], str]]],
        stream: Callable[[str], AbstractAsyncContextManager[AsyncIterable[bytes]]],
        surroundings: _Surroundings,
    ) -> None:
        self.synced = asyncio.Event()
        self.problem: ApiError | None = None
        self._list_objects = list_objects
        self._stream = stream
        self._settings = surroundings.settings
        self._environment = surroundings.environment
        self._cache: dict[_Key, Object] = {}
        self._callbacks: dict[Callback, None] = {}
        self._heard = self._environment.clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def get(self, namespace: str, name: str) -> Object | None:
        """The object as it was last heard of; None where there is none (or no list yet: see `synced`)."""
        return self._cache.get((namespace, name))

    def all(self) -> Iterable[Object]:
        """All objects, as a list of its own: it may be iterated while events come."""
        return list(self._cache.values())

    def age_seconds(self) -> float:
        """How long the server has not been heard; bookmarks come about each minute, so a healthy watch stays below
        `watch_silence_seconds`."""
        return self._environment.clock.monotonic() - self._heard

    def subscribe(self, callback: Callback) -> None:
        """Be told of each change from now on, at once and in the task that reads: return quickly, never wait."""
        self._callbacks[callback] = None

    def unsubscribe(self, callback: Callback) -> None:
        """Be told no more."""
        self._callbacks.pop(callback, None)

    async def __aenter__(self) -> Self:
        self._heard = self._environment.clock.monotonic()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        wait = self._settings.watch_first_wait_seconds
        while True:
            began = self._heard
            pause = 0.0
            try:
                await self._list_and_follow()
            except ApiError as error:
                self.problem = error
                pause = error.retry_after_seconds if isinstance(error, Unavailable) else 0.0
                _log.info("a watch begins again: %s", error)
            except Exception:  # noqa: BLE001
                # Whatever it is, a cache that has silently stopped would be worse than one that tries on.
                _log.exception("a watch begins again after an error that was not foreseen")
                self.problem = Unavailable("the watch failed; the log has the error")
            # What has been heard meanwhile shows that the server is well: only failures in a row wait longer.
            wait = self._settings.watch_first_wait_seconds if self._heard > began else wait
            await asyncio.sleep(max(pause, wait * (0.5 + self._environment.random.random() / 2)))
            wait = min(2 * wait, self._settings.watch_last_wait_seconds)

    async def _list_and_follow(self) -> None:
        objects, version = await self._list_objects()
        self._hear()
        self._take_list(objects)
        self.synced.set()
        while True:
            version = await self._follow(version)

    async def _follow(self, version: str) -> str:
        """Read one stream until the server ends it in order; returns the version to go on from."""
        heard = False
        async with self._stream(version) as lines:
            self.problem = None
            async for line in lines:
                version = self._take_line(line)
                heard = True
        if not heard:
            raise Unavailable("the server ended a watch that had told nothing")
        return version

    def _take_line(self, line: bytes) -> str:
        """One event; returns the version after it."""
        try:
            event = json.loads(line)
            kind, found = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"a watch broke off within an event: {line[:80]!r}") from error
        self._hear()
        if kind == "ERROR":
            code = found.get("code") or 500
            raise translate(code, json.dumps(found).encode(), {}, "watch", writes=False)
        version: str = found["metadata"]["resourceVersion"]
        if kind != "BOOKMARK":
            found["metadata"].pop("managedFields", None)
            self._take(kind, found)
        return version

    def _hear(self) -> None:
        self._heard = self._environment.clock.monotonic()

    def _take_list(self, objects: list[Object]) -> None:
        """Bring the cache to what a list found; subscribers hear only of what really changed."""
        present = {_key(found): found for found in objects}
        for key in [key for key in self._cache if key not in present]:
            self._take("DELETED", self._cache[key])
        for key, found in present.items():
            known = self._cache.get(key)
            if known is not None and known["metadata"]["uid"] != found["metadata"]["uid"]:
                self._take("DELETED", known)
                known = None
            if known is None:
                self._take("ADDED", found)
            elif known["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                self._take("MODIFIED", found)

    def _take(self, kind: str, found: Object) -> None:
        if kind == "DELETED":
            self._cache.pop(_key(found), None)
        else:
            self._cache[_key(found)] = found
        for callback in list(self._callbacks):
            try:
                callback(kind, found)
            except Exception:  # noqa: BLE001
                # One subscriber's fault must not take the cache from the others.
                _log.exception("a subscriber of a watch failed on %s %s", kind, _key(found))


def _key(found: Object) -> _Key:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
