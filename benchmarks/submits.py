"""From `kubectl apply` of a SinkJob to its driver's pod, at a steady pace and with all jobs at once.

`operators.py` lists both. The pods run on simulated nodes, where nothing runs in them; what is measured is the operator
on its one core, and the API server that it writes to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from benchmarks.cluster import PLACE, Cluster, cluster, sink_job
from benchmarks.figures import Figure, Round
from sinkoperator import names
from sinkruntime.kube import POD, SINK_JOB, Api, Object

JOBS = 300
PER_SECOND = 5.0
#: Of all at once: requests under way.
APPLYING_MAX = 16
CREATED_SECONDS = 300.0
SELECTOR = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY},{names.COMPONENT_LABEL}={names.DRIVER}"


class Submits:
    """What both have in common."""

    name: str
    warm_up = False
    figures: Sequence[Figure]

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._jobs = max(10, int(JOBS * scale))

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        with cluster(self._folder / f"{self.name}-{index}") as there:
            return asyncio.run(self._measure(there))

    async def _measure(self, there: Cluster) -> Round:
        applied: dict[str, float] = {}
        created: dict[str, float] = {}

        def see(event: str, pod: Object) -> None:
            created.setdefault(pod["metadata"]["labels"][names.JOB_LABEL], time.perf_counter())

        async def all_created() -> bool:
            return len(created) >= self._jobs

        async with there.api() as api, api.watch(POD, PLACE, labels=SELECTOR) as watch:
            await watch.synced.wait()
            watch.subscribe(see)
            cpu = there.cpu_seconds()
            await self._apply(api, applied)
            await there.until("every driver's pod is created", all_created, CREATED_SECONDS)
            cpu = there.cpu_seconds() - cpu
        seconds = [created[name] - applied[name] for name in applied]
        return {
            "p50": median(seconds),
            "p99": quantiles(seconds, n=100, method="inclusive")[98],
            "most": max(seconds),
            "operator's CPU, milliseconds": 1000 * cpu / self._jobs,
            "rate": 60 * self._jobs / (max(created.values()) - min(applied.values())),
        }

    async def _apply(self, api: Api, applied: dict[str, float]) -> None:
        raise NotImplementedError


class SteadySubmits(Submits):
    """(c) At 300 jobs a minute."""

    name = "submits"
    figures: Sequence[Figure] = (Figure("submit-p99-seconds", 2, "p99", judged="median"),)

    async def _apply(self, api: Api, applied: dict[str, float]) -> None:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(self._jobs):
                await asyncio.sleep(max(0.0, begun + number / PER_SECOND - time.perf_counter()))
                group.create_task(_create(api, number, applied))


class SubmitsAtOnce(Submits):
    """How many jobs a minute are started when all are there."""

    name = "burst"
    figures: Sequence[Figure] = (Figure("jobs-per-minute", 300, "rate", at_least=True, judged="median"),)

    async def _apply(self, api: Api, applied: dict[str, float]) -> None:
        places = asyncio.Semaphore(APPLYING_MAX)

        async def create(number: int) -> None:
            async with places:
                await _create(api, number, applied)

        async with asyncio.TaskGroup() as group:
            for number in range(self._jobs):
                group.create_task(create(number))


async def _create(api: Api, number: int, applied: dict[str, float]) -> None:
    name = f"job-{number:04d}"
    applied[name] = time.perf_counter()
    await api.create(SINK_JOB, PLACE, sink_job(name))
