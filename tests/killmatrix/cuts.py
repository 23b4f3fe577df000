"""Connections that are cut by chance while a job runs, for benches whose servers are reached through a proxy."""

from __future__ import annotations

import time
from typing import ClassVar, Literal, Protocol

from tests.killmatrix.bench import Bench
from tests.servers.lost_answers import LostAnswers
from tests.servers.toxiproxy import Proxy

#: A disturbance begins after so long at most, and lasts so long at most.
QUIET_SECONDS_MAX = 2.0
#: Where the rows are many, a checkpoint's passage must fit in between.
QUIET_SECONDS_MAX_BULK = 30.0
#: `Outages`: so many requests at most come between two disturbances; a checkpoint of a database has about sixty. By
#: time, a slow machine would come to no checkpoint between them.
QUIET_REQUESTS_MAX = 200
DISTURBED_SECONDS_MAX = 1.0

#: Connections that are reset, that hang until they are cut, and answers that are lost after the request has arrived.
TOXICS: tuple[tuple[str, Literal["upstream", "downstream"], dict[str, int]], ...] = (
    ("reset_peer", "downstream", {"timeout": 0}),
    ("reset_peer", "upstream", {"timeout": 20}),
    ("timeout", "downstream", {"timeout": 0}),
    ("timeout", "upstream", {"timeout": 300}),
    ("limit_data", "downstream", {"bytes": 0}),
)


class Cuts(Bench):
    """A bench that sets `proxy` in `prepare`."""

    disturbs = True
    proxy: Proxy
    _toxic: str | None = None
    _next = 0.0

    def disturb(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        if self._toxic is not None:
            self.calm()
            self._next = now + self.chance.random() * (QUIET_SECONDS_MAX_BULK if self.bulk else QUIET_SECONDS_MAX)
            return
        self.disturbances += 1
        kind, stream, attributes = self.chance.choice(TOXICS)
        self._toxic = self.proxy.add_toxic(kind, stream, **attributes)
        self._next = now + self.chance.random() * DISTURBED_SECONDS_MAX

    def calm(self) -> None:
        if self._toxic is not None:
            self.proxy.remove_toxic(self._toxic)
            self._toxic = None


class Server(Protocol):
    """A server's process, which keeps its data."""

    def kill(self) -> None:
        """`kill -9`."""

    def start(self) -> None:
        """Start it again; returns once it answers."""


class Outages(Cuts):
    """A bench that also sets `server`, which is killed now and then, and `answers`, which loses some on purpose."""

    server: Server
    answers: LostAnswers
    #: One disturbance in so many is a kill; one answer in so many of those that matter is lost.
    kills_one_in: ClassVar[int]
    lost_one_in: ClassVar[int]
    server_kills = 0
    _due = 0

    def disturb(self) -> None:
        self.answers.one_in = self.lost_one_in
        if self._toxic is None and self.answers.requests < self._due:
            return
        before = self.disturbances
        super().disturb()
        if self.disturbances == before:
            return
        self._due = self.answers.requests + self.chance.randrange(QUIET_REQUESTS_MAX)
        if self.disturbances % self.kills_one_in == 1:
            self.server_kills += 1
            self.server.kill()
            self.server.start()

    def calm(self) -> None:
        self.answers.one_in = 0
        super().calm()

    def told(self) -> str:
        counts = [f"{count} to {text.strip(chr(0))}" for text, count in sorted(self.answers.lost.items())]
        return f"{super().told()}, {self.server_kills} kills of the server, lost answers: {', '.join(counts) or 'none'}"
