"""A cluster for the suite `operator`: a real control plane, simulated nodes, and one operator with a core of its own.

The measurements enter `cluster` once a round, so that no round finds what a former one has left. The programs are those
of `tests/servers/programs.py`. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkruntime.kube import LEASE, NAMESPACE, SINK_JOB, Api, ApiSettings, Kind, Object
from tests.kube.control_plane import ControlPlane, Program, serve
from tests.kube.crd import serve_crd
from tests.servers.programs import KUBE_SCHEDULER, KWOK, locate

PLACE = "bench"  # the one namespace: of the jobs, and of the operator's Leases
NODES = 10
PODS_PER_NODE = 110
SHARDS = 16
BEGIN_SECONDS = 90.0
END_SECONDS = 30.0
LOOK_SECONDS = 0.1
STAGES = Path(__file__).with_name("kwok.yaml")
REPOSITORY = Path(__file__).resolve().parent.parent
LOG_TAIL_CHARACTERS = 3000

NODE = Kind("v1", "nodes", "Node")

_SERIES = re.compile(rb"^apiserver_request_total\{([^}]*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})

#: (resource, whether it was done): requests that the API server has answered.
Writes = Counter[tuple[str, bool]]


def cores() -> tuple[set[int], set[int]]:
    """The operator's one core, and those of everything else; the same one where there is only one."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


OPERATOR_CORE, OTHER_CORES = cores()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs. `operator` is one process, with children of its own."""

    plane: ControlPlane
    nodes: tuple[Program, ...]  # what plays them
    operator: subprocess.Popen[bytes]
    log: Path

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """As cluster-admin."""
        async with await Api.connect(ApiSettings(kubeconfig=str(self.plane.kubeconfig))) as api:
            yield api

    def writes(self) -> Writes:
        """All that the API server has counted since it started, whoever wrote."""
        found: Writes = Counter()
        for labels, value in _SERIES.findall(self.plane.page("/metrics")):
            told = dict(_LABEL.findall(labels.decode()))
            if told["verb"] in _WRITES:
                found[told["resource"], told["code"].startswith("2")] += int(float(value))
        return found

    def cpu_seconds(self) -> float:
        """What the operator's processes have used of their core."""
        return sum(_cpu_ticks(process) for process in family(self.operator.pid)) / os.sysconf("SC_CLK_TCK")

    def trouble(self) -> str:
        """What has ended, with the last that it said; "" where all is well."""
        for program in self.nodes:
            if program.process is None or program.process.poll() is not None:
                return f"{program.name} has ended:\n{program.tail()}"
        return f"the operator has ended:\n{self.said()}" if self.operator.poll() is not None else ""

    def said(self) -> str:
        """The end of the operator's log."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    async def until(self, what: str, done: Callable[[], Awaitable[Any]], seconds: float = BEGIN_SECONDS) -> None:
        """Wait for it to be so. Raises RuntimeError, with the end of a log, where it does not come."""
        deadline = time.monotonic() + seconds
        while not await done():
            if trouble := self.trouble():
                raise RuntimeError(f"waited until {what}: {trouble}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited until {what} for {seconds:.0f} s; the operator said:\n{self.said()}")
            await asyncio.sleep(LOOK_SECONDS)


def family(process: int) -> Iterator[int]:
    """A process and its descendants, the process itself first."""
    yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def _cpu_ticks(process: int) -> int:
    """Of itself and of its children that have ended."""
    told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in told[11:15])


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A fresh one with its data below `folder`; the operator has all shards when it begins. Raises
    ProgramMissingError."""
    folder.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, OTHER_CORES)  # whatever is started from here on inherits it
    with serve(folder) as plane, ExitStack() as stack:
        asyncio.run(serve_crd(plane.kubeconfig))
        asyncio.run(_furnish(plane.kubeconfig))
        nodes = (_scheduler(plane), _kwok(plane))
        for program in nodes:
            stack.callback(program.stop)
            program.start()
        log = folder / "operator.log"
        there = Cluster(plane, nodes, stack.enter_context(_operator(plane.kubeconfig, log)), log)
        asyncio.run(_ready(there))
        yield there


def sink_job(name: str, **spec: Any) -> Object:
    """A SinkJob whose only sink is committed by the operator, and whose target takes everything at once."""
    body: Object = {
        "source": {"format": "rate"},
        "checkpoint": {"location": f"s3a://bench/checkpoints/{name}"},
        "sinks": [{"name": "out", "type": "console", "options": {"rows": 0}, "commit": {"runOn": "Operator"}}],
    }
    return {
        "apiVersion": SINK_JOB.api_version,
        "kind": SINK_JOB.name,
        "metadata": {"name": name, "namespace": PLACE},
        "spec": body | spec,
    }


@contextmanager
def _operator(kubeconfig: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """With the settings that it has by default."""
    command = [
        sys.executable, "-m", "sinkoperator", "--operator-namespace", PLACE, "--driver-image", "driver:bench",
        "--shards", str(SHARDS), "--health-port", "0", "--metrics-port", "0",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    os.sched_setaffinity(process.pid, OPERATOR_CORE)  # before it has a thread or a child, which inherit it
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)


async def _ready(there: Cluster) -> None:
    """All nodes are ready, and the operator has all shards."""
    async with there.api() as api:

        async def nodes() -> bool:
            return sum(_is_ready(node) for node in (await api.list(NODE))[0]) == NODES

        async def shards() -> bool:
            leases, _ = await api.list(LEASE, PLACE)
            held = [lease for lease in leases if (lease.get("spec") or {}).get("holderIdentity")]
            return sum("-shard-" in lease["metadata"]["name"] for lease in held) == SHARDS

        await there.until("the simulated nodes are ready", nodes)
        await there.until("the operator has its shards", shards)


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


async def _furnish(kubeconfig: Path) -> None:
    """The namespace, and nodes that nobody runs."""
    async with await Api.connect(ApiSettings(kubeconfig=str(kubeconfig))) as api:
        await api.create(NAMESPACE, "", {"metadata": {"name": PLACE}})
        room = {"cpu": "1000", "memory": "4000Gi", "pods": str(PODS_PER_NODE)}
        for number in range(NODES):
            labels = {"kubernetes.io/os": "linux"}
            body = {
                "metadata": {"name": f"node-{number}", "labels": labels},
                "status": {"capacity": room, "allocatable": room},
            }
            await api.create(NODE, "", body)


def _scheduler(plane: ControlPlane) -> Program:
    command = [str(locate(KUBE_SCHEDULER)), f"--kubeconfig={plane.kubeconfig}", "--secure-port=0"]
    return Program("kube-scheduler", [*command, "--leader-elect=false"], plane.folder / "kube-scheduler.log")


def _kwok(plane: ControlPlane) -> Program:
    """Plays the kubelets: a pod that is scheduled runs at once, one that is deleted goes."""
    command = [str(locate(KWOK)), f"--kubeconfig={plane.kubeconfig}", f"--config={STAGES}", "--manage-all-nodes"]
    return Program("kwok", [*command, "--node-ip=127.0.0.1"], plane.folder / "kwok.log")
