"""How long a commit takes, and what a checkpoint costs the API server.

`operators.py` lists it. The real `Driver` decides here, with the ledger in a ConfigMap; the operator is another
process, the target (in a worker of its own) takes everything at once. Checkpoints come at a fixed pace, none before
the last one is acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from benchmarks.checkpoints import position, staged
from benchmarks.cluster import PLACE, Cluster, Writes, cluster, sink_job
from benchmarks.figures import Figure, Round
from sinkoperator import names
from sinkruntime.api import SinkIdentity
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, POD, SINK_JOB, Api, Object
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.events import TargetView
from sinkruntime.protocol.ledger import Authority
from sinkruntime.protocol.start import SourceView
from sinkruntime.sinks.console import ConsoleSink

JOB = "commits"
CHECKPOINTS = 500
TASKS = 4
PACE_SECONDS = 0.1
#: Not measured: the first commit opens a worker.
WARM_UP = 20
ACKNOWLEDGED_SECONDS = 30.0
#: At most one status write in so long a time (`sinkoperator.publish.PAUSE_SECONDS`).
STATUS_SECONDS = 5.0


class Commits:
    """(a) From the decision to its acknowledgement; (b) writes that a checkpoint costs."""

    name = "commits"
    warm_up = False
    figures: Sequence[Figure] = (
        Figure("commit-p50-milliseconds", 50, "p50", judged="median"),
        Figure("commit-p99-milliseconds", 250, "p99", judged="median"),
        Figure("writes-per-checkpoint", 3, "writes", judged="median"),
        Figure("status-writes-per-5-seconds", 1, "status", judged="median"),
    )

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._checkpoints = max(20, int(CHECKPOINTS * scale))

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        with cluster(self._folder / f"commits-{index}") as there:
            return asyncio.run(self._measure(there))

    async def _measure(self, there: Cluster) -> Round:
        async with there.api() as api:
            await api.create(SINK_JOB, PLACE, sink_job(JOB))
            pod = await _driver_pod(there, api)
            ledger = names.ledger_name(JOB)
            async with api.watch(CONFIG_MAP, PLACE, name=ledger) as watch:
                await watch.synced.wait()
                store = ConfigMapLedgerStore(api, LedgerPlace(PLACE, JOB), watch)
                deciding = Deciding(store, pod["metadata"]["labels"][names.REVISION_LABEL])
                await deciding.begin()
                await deciding.run(WARM_UP)
                before, cpu, begun = there.writes(), there.cpu_seconds(), time.perf_counter()
                latencies = await deciding.run(self._checkpoints)
                seconds = time.perf_counter() - begun
                busy = {"operator's CPU, milliseconds": 1000 * (there.cpu_seconds() - cpu) / len(latencies)}
                return _series(latencies, there.writes() - before, seconds) | busy


async def _driver_pod(there: Cluster, api: Api) -> Object:
    """The pod of epoch 1, once it runs."""
    found: list[Object] = []

    async def runs() -> bool:
        pod = await api.get(POD, PLACE, names.driver_name(JOB, 1))
        found[:] = [pod] if pod else []
        return pod is not None and (pod.get("status") or {}).get("phase") == "Running"

    await there.until("the driver's pod runs", runs)
    return found[0]


class Deciding:
    """The driver of epoch 1."""

    def __init__(self, store: LedgerStore, revision: str) -> None:
        self._environment = Environment.real()
        self._store = store
        self._driver = Driver(
            store, DriverSettings(1, "driver-1", revision, {"out": Authority.TOKEN}), self._environment
        )
        self._batches = 0
        self._sink = ConsoleSink(ConsoleSink.Options(), SinkIdentity("", "out", f"{PLACE}/{JOB}"))

    async def begin(self) -> None:
        """Claim the epoch, and wait until it may decide."""
        stored = await self._store.load()
        assert stored is not None, "its pod is there"

        async def views() -> Mapping[str, TargetView]:
            return {}

        await self._driver.claim()
        await self._driver.start(SourceView(stored.ledger.ledger_id, "", None, -1), views)

    async def run(self, checkpoints: int) -> list[float]:
        """So many checkpoints; of each the seconds until it was acknowledged. Nothing is left to do when it returns."""
        latencies = []
        begun = time.perf_counter()
        for number in range(checkpoints):
            await asyncio.sleep(max(0.0, begun + number * PACE_SECONDS - time.perf_counter()))
            latencies.append(await self._checkpoint())
        ledger = await self._driver.drained()
        if ledger.records or ledger.sinks["out"].committed != self._batches:
            raise RuntimeError(f"{self._batches} checkpoints were decided, and the ledger is {ledger}")
        return latencies

    async def _checkpoint(self) -> float:
        """From the end of staging until the driver's own store shows that nothing is pending."""
        ready = 0.0

        async def stage(assignment: Assignment) -> Staging:
            nonlocal ready
            staging = staged(self._sink, assignment, self._environment, TASKS)
            ready = time.perf_counter()
            return staging

        await self._driver.checkpoint(position(self._batches), stage)
        self._batches += 1
        async with asyncio.timeout(ACKNOWLEDGED_SECONDS):
            while (stored := await self._store.load()) is None or stored.ledger.pending:
                await self._store.wait_changed("" if stored is None else stored.version, ACKNOWLEDGED_SECONDS)
        return time.perf_counter() - ready


def _series(latencies: Sequence[float], written: Writes, seconds: float) -> dict[str, float]:
    """What was refused, Leases and events are told, and not judged."""
    return {
        "p50": 1000 * median(latencies),
        "p99": 1000 * quantiles(latencies, n=100, method="inclusive")[98],
        "most": 1000 * max(latencies),
        "writes": written["configmaps", True] / len(latencies),
        "refused": written["configmaps", False] / len(latencies),
        "status": max(0, written["sinkjobs", True] - 1) * STATUS_SECONDS / seconds,
        "Leases a second": written["leases", True] / seconds,
        "events a second": written["events", True] / seconds,
    }
