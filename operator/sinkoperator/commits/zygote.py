"""The clean parent of the worker processes: `python -m sinkoperator.commits.zygote FD`.

`nursery` starts it by exec with a scrubbed environment, before the operator knows any secret. It imports the sinks'
modules once, then forks a worker for each request that comes over the socket, in milliseconds and with shared pages.
It has one thread, opens no sink, and knows no secret. When the socket closes it ends, and its workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sinkoperator.commits import worker
from sinkoperator.commits.folders import own_folder
from sinkruntime.errors import ManifestError
from sinkruntime.spec.sink_options import load_sink_class, sink_types

#: Clients of targets that take long to import; those that are not installed are left out.
CLIENTS = ("boto3", "pyarrow.parquet", "pyarrow.fs", "fastavro")

MESSAGE_BYTES_MAX = 16 * 1024
POLL_SECONDS = 10.0

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


def preload() -> None:
    """Import what workers will need, so that they share it."""
    for name in CLIENTS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in sink_types():
        try:
            load_sink_class(name, ("type",))
        except ManifestError as error:  # one whose extra is not installed: opening it says so
            print(f"sink {name} is not there: {error}", file=sys.stderr)


@dataclass(slots=True)
class Zygote:
    """Children by process id, with the number that the operator knows each by."""

    control: socket.socket
    folder: Path
    children: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Until the operator goes away."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._send({"ready": True})
        while True:
            ready, _, _ = select.select([self.control, wake], [], [], POLL_SECONDS)
            if wake in ready:
                wake.recv(4096)
            self._reap()
            if self.control in ready and not self._request():
                break
        for process in self.children:
            _kill_group(process)

    def _request(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES_MAX, 1)
        except ConnectionError:  # it has gone without reading all that it was told
            return False
        if not message:
            return False
        asked = json.loads(message)
        if "kill" in asked:
            for process, number in self.children.items():
                if number == asked["kill"]:
                    _kill_group(process)
            return True
        try:
            self._fork(asked, descriptors[0])
        except OSError as error:  # no more processes, or no memory
            self._send({"ended": asked["fork"], "how": f"it could not be forked: {error.strerror}"})
        finally:
            os.close(descriptors[0])
        return True

    def _fork(self, asked: dict[str, int], descriptor: int) -> None:
        parent = os.getpid()
        process = os.fork()
        if process:
            self.children[process] = asked["fork"]
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            close_all_but(descriptor)
            connection = socket.socket(fileno=descriptor)
            folder = self._folder_of(os.getpid())
            confine(parent, asked)
            folder.mkdir(mode=0o700)
            status = worker.serve(connection, folder)
        finally:  # never back into the parent's code
            os._exit(status)

    def _folder_of(self, process: int) -> Path:
        return self.folder / str(process)

    def _reap(self) -> None:
        """Tell of those that have ended. Until it is reaped, nobody else can get a child's process id or group."""
        while self.children:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            process = found.si_pid
            _kill_group(process)
            _, status = os.waitpid(process, 0)
            shutil.rmtree(self._folder_of(process), ignore_errors=True)
            number = self.children.pop(process, None)
            if number is not None:
                self._send({"ended": number, "how": how(os.waitstatus_to_exitcode(status))})

    def _send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # the operator is gone, and the loop ends
            self.control.send(json.dumps(message).encode())


def close_all_but(kept: int) -> None:
    """Leave a child nothing of its parent's but the standard streams and its own socket."""
    for low, high in ((3, kept), (kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])):
        os.closerange(low, high)


def confine(parent: int, asked: dict[str, int]) -> None:
    """What makes a fresh child a worker: a group of its own, an end with its parent's, limits."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        # No core with secrets in it; and no other worker, though of the same user, may read this one's memory.
        libc.prctl(PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _data_bytes() + asked["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    os.nice(asked["nice"])


def _data_bytes() -> int:
    """The writable private memory that this process has from its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


def how(code: int) -> str:
    """How a worker ended, for people; "" where it was in order."""
    if code == worker.OUT_OF_MEMORY:
        return "it reached its memory limit"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}"
        return f"it was ended by signal {-code}"
    return f"it ended with code {code}" if code else ""


def _kill_group(process: int) -> None:
    for target in (os.killpg, os.kill):  # a child that was forked just now has no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            target(process, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Import, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the operator's to answer
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=descriptor)
    preload()
    gc.collect()
    gc.freeze()  # the collector would write to every object, and no page would stay shared
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    if threads > 1:
        raise SystemExit(f"a sink's module has started {threads - 1} threads when it was imported; it must not")
    with own_folder() as folder:
        Zygote(control, folder).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
