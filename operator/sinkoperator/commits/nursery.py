"""The operator's side of the zygote: starts it, asks it for workers, and hears how they ended.

The entry point starts one before the operator reads any secret; `pool` asks it for workers. When the zygote dies its
workers die with it, and the next request starts another one, as clean as the first: it is exec'd, not forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from sinkoperator.commits.settings import WorkerSettings
from sinkruntime.coordinator.runner import NotStarted

log = logging.getLogger(__name__)

#: All that a worker's environment has of the operator's: nothing that says who the operator is, or how it logs in.
INHERITED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "SINKJOB_CRASH_POINT", "SINKJOB_CRASH_DIR",
)  # fmt: skip

#: No instance metadata for a library that looks for credentials by itself; and no threads when Arrow is imported, for
#: a process with threads must not be forked.
IMPOSED = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_GCE_CHECK": "true",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}

START_SECONDS = 60.0
STOP_SECONDS = 5.0
#: Not more often than this, should it die again and again.
RESTART_SECONDS = 1.0
MESSAGE_BYTES_MAX = 4096


def environment_of(own: Mapping[str, str], settings: WorkerSettings) -> dict[str, str]:
    """The environment of the zygote, and so of every worker."""
    names = (*INHERITED, *settings.pass_environment)
    return {name: own[name] for name in names if name in own} | IMPOSED


class Child:
    """A worker process as its parent tells of it."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Nursery:
    """See the module. Lives in one event loop, that of the main thread: a child dies with the thread that made it."""

    def __init__(self, settings: WorkerSettings, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._children: dict[int, Child] = {}
        self._numbers = 0
        self._starting = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None
        self._started_at = 0.0

    @property
    def process_id(self) -> int | None:
        """The zygote's, while it lives."""
        return self._process.pid if self._process and self._control else None

    async def start(self) -> None:
        """Start the zygote unless it lives; returns when it is ready. Raises `NotStarted`."""
        async with self._starting:
            if self._control is not None:
                return
            loop = asyncio.get_running_loop()
            wait = self._started_at + RESTART_SECONDS - loop.time()
            if self._started_at and wait > 0:
                await asyncio.sleep(wait)
            self._started_at = loop.time()
            await self._reap()
            self._ready = loop.create_future()
            self._spawn()
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._ready
            except TimeoutError:
                self._lost()
                raise NotStarted(f"the parent of workers was not ready within {START_SECONDS:.0f} s") from None

    def _spawn(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            descriptor = its.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sinkoperator.commits.zygote", str(descriptor)],
                env=environment_of(self._environ, self._settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        mine.setblocking(False)
        self._control = mine
        asyncio.get_running_loop().add_reader(mine, self._hear)

    async def fork(self) -> Child:
        """A new worker process. Raises `NotStarted`."""
        await self.start()
        self._numbers += 1
        mine, its = socket.socketpair()
        with its:
            mine.setblocking(False)
            child = self._children[self._numbers] = Child(self._numbers, mine)
            limits = {"memory_bytes": self._settings.memory_bytes, "nice": self._settings.nice}
            request = json.dumps({"fork": child.number, **limits}).encode()
            try:
                assert self._control is not None, "started just now"
                socket.send_fds(self._control, [request], [its.fileno()])
            except OSError as error:
                mine.close()
                del self._children[child.number]
                raise NotStarted(f"the parent of workers does not answer: {error}") from error
        return child

    def kill(self, child: Child) -> None:
        """End the worker at once, with all that it has started. Its parent knows whether the process is still it."""
        if self._control is not None and not child.ended.done():
            with contextlib.suppress(OSError):  # it is gone, and its workers with it
                self._control.send(json.dumps({"kill": child.number}).encode())

    def _hear(self) -> None:
        """The zygote's messages; an empty one is its end."""
        assert self._control is not None, "else there is no reader"
        while self._control is not None:
            try:
                message = self._control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._lost()
                return
            told = json.loads(message)
            if "ready" in told and self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            if "ended" in told:
                self._bury(told["ended"], told["how"])

    def _bury(self, number: int, how: str) -> None:
        child = self._children.pop(number, None)
        if child is not None and not child.ended.done():
            child.ended.set_result(how)

    def _lost(self) -> None:
        """The zygote is gone: so are its workers."""
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        if self._children or (self._ready is not None and not self._ready.done()):
            log.error("the parent of the worker processes has ended; it is started again when a worker is needed")
        for number in list(self._children):
            self._bury(number, "the parent of the worker processes has ended")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(NotStarted("the parent of workers ended while it started"))

    async def stop(self) -> None:
        """End the zygote, and all workers with it."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        for number in list(self._children):
            self._bury(number, "the operator ends")
        await self._reap()

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, STOP_SECONDS)
