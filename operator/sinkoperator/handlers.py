"""Kopf, as the one who tells that a SinkJob has changed: hints, and the bodies as they were last seen.

The application starts it once. Kopf runs in a thread with an event loop of its own, because a Kopf operator that ends
cancels every task of the loop that it runs in, and because it would take this process's signals. It is never trusted:
a hint may be missing, late or double, and whoever acts on a job has looked at it. It adds no finalizer and writes
nothing. When Kopf ends, by an error or because `restart` was called, it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import kopf

from sinkruntime.environment import Environment

log = logging.getLogger(__name__)

Object = dict[str, Any]
#: "" where the object was listed, else "ADDED", "MODIFIED" or "DELETED"; and the SinkJob.
Seen = Callable[[str, Object], None]

#: Kopf's watches: a request is renewed after these, a silent one sooner. The API server sends a bookmark a minute.
SERVER_TIMEOUT_SECONDS = 300
CLIENT_TIMEOUT_SECONDS = 330
CONNECT_TIMEOUT_SECONDS = 10
INACTIVITY_SECONDS = 75

#: Waits before Kopf is started again, doubling.
FIRST_WAIT_SECONDS = 1.0
LAST_WAIT_SECONDS = 30.0

#: How long Kopf may take to end when it is asked to.
STOP_SECONDS = 10.0

# As aiohttp's chapter "Graceful Shutdown" has it for TLS.
GOODBYE_SECONDS = 0.25


class Hints:
    """See the module."""

    def __init__(self, namespaces: Sequence[str], seen: Seen, environment: Environment) -> None:
        self._namespaces = tuple(namespaces)  # none: the whole cluster
        self._seen = seen
        self._environment = environment
        self._end: Callable[[], None] | None = None
        self.starts = 0

    async def run(self) -> None:
        """Run Kopf, again and again, until this task is cancelled."""
        quiet()
        clock, wait = self._environment.clock, FIRST_WAIT_SECONDS
        while True:
            began = clock.monotonic()
            await self._run_once()
            if clock.monotonic() - began > LAST_WAIT_SECONDS:
                wait = FIRST_WAIT_SECONDS
            await asyncio.sleep(wait * (0.5 + self._environment.random.random()))
            wait = min(2 * wait, LAST_WAIT_SECONDS)

    def restart(self) -> None:
        """End Kopf's watch, and begin a new one; for a watch that is found to be silently dead."""
        if self._end is not None:
            self._end()

    async def _run_once(self) -> None:
        self.starts += 1
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        registry = registry_of(partial(_call, loop, self._seen))
        thread = threading.Thread(
            target=self._thread, args=(registry, partial(_call, loop, ended.set)), name="kopf", daemon=True
        )
        thread.start()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.restart()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await ended.wait()
            except TimeoutError:
                log.warning("Kopf did not end within %.0f s; it is left behind", STOP_SECONDS)
            raise

    def _thread(self, registry: kopf.OperatorRegistry, ended: Callable[[], None]) -> None:
        try:
            asyncio.run(self._kopf(registry))
        except Exception:
            log.warning("Kopf's watch of SinkJobs failed, it is started again", exc_info=True)
        finally:
            self._end = None
            ended()

    async def _kopf(self, registry: kopf.OperatorRegistry) -> None:
        stop = asyncio.Event()
        self._end = partial(_call, asyncio.get_running_loop(), stop.set)
        await kopf.operator(
            registry=registry,
            settings=settings_of(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )
        # Kopf closes its watch and does not wait for the server's goodbye; with the loop the socket would be left open.
        await asyncio.sleep(GOODBYE_SECONDS)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *values: object) -> None:
    """Call the function in another thread's loop, unless that has been closed meanwhile."""
    try:
        loop.call_soon_threadsafe(function, *values)
    except RuntimeError:
        log.debug("the loop is closed: %s is not called", function)


def registry_of(seen: Seen) -> kopf.OperatorRegistry:
    """The handlers, in a registry of their own. `seen` is called in Kopf's thread."""
    registry = kopf.OperatorRegistry()

    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    async def look(event: kopf.RawEvent, **_: Any) -> None:
        seen(event["type"] or "", dict(event["object"]))

    kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.PERMANENT)(login)
    kopf.on.event("sinkjob.io", "v1alpha1", "sinkjobs", registry=registry, id="look")(look)
    return registry


def quiet() -> None:
    """Kopf tells of each event that it passes on, and warns that it leaves this process's signals alone."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


def settings_of() -> kopf.OperatorSettings:
    """Kopf's settings: only watching, each wait bounded, nothing written."""
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    settings.watching.client_timeout = CLIENT_TIMEOUT_SECONDS
    settings.watching.connect_timeout = CONNECT_TIMEOUT_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = CONNECT_TIMEOUT_SECONDS
    settings.networking.enforce_retry_after = True
    settings.posting.enabled = False
    settings.scanning.disabled = True  # no right to list namespaces or CRDs is needed, nor is any new one served
    settings.process.ultimate_exiting_timeout = None  # a hung Kopf must not kill a process that commits
    settings.queueing.worker_limit = None  # a limit below the number of objects can block the start (kopf #1243)
    settings.queueing.idle_timeout = 1.0
    return settings
