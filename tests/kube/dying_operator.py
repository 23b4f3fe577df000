"""An operator that dies, without a word, at its k-th write to an object of a job; `DIES` is `k before` or `k after`.

`test_operator_process` starts it in place of `python -m sinkoperator`. Leases and Events do not count: when they are
written is a matter of time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from sinkoperator.app import Operator
from sinkoperator.settings import Settings, command
from sinkruntime.cli import logs
from sinkruntime.environment import Environment
from sinkruntime.kube import EVENT, LEASE, Api
from tests.kube.faults import Faults

KILLED = 137
UNCOUNTED = {f"{verb} {kind.name}" for verb in ("create", "patch", "delete") for kind in (EVENT, LEASE)}


class Deadly(Faults):
    """The end of the process."""

    async def write(self, what: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """See `Faults`."""
        if what in UNCOUNTED:
            return await make()
        self.writes.append(what)
        at, side = os.environ["DIES"].split()
        if len(self.writes) != int(at):
            return await make()
        if side == "after":
            await make()
        os._exit(KILLED)


async def _run(settings: Settings) -> None:
    environment = Environment.real()
    async with await Api.connect(environment=environment) as api:
        await Operator(Deadly().wrap(api), settings, environment).run(asyncio.Event())


def start(settings: Settings) -> int:
    """Run until it dies."""
    logs.configure(settings.log_level, settings.log_format)
    asyncio.run(_run(settings))
    return 0


if __name__ == "__main__":
    command(start)()
