"""How long the commit of a checkpoint takes whose 32 writers have each prepared a transaction in PostgreSQL.

The suite `transactional` runs it. Real driver, coordinators, file ledger and `jdbc` sink (`mode: xa`), without Spark:
writers of ten rows each prepare one after the other. Then the checkpoint is decided, and the time is taken until the
ledger says that it is committed: 32 COMMIT PREPARED, the row of evidence, and the ledger's two writes. The server
flushes its log to disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import quantiles

from benchmarks.checkpoints import ROWS, SCHEMA, local_coordinators, position, staged
from benchmarks.figures import Figure, Round
from benchmarks.jobs import Bench
from benchmarks.transactional_jdbc import DATABASE, start_server
from sinkruntime.api import SinkIdentity
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.driver.staging import Assignment, Staging
from sinkruntime.environment import Environment
from sinkruntime.ledger.change import change
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.protocol.events import RaiseEpoch, TargetView
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.protocol.start import SourceView
from sinkruntime.sinks.jdbc import JdbcSink

CHECKPOINTS = 200
WRITERS = 32
#: Not measured: the first commit opens the committers' connections.
WARM_UP = 5
LEDGER_SECONDS = 10.0
COMMITTED_SECONDS = 60.0


class XaCommits:
    """(a) From the decision to the ledger's word that all 32 are committed."""

    name = "xa-commits"
    warm_up = False
    figures: Sequence[Figure] = (Figure("xa-commit-p99-milliseconds", 250, "p99", judged="median"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        self._server = start_server(stack)
        self._folder = folder
        self._checkpoints = max(20, int(CHECKPOINTS * scale))

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {}

    def use(self, bench: Bench) -> None:
        """Spark is not used."""

    def prepare(self) -> None:
        """See `Measurement`."""

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        with closing(self._server.connect(DATABASE)) as connection:
            connection.execute("DROP TABLE IF EXISTS t")
            connection.execute("CREATE TABLE t (id bigint, name text)")
            connection.execute("CHECKPOINT")
            seconds = asyncio.run(self._measure(self._folder / f"xa-commits-{index}", index))
            found = connection.execute("SELECT count(*) FROM t").fetchone()
        if found != ((self._checkpoints + WARM_UP) * WRITERS * ROWS,):
            raise RuntimeError(f"the table has {found} rows")
        cuts = quantiles(seconds, n=100, method="inclusive")
        return {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}

    async def _measure(self, folder: Path, index: int) -> list[float]:
        identity = SinkIdentity(f"00000000-0000-4000-8000-{index:012d}", "out", "default/bench")
        options = {"url": self._server.url(DATABASE), "table": "t", "mode": "xa"}
        sink = JdbcSink(JdbcSink.Options.model_validate(options), identity)
        sink.prepare_target(SCHEMA)
        environment, store = Environment.real(), FileLedgerStore(folder)
        await store.create(Ledger(identity.ledger_id, identity.job))
        await change(store, lambda ledger: None if ledger.epoch else RaiseEpoch(1), environment, LEDGER_SECONDS)
        working = local_coordinators(store, sink, environment, in_driver=False)
        running = [asyncio.create_task(coordinator.run()) for coordinator in working]
        seconds = await _decide(store, sink, environment, WARM_UP + self._checkpoints)
        for coordinator in working:
            coordinator.stop()
        await asyncio.gather(*running)
        return seconds[WARM_UP:]


async def _decide(store: FileLedgerStore, sink: JdbcSink, environment: Environment, checkpoints: int) -> list[float]:
    """So many checkpoints, one after the other; of each the seconds from the end of its staging to its commit."""
    ready = 0.0

    async def views() -> dict[str, TargetView]:
        return {}

    async def stage(assignment: Assignment) -> Staging:
        nonlocal ready
        staging = await asyncio.to_thread(staged, sink, assignment, environment, WRITERS)
        ready = time.perf_counter()
        return staging

    driver = Driver(store, DriverSettings(1, "bench", "r1", {"out": Authority.TOKEN}), environment)
    await driver.claim()
    await driver.start(SourceView(sink.identity.ledger_id, "", None, -1), views)
    seconds = []
    for batch in range(checkpoints):
        await driver.checkpoint(position(batch), stage)
        async with asyncio.timeout(COMMITTED_SECONDS):
            while (stored := await store.load()) is None or stored.ledger.pending:
                await store.wait_changed("" if stored is None else stored.version, COMMITTED_SECONDS)
        seconds.append(time.perf_counter() - ready)
        await driver.drained()  # what is cleaned up afterwards does not meet the next one's writers
    return seconds
