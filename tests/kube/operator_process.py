"""Operators as processes of their own, and a driver that the test plays: it claims, stages on S3, and decides."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sinkoperator import names
from sinkruntime.api import SinkIdentity
from sinkruntime.environment import Environment
from sinkruntime.kube import POD, SECRET, SINK_JOB, Api, Object
from sinkruntime.ledger.change import change
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.payloads import pack, store_payloads
from sinkruntime.protocol.events import ClaimEpoch, Decide, Event
from sinkruntime.protocol.ledger import Authority, Ledger, Part
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from tests.kube.operator_world import Kubelet, manifest
from tests.kube.test_commits import staged
from tests.protocol.build import decision
from tests.servers.s3 import S3Server
from tests.sinks.harness import Row

LEASE_SECONDS = 6.0
FAILOVER_SECONDS = LEASE_SECONDS + 5.0
WAIT_SECONDS = 60.0
END_SECONDS = 30.0
HERE = Path(__file__).resolve().parents[2]


@dataclass
class Process:
    """One operator."""

    command: list[str]
    environ: dict[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin anew; the log goes on."""
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(
                self.command, env=self.environ, cwd=HERE, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def kill(self) -> None:
        """SIGKILL, as the kernel does it."""
        assert self.running is not None
        self.running.kill()
        self.running.wait(END_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Any other."""
        assert self.running is not None
        self.running.send_signal(number)

    def ends(self) -> int:
        """Wait for the exit code."""
        assert self.running is not None
        return self.running.wait(END_SECONDS)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.running is not None and self.running.poll() is None

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")


@contextmanager
def operator(
    kubeconfig: Path, namespace: str, log: Path, *more: str, module: str = "sinkoperator", **environ: str
) -> Iterator[Process]:
    """An operator for one namespace, which is killed at the end if it still lives."""
    command = [
        sys.executable, "-m", module, "--namespace", namespace, "--operator-namespace", namespace,
        "--driver-image", "driver:test", "--lease", f"{LEASE_SECONDS:.0f}s", "--renew", "1s", "--shutdown", "20s",
        "--health-port", "0", "--metrics-port", "0", "--log-format", "text",
        "--egress-allow", "127.0.0.0/8", *more,
    ]  # fmt: skip
    path = os.pathsep.join([str(HERE), str(HERE / "operator"), os.environ.get("PYTHONPATH", "")])
    made = Process(command, {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": path, **environ}, log)
    made.start()
    try:
        yield made
    finally:
        if made.lives:
            made.kill()


@dataclass
class Job:
    """A job whose target is a bucket, with the driver that the test plays."""

    api: Api
    namespace: str
    server: S3Server
    bucket: str
    name: str = "one"
    environment: Environment = field(default_factory=Environment.real)

    @property
    def store(self) -> ConfigMapLedgerStore:
        """The ledger, always read from the server."""
        return ConfigMapLedgerStore(self.api, LedgerPlace(self.namespace, self.name))

    @property
    def _options(self) -> dict[str, Any]:
        storage = {"endpoint": self.server.endpoint, "region": self.server.region, "pathStyle": True}
        return {"path": f"s3://{self.bucket}/lake", "storage": storage}

    async def apply(self, **spec: Any) -> None:
        """The Secret and the SinkJob."""
        keys = {"storage.accessKey": self.server.access_key, "storage.secretKey": self.server.secret_key}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
        secret = f"{self.name}-keys"
        await self.api.create(SECRET, self.namespace, {"metadata": {"name": secret}, "data": data})
        sink = {
            "name": "lake", "type": "file", "options": self._options,
            "optionsFrom": [{"secretRef": {"name": secret}}],
        }  # fmt: skip
        retry = {"retry": {"initialBackoff": "50ms", "maxBackoff": "200ms"}}
        body = manifest(self.name, sinks=[sink], commit=retry, **spec)
        await self.api.create(SINK_JOB, self.namespace, body)

    async def sink(self) -> FileSink:
        """The sink as the driver has it."""
        storage = self._options["storage"]
        keys = {"accessKey": self.server.access_key, "secretKey": self.server.secret_key}
        options = Options.model_validate({**self._options, "storage": storage | keys})
        ledger = await self.ledger()
        return FileSink(options, SinkIdentity(ledger.ledger_id, "lake", f"{self.namespace}/{self.name}"))

    async def ledger(self) -> Ledger:
        """As it is now; there must be one."""
        stored = await self.store.load()
        assert stored is not None
        return stored.ledger

    async def body(self) -> Object:
        """The SinkJob."""
        found = await self.api.get(SINK_JOB, self.namespace, self.name)
        assert found is not None
        return found

    async def status(self) -> dict[str, Any]:
        """Of the SinkJob."""
        status: dict[str, Any] = (await self.body()).get("status") or {}
        return status

    async def runs(self, epoch: int) -> Kubelet:
        """Wait for the driver of this epoch, let it run, claim, and wait until it may decide."""

        async def there() -> bool:
            name = names.driver_name(self.name, epoch)
            return await self.api.get(POD, self.namespace, name) is not None

        await until(there)
        kubelet = Kubelet(self.api, self.namespace, names.driver_name(self.name, epoch))
        await kubelet.runs()
        claimant = f"driver-{epoch}"
        claim = ClaimEpoch(epoch, claimant)
        await change(
            self.store, lambda ledger: None if ledger.claim == claimant else claim, self.environment, WAIT_SECONDS
        )

        async def recovered() -> bool:
            return (await self.ledger()).recovered.get(Authority.TOKEN, 0) >= epoch

        await until(recovered)
        return kubelet

    async def decide(self, number: int, *tasks: Sequence[Row]) -> None:
        """Stage these rows and decide them, as the driver of the ledger's epoch."""
        items = await asyncio.to_thread(staged, await self.sink(), number, *tasks)
        ledger, store = await self.ledger(), self.store
        payload = (await store_payloads(store, ledger.epoch, {"lake": pack(items)}))["lake"]
        revision = (await self._pod(ledger.epoch))["metadata"]["labels"][names.REVISION_LABEL]
        made = decision(number, ledger.epoch, {"lake": Part(payload, sum(len(task) for task in tasks))})
        now = int(self.environment.clock.wall() * 1000)
        event = replace(made, record=replace(made.record, revision=revision, decided_ms=now))
        await change(store, partial(_once, event=event), self.environment, WAIT_SECONDS)

    async def _pod(self, epoch: int) -> Object:
        found = await self.api.get(POD, self.namespace, names.driver_name(self.name, epoch))
        assert found is not None
        return found

    async def settled(self, number: int) -> None:
        """Wait until everything up to this checkpoint is committed and cleaned."""

        async def done() -> bool:
            ledger = await self.ledger()
            return ledger.decided >= number and not ledger.records

        await until(done)


def _once(ledger: Ledger, event: Decide) -> Event | None:
    return None if ledger.decided >= event.record.number else event


async def until(done: Callable[[], Awaitable[Any]], seconds: float = WAIT_SECONDS) -> float:
    """Wait for it to be so; how long that took."""
    began = time.monotonic()
    while not await done():
        assert time.monotonic() < began + seconds, "it did not come to pass"
        await asyncio.sleep(0.05)
    return time.monotonic() - began
