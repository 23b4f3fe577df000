"""What the operator holds in memory: at rest, and for each job that it knows.

`operators.py` lists it. Resident memory is summed over the operator's process and all of its children; pages that they
share count more than once. Linux only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import PLACE, Cluster, cluster, family, sink_job
from benchmarks.figures import Figure, Round
from sinkruntime.kube import SINK_JOB

JOBS = 1_000
APPLYING_MAX = 16
SUSPENDED_SECONDS = 600.0
#: After the last change: whatever comes later than an event is over by then.
REST_SECONDS = 15.0
KIB, MIB = 1024, 1024**2


class Footprint:
    """(d) Memory at rest, and its growth with idle jobs."""

    name = "footprint"
    warm_up = False
    figures: Sequence[Figure] = (
        Figure("memory-at-rest-mib", 256, "rest", judged="median"),
        Figure("memory-kib-per-job", 128, "slope", judged="median"),
    )

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._jobs = max(50, int(JOBS * scale))

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        with cluster(self._folder / f"footprint-{index}") as there:
            return asyncio.run(self._measure(there))

    async def _measure(self, there: Cluster) -> Round:
        await asyncio.sleep(REST_SECONDS)
        rest = resident_bytes(there.operator.pid)
        await self._suspended_jobs(there)
        await asyncio.sleep(REST_SECONDS)
        full = resident_bytes(there.operator.pid)
        return {
            "rest": sum(rest) / MIB,
            "main process": rest[0] / MIB,
            "full": sum(full) / MIB,
            "slope": (sum(full) - sum(rest)) / KIB / self._jobs,
        }

    async def _suspended_jobs(self, there: Cluster) -> None:
        """Jobs that have never run, each with all that the operator keeps for it."""
        places = asyncio.Semaphore(APPLYING_MAX)
        async with there.api() as api:

            async def create(number: int) -> None:
                async with places:
                    await api.create(SINK_JOB, PLACE, sink_job(f"job-{number:04d}", suspend=True))

            async def all_suspended() -> bool:
                await asyncio.sleep(1.0)  # each look is a list of all
                jobs, _ = await api.list(SINK_JOB, PLACE)
                phases = [(job.get("status") or {}).get("phase") for job in jobs]
                return phases.count("Suspended") == self._jobs

            async with asyncio.TaskGroup() as group:
                for number in range(self._jobs):
                    group.create_task(create(number))
            await there.until("all jobs are suspended", all_suspended, SUSPENDED_SECONDS)


def resident_bytes(process: int) -> list[int]:
    """What a process and its descendants hold in memory, the process itself first."""
    page = os.sysconf("SC_PAGE_SIZE")
    return [int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page for each in family(process)]
