"""The entry point: `python -m sinkoperator`, and the console script `sinkjob-operator`.

It reads the settings, connects to the API server, takes the signals, and runs the application. SIGTERM and SIGINT ask
for an orderly end; a second one ends the process at once, which loses nothing either.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from sinkoperator.app import Operator
from sinkoperator.settings import Settings, command
from sinkruntime.cli import logs
from sinkruntime.environment import Environment
from sinkruntime.errors import SinkjobError
from sinkruntime.kube import Api

log = logging.getLogger("sinkoperator")

DONE, FAILED = 0, 1


def start(settings: Settings) -> int:
    """Run an operator until a signal; returns the exit code."""
    logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_run(settings))
    except SinkjobError as error:
        log.error("%s", error)
        return FAILED
    except Exception:
        log.exception("the operator ends by an error of its own")
        return FAILED
    log.info("ended in order")
    return DONE


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    environment = Environment.real()
    async with await Api.connect(environment=environment) as api:
        await Operator(api, settings, environment).run(stop)


def main() -> None:
    """Run the operator of this process."""
    command(start)(prog_name="sinkjob-operator")


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[func-returns-value]
