"""Whether this replica is well: for the kubelet's probes, and for people who read them.

The application makes one `Health` and serves its `pages` beside the metrics. Kopf's own liveness endpoint is not used:
it calls probe handlers inside the request, a handler that raises is tried again for ever while the request hangs, only
`kopf.PermanentError` answers 500, and a good answer is kept for 10 s; it also knows nothing of watches of our own.

A replica is not alive where a new start would help: its event loop hangs (then nothing answers here), or a watch tells
nothing although the API server takes this replica's writes. That is proven by echo: the replica writes its own Lease
every 2 s, so a watch on Leases must show it. An API server that is down is no reason to start again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sinkoperator.web import Answer, Page
from sinkruntime.environment import Environment

#: How often the loop is asked whether it is in time.
BEAT_SECONDS = 1.0


class Beating(Protocol):
    """What is asked of `Leases`."""

    @property
    def own_lease(self) -> str: ...
    @property
    def lives(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Bounds. A healthy echo comes within 2 s, a bookmark within about 60 s; a silent watch begins anew after 70 s."""

    echo_seconds: float = 30.0
    watch_seconds: float = 180.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe is answered: good where there is no problem."""

    problems: tuple[str, ...]
    facts: Mapping[str, Any]

    @property
    def good(self) -> bool:
        """Whether all is well."""
        return not self.problems

    def answer(self) -> Answer:
        """As HTTP: 200, or 503 with what is wrong."""
        text = json.dumps({"good": self.good, "problems": self.problems, **self.facts}, indent=1)
        return (200 if self.good else 503), "application/json", text.encode()


class Health:
    """See the module. `lease_seen` is to be subscribed to a watch on the Leases of the operator's namespace."""

    def __init__(self, leases: Beating, environment: Environment, settings: HealthSettings | None = None) -> None:
        self._leases = leases
        self._clock = environment.clock
        self._settings = settings or HealthSettings()
        self._watches: dict[str, Callable[[], float]] = {}
        self._needs: dict[str, Callable[[], bool]] = {}
        self._tenure = ""
        self._tenure_since = self._echo = self._clock.monotonic()
        self.late_seconds = 0.0

    def watch(self, name: str, age_seconds: Callable[[], float]) -> None:
        """A watch that must not be silent for long, such as `Watch.age_seconds`."""
        self._watches[name] = age_seconds

    def need(self, name: str, done: Callable[[], bool]) -> None:
        """What must be so before this replica is ready, such as a cache that is synced."""
        self._needs[name] = done

    def lease_seen(self, event: str, body: Mapping[str, Any]) -> None:
        """A watch has shown a Lease."""
        self._follow()
        if event != "DELETED" and body["metadata"]["name"] == self._leases.own_lease:
            self._echo = self._clock.monotonic()

    async def beat(self) -> None:
        """For ever: how late the event loop is; `late_seconds` is that of the last beat."""
        while True:
            due = self._clock.monotonic() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            self._follow()
            self.late_seconds = max(0.0, self._clock.monotonic() - due)

    def alive(self) -> Report:
        """For the liveness probe."""
        self._follow()
        now = self._clock.monotonic()
        # Only the time in which the API server has taken our writes counts: before it, silence proves nothing.
        writing = now - self._tenure_since if self._leases.lives else 0.0
        echo = now - self._echo
        ages = {name: age_seconds() for name, age_seconds in self._watches.items()}
        problems: list[str] = []
        if min(echo, writing) > self._settings.echo_seconds:
            problems.append(f"the watch on Leases has not shown our own for {echo:.0f} s, though it was renewed")
        problems.extend(
            f"the watch on {name} has told nothing for {age:.0f} s, though the API server takes our writes"
            for name, age in ages.items()
            if min(age, writing) > self._settings.watch_seconds
        )
        facts = {
            "lease": self._leases.own_lease,
            "renewed": self._leases.lives,
            "echo_age_seconds": round(echo, 3),
            "loop_late_seconds": round(self.late_seconds, 3),
            "watch_age_seconds": {name: round(age, 3) for name, age in ages.items()},
        }
        return Report(tuple(problems), facts)

    def ready(self) -> Report:
        """For the readiness probe."""
        done = {name: ask() for name, ask in self._needs.items()}
        return Report(tuple(f"not yet: {name}" for name, is_done in done.items() if not is_done), {"needs": done})

    def pages(self) -> dict[str, Page]:
        """For `web.serve`."""

        async def alive() -> Answer:
            return self.alive().answer()

        async def ready() -> Answer:
            return self.ready().answer()

        return {"/healthz": alive, "/readyz": ready}

    def _follow(self) -> None:
        """A new tenure has a Lease of another name; while there is none the API server may be out of reach."""
        tenure = self._leases.own_lease
        if tenure != self._tenure:
            self._tenure = tenure
            self._tenure_since = self._echo = self._clock.monotonic()
