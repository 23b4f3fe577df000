"""A worker process: one sink of one revision of one job (or a job's checkpoint storage, for the largest payloads),
opened once, then called until it is closed or killed.

`zygote` forks it. It gets manifest, secrets and identity with the call that opens it, over its socket, and keeps them
in its memory only. Calls run side by side, a thread each, as a committer is promised. What it prints goes back to the
operator's log, with secrets hidden. It knows no ledger, no API server and no other job.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkoperator.commits import frames
from sinkoperator.commits.allowance import LINES_PER_SECOND, Allowance
from sinkoperator.commits.egress import Egress
from sinkoperator.commits.frames import BadFrame, Json
from sinkoperator.commits.guard import Guard
from sinkoperator.commits.service import Service, open_sink
from sinkoperator.commits.storage import Storage
from sinkruntime.errors import SinkjobError
from sinkruntime.spec.options_from import Secrets

#: Exit code that says so.
OUT_OF_MEMORY = 86

#: Address space of a thread counts against the memory limit; the default would be 8 MiB.
STACK_BYTES = 2 * 1024 * 1024

#: Longer lines of output are cut.
LINE_CHARS_MAX = 2000


def serve(connection: socket.socket, folder: Path) -> int:
    """Answer calls until the operator closes the socket; returns the exit code."""
    threading.stack_size(STACK_BYTES)
    os.environ.update(HOME=str(folder), TMPDIR=str(folder))
    tempfile.tempdir = str(folder)  # the parent has looked it up before, and it is looked up once
    os.chdir(folder)
    return _Worker(connection, folder).run()


class _Worker:
    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._sending = threading.Lock()
        self._secrets = Secrets({})
        self._guard = Guard()
        self._service: Service | Storage | None = None

    def run(self) -> int:
        self._guard.install()
        self._tell_output()
        while (frame := self._receive()) is not None:
            threading.Thread(target=self._answer, args=(frame,), daemon=True).start()
        return 0

    def _receive(self) -> Json | None:
        head = self._exactly(frames.HEAD.size)
        body = self._exactly(frames.length(head)) if head else b""
        return frames.unpack(body) if body else None

    def _exactly(self, size: int) -> bytes:
        """So many bytes; none where the operator is gone."""
        parts = bytearray()
        while len(parts) < size:
            data = self._connection.recv(min(size - len(parts), 1 << 20))
            if not data:
                return b""
            parts += data
        return bytes(parts)

    def _answer(self, frame: Json) -> None:
        try:
            answer = {"id": frame["id"], "value": self._call(frame["operation"], frame["arguments"])}
            self._send(answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # what is left of this process is not to be trusted with a commit
        except BaseException as error:  # noqa: BLE001  (a sink may raise anything; it becomes the answer)
            self._send({"id": frame["id"], "error": self._told(error)})

    def _told(self, error: BaseException) -> Json:
        ours = isinstance(error, SinkjobError)
        reason = error.reason if isinstance(error, SinkjobError) else type(error).__name__
        message = error.message if isinstance(error, SinkjobError) else f"{type(error).__name__}: {error}"
        path = getattr(error, "path", "") if ours else ""
        text = f"{path}: {message}" if path else message
        return {
            "reason": reason,
            "message": self._hidden(text),
            "advice": self._hidden(error.advice) if isinstance(error, SinkjobError) else "",
            "final": isinstance(error, ValueError),
        }

    def _call(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "identity":
            return self._take_identity(arguments)
        if operation == "open":
            return self._open(arguments)
        if operation == "close":
            if self._service is not None:
                self._service.close()
            return None
        if self._service is None:
            raise BadFrame("it is not open")
        return self._hide_answers(self._service.call(operation, arguments))

    def _open(self, arguments: Mapping[str, Any]) -> Json:
        """Everything that a person wrote is read here, and so cannot harm the operator."""
        self._secrets = hidden_of(arguments["secrets"])
        self._guard.obey(Egress.parse(arguments["egress"]["allow"], arguments["egress"]["closed"]))
        self._take_identity(arguments["identity"])
        if "storages" in arguments:
            self._service = Storage(arguments, self._guard.check)
        else:
            self._service = open_sink(arguments, self._guard.check_options)
        return self._service.facts()

    def _take_identity(self, identity: Mapping[str, Any]) -> None:
        """Write the tokens where only this user can read them, and say where they are, as clouds' libraries expect."""
        for name, text in identity["files"].items():
            fresh = self._folder / f".{name}"
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, text.replace("{folder}", str(self._folder)).encode())
            finally:
                os.close(descriptor)
            fresh.replace(self._folder / name)
        for name, text in identity["environment"].items():
            os.environ[name] = text.replace("{folder}", str(self._folder))

    def _hide_answers(self, value: Any) -> Any:
        if isinstance(value, list):
            for answer in value:
                if isinstance(answer, dict) and "message" in answer:
                    answer["message"] = self._hidden(answer["message"])
                    answer["reason"] = self._hidden(answer["reason"])
        return value

    def _hidden(self, text: str) -> str:
        return self._secrets.hide(str(text))[: frames.TEXT_CHARS_MAX]

    def _send(self, value: Json) -> None:
        data = frames.pack(value)
        with self._sending:
            self._connection.sendall(data)

    def _tell_output(self) -> None:
        """Take over standard output and error, of C libraries too."""
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", force=True)
        threading.Thread(target=self._forward, args=(reading,), daemon=True).start()

    def _forward(self, reading: int) -> None:
        allowance = Allowance(LINES_PER_SECOND, time.monotonic)
        with open(reading, encoding="utf-8", errors="replace", newline="\n") as lines:
            while line := lines.readline(LINE_CHARS_MAX):
                text = line.rstrip("\n")
                if text and allowance.spend():
                    missing = allowance.left_out()
                    note = f" ({missing} lines before it are left out)" if missing else ""
                    self._send({"log": self._hidden(text) + note})


#: As the command line's: shorter values are no secrets, and hiding them would garble every text.
SECRET_CHARS_MIN = 6


def hidden_of(secrets: Mapping[str, Mapping[str, str]]) -> Secrets:
    """What is hidden of these Secrets: values as options have them, without the line end that a file brings along, and
    each line of those that have several, for output is told line by line."""
    whole = [value.removesuffix("\n") for keys in secrets.values() for value in keys.values()]
    texts = {text for value in whole for text in (value, *map(str.strip, value.splitlines()))}
    return Secrets({str(at): text for at, text in enumerate(sorted(texts)) if len(text) >= SECRET_CHARS_MIN})
