"""Lets chosen statements through to a server and cuts the connection before their answers, by chance.

Used by benches of the kill matrix and by tests, beside toxiproxy, which cannot tell one statement from another. It
knows no protocol: a statement is told by its text in what the client sends. It never changes what it hands on.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

CHUNK_BYTES = 65536
#: A statement stands in a small message; rows on their way are not searched.
STATEMENT_BYTES_MAX = 4096
#: A farewell of PostgreSQL or MySQL: it has no answer.
FAREWELL_BYTES = 5


class LostAnswers:
    """A relay on a port of its own. `one_in`: one answer in so many is lost, none while it is 0."""

    def __init__(self, upstream: tuple[str, int], statements: Sequence[str] = (), seed: int = 1) -> None:
        self.one_in = 0
        self.lost: Counter[str] = Counter()
        self.requests = 0  # small ones, about as many as the client has sent
        self._upstream = upstream
        self._statements = statements
        self._chance = random.Random(seed)
        self._left = 0
        self._then: Callable[[], None] = lambda: None
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        """`host:port`."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def lose_answer(self, number: int, then: Callable[[], None] = lambda: None) -> None:
        """The answer to the `number`-th request from now on is lost, and when that was sent, `then` is called."""
        self._left = number
        self._then = then

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """It relays inside."""
        threading.Thread(target=self._serve, daemon=True).start()
        try:
            yield
        finally:
            # The thread that waits for a connection is woken by `shutdown` alone.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._upstream, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            threading.Thread(target=self._relay, args=(near, far), daemon=True).start()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        loses = threading.Event()
        with near, far:
            answers = threading.Thread(target=self._copy, args=(far, near, loses, False), daemon=True)
            answers.start()
            self._copy(near, far, loses, True)
            answers.join()

    def _copy(self, source: socket.socket, sink: socket.socket, loses: threading.Event, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if is_request and self._is_to_lose(data):
                    loses.set()  # before the server can answer
                    sink.sendall(data)
                    self._then()
                    continue
                if not is_request and loses.is_set():
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_to_lose(self, data: bytes) -> bool:
        if not FAREWELL_BYTES < len(data) <= STATEMENT_BYTES_MAX:
            return False
        self.requests += 1
        self._left -= 1
        if self._left == 0:
            self.lost["chosen"] += 1
            return True
        if not self.one_in:
            return False
        found = self._found(data)
        if found is None or self._chance.randrange(self.one_in):
            return False
        self.lost[found] += 1
        return True

    def _found(self, data: bytes) -> str | None:
        """Which of the statements this is. A subclass may know the protocol."""
        return next((text for text in self._statements if text.encode() in data), None)
