"""Connections that are cut by chance while a job runs, for benches whose servers are reached through a proxy."""

from __future__ import annotations

import time
from typing import Literal

from tests.killmatrix.bench import Bench
from tests.servers.toxiproxy import Proxy

#: A disturbance begins after so long at most, and lasts so long at most.
QUIET_SECONDS_MAX = 2.0
#: Where the rows are many, a checkpoint's passage must fit in between.
QUIET_SECONDS_MAX_BULK = 30.0
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
