"""Real worker processes for tests: a nursery that has the sink of `commit_test_sinks` installed, and a pool over it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sinkoperator.commits.egress import Egress
from sinkoperator.commits.frames import Json
from sinkoperator.commits.nursery import Nursery
from sinkoperator.commits.pool import Pool
from sinkoperator.commits.process import Owner, Worker
from sinkoperator.commits.settings import MEBIBYTE, WorkerSettings
from sinkruntime.environment import SystemClock

HERE = Path(__file__).parent
NO_IDENTITY: Json = {"files": {}, "environment": {}, "renew_seconds": 0}
SETTINGS = WorkerSettings(memory_bytes=256 * MEBIBYTE, pass_environment=("PYTHONPATH",))


def install(folder: Path) -> str:
    """The test's sink as a package that offers the type `unruly`; returns the PYTHONPATH that has it."""
    info = folder / "commit_test_sinks-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: commit-test-sinks\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sinkjob.sinks]\nunruly = commit_test_sinks:SINK\n")
    return f"{folder}{os.pathsep}{HERE}"


def spec(folder: Path, **options: Any) -> Json:
    """A manifest's spec with one sink, `a`, of the test's type."""
    sink = {"name": "a", "type": "unruly", "options": {"folder": str(folder), **options}}
    return {"source": {"format": "rate"}, "sinks": [sink]}


def opening(spec: Json, sink: str = "a", **fields: Any) -> Json:
    """What a worker is given; everything may be reached unless told otherwise."""
    manifest = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "flights"}, "spec": spec}
    given: Json = {
        "manifest": manifest, "sink": sink, "ledger_id": "ledger-1", "secrets": {}, "configMaps": {},
        "identity": NO_IDENTITY, "egress": Egress().texts(),
    }  # fmt: skip
    return given | fields


def requests(checkpoint: int = 1, subtask: int = 0, value: str = '{"n":0}') -> list[Json]:
    """One request, as it travels."""
    import base64

    data = base64.b64encode(value.encode()).decode()
    return [
        {"committable": [1, data], "lineage": [checkpoint, 1, subtask, 1, 0], "previous": 0, "retries": 0,
         "may_have_landed": False, "order": [1, 1]}
    ]  # fmt: skip


@dataclass
class Place:
    """A folder that is the target, and workers that commit to it."""

    folder: Path
    nursery: Nursery
    pool: Pool
    jobs: int = 0

    async def open(
        self, opened: Json | None = None, namespace: str = "team", job: str = "", seconds: float = 20.0
    ) -> Worker:
        """An opened worker, of a job of its own unless it is named."""
        self.jobs += 1

        async def resolve() -> Json:
            return opened or opening(spec(self.folder))

        return await self.pool.open(Owner(namespace, job or f"job-{self.jobs}", "rev-1", "a"), resolve, seconds)

    def behave(self, operation: str, how: str) -> None:
        """From now on this call of the sink does so."""
        (self.folder / f"{operation}.behaviour").write_text(how)

    def calls(self, operation: str) -> list[list[str]]:
        """The calls of a committer so far: tier, checkpoint, process."""
        file = self.folder / "calls"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [line[1:] for line in lines if line[0] == operation]

    def committed(self) -> list[str]:
        """What is visible in the target."""
        return sorted(
            file.name for file in self.folder.iterdir() if file.name.startswith(("committer-", "aggregated-"))
        )


@asynccontextmanager
async def place(tmp_path: Path, nursery: Nursery | None = None, **changes: Any) -> AsyncIterator[Place]:
    """Workers for the time of a test; from a clean parent of its own unless one is given."""
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    settings = replace(SETTINGS, **changes)
    own = nursery or await start(tmp_path, os.environ)
    pool = Pool(own, settings, SystemClock())
    try:
        yield Place(target, own, pool)
    finally:
        await pool.stop()
        if own is not nursery:
            await own.stop()


async def start(folder: Path, environ: Mapping[str, str]) -> Nursery:
    """A clean parent with the test's sink installed."""
    nursery = Nursery(SETTINGS, {**environ, "PYTHONPATH": install(folder / "installed")})
    await nursery.start()
    return nursery


class Stage:
    """A loop and a clean parent that the tests of a session share: starting one takes most of a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = asyncio.Runner()
        self._nursery: Nursery | None = None

    def play(self, tmp_path: Path, act: Callable[[Place], Coroutine[Any, Any, None]], **changes: Any) -> None:
        """Run a scene."""
        self.run(lambda nursery: _in_place(tmp_path, nursery, act, changes))

    def run(self, scene: Callable[[Nursery], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine that is given the parent."""
        if self._nursery is None:
            self._nursery = self._runner.run(start(self._folder, os.environ))
        self._runner.run(scene(self._nursery))

    def close(self) -> None:
        """End the parent."""
        if self._nursery is not None:
            self._runner.run(self._nursery.stop())
        self._runner.close()


async def _in_place(
    tmp_path: Path, nursery: Nursery, act: Callable[[Place], Coroutine[Any, Any, None]], changes: Mapping[str, Any]
) -> None:
    async with place(tmp_path, nursery, **changes) as there:
        await act(there)


def lives(process: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for it to be so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)
