"""A job, an operator that looks at it when it is told to, and the test that plays kubelet and driver.

Everything is real but the pods: there are no nodes, so the test writes what a kubelet would write into a pod's status,
and claims and decides as a driver would, with the driver's own code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkoperator import names
from sinkoperator.actions import BeginAbort, Decision, RunCoordinator
from sinkoperator.assembly import Outside, assemble
from sinkoperator.observed import CoordinatorFacts, Observed, PlanSettings
from sinkoperator.reconcile import Reconciler
from sinkoperator.world import Key, World
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, POD, SINK_JOB, Api, Object
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.protocol.ledger import Ledger

WAIT_SECONDS = 20.0
SETTINGS = PlanSettings(driver_image="driver:test")


def manifest(name: str = "one", **spec: Any) -> Object:
    """A SinkJob that is valid, and asks for nothing that a test would have to start."""
    body: Object = {
        "source": {"format": "rate"},
        "checkpoint": {"location": "s3a://bucket/checkpoints/one"},
        "sinks": [{"name": "lake", "type": "file", "options": {"path": "s3a://bucket/out", "format": "parquet"}}],
        "restartPolicy": {"backoff": {"initial": "1s", "max": "2s"}},
    }
    return {
        "apiVersion": "sinkjob.io/v1alpha1",
        "kind": "SinkJob",
        "metadata": {"name": name},
        "spec": body | spec,
    }


@dataclass
class Told:
    """Events and coordinators, as the looks asked for them."""

    events: list[str] = field(default_factory=list)
    running: dict[Key, RunCoordinator] = field(default_factory=dict)
    aborts: list[int] = field(default_factory=list)

    def post(self, job: Object, reason: str, message: str, *, warning: bool) -> None:
        """See `apply.Events`."""
        self.events.append(reason)

    def looked(self, key: Key, observed: Observed, decision: Decision) -> None:
        """See `reconcile.Watcher`."""

    def forget(self, key: Key) -> None:
        """See `reconcile.Watcher`."""

    def facts(self, key: Key) -> CoordinatorFacts:
        """See `assembly.Coordinators`."""
        action = self.running.get(key)
        return CoordinatorFacts(action is not None, action.intent if action is not None else "")

    async def run(self, key: Key, observed: Observed, action: RunCoordinator) -> None:
        """See `assembly.Coordinators`."""
        self.running[key] = action

    async def stop(self, key: Key) -> None:
        """See `assembly.Coordinators`."""
        self.running.pop(key, None)

    async def abort(self, key: Key, observed: Observed, action: BeginAbort) -> None:
        """See `assembly.Coordinators`."""
        self.aborts.append(action.first)


class Looker:
    """An operator of one namespace that looks when `look` is called; an async context manager."""

    def __init__(self, api: Api, namespace: str, settings: PlanSettings = SETTINGS) -> None:
        self.api = api
        self.namespace = namespace
        self.told = Told()
        self.hinted: set[Key] = set()
        self.begins: Callable[[Key], bool] = lambda key: True
        self.world = World(api, [namespace], lambda key, component: self.hinted.add(key))
        environment = Environment.real()
        outside = Outside(api, self.world, environment, self.told, self.told, self._begins)
        self.reconciler: Reconciler = assemble(outside, settings)

    def _begins(self, key: Key) -> bool:
        return self.begins(key)

    async def __aenter__(self) -> Looker:
        await self.world.__aenter__()
        await self.world.relist()
        await self.world.synced()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.world.__aexit__(None, None, None)

    async def look(self, name: str = "one", times: int = 1) -> float | None:
        """Look so often; the hints come as fast as the watches are."""
        again: float | None = None
        for _ in range(times):
            await self.world.relist()
            again = await self.reconciler.reconcile((self.namespace, name))
        return again

    async def settle(self, done: Callable[[], Any], name: str = "one") -> Any:
        """Look again and again until it is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := await done()):
            assert time.monotonic() < deadline, f"never came: {await self.status(name)}"
            await self.look(name)
            await asyncio.sleep(0.02)
        return found

    async def status(self, name: str = "one") -> dict[str, Any]:
        """The SinkJob's status."""
        body = await self.api.get(SINK_JOB, self.namespace, name)
        return {} if body is None else body.get("status") or {}

    async def condition(self, kind: str, name: str = "one") -> dict[str, Any]:
        """A condition of the status."""
        conditions: Sequence[dict[str, Any]] = (await self.status(name)).get("conditions") or []
        return next((found for found in conditions if found["type"] == kind), {})

    def store(self, name: str = "one") -> ConfigMapLedgerStore:
        """The job's ledger."""
        return ConfigMapLedgerStore(self.api, LedgerPlace(self.namespace, name))

    async def ledger(self, name: str = "one") -> Ledger | None:
        """The ledger as it is now."""
        stored = await self.store(name).load()
        return None if stored is None else stored.ledger

    async def pods(self, name: str = "one") -> list[Object]:
        """All pods of the job."""
        return (await self.api.list(POD, self.namespace, labels=names.selector(name)))[0]

    async def driver(self, epoch: int, name: str = "one") -> Object | None:
        """The driver's pod of an epoch."""
        return await self.api.get(POD, self.namespace, names.driver_name(name, epoch))

    async def config_maps(self, name: str = "one") -> list[str]:
        """The names of all ConfigMaps of the job."""
        found, _ = await self.api.list(CONFIG_MAP, self.namespace, labels=names.selector(name))
        return [body["metadata"]["name"] for body in found]


class Kubelet:
    """What a kubelet writes into the status of a driver's pod."""

    def __init__(self, api: Api, namespace: str, pod: str) -> None:
        self._api = api
        self._place = (POD, namespace, pod)

    async def runs(self) -> None:
        """Its container runs and is ready."""
        state = {"running": {"startedAt": now()}}
        await self._write({"phase": "Running", "containerStatuses": [container(state, ready=True)]})

    async def ends(self, exit_code: int, reason: str = "", message: str = "") -> None:
        """Its container has ended."""
        ended = {"exitCode": exit_code, "finishedAt": now(), "startedAt": now(), "message": message}
        state = {"terminated": ended | {"reason": reason or ("Error" if exit_code else "Completed")}}
        phase = "Failed" if exit_code else "Succeeded"
        await self._write({"phase": phase, "containerStatuses": [container(state)]})

    async def evicted(self) -> None:
        """The node had no more room for it."""
        await self._write({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"})

    async def _write(self, status: Object) -> None:
        await self._api.patch(*self._place, {"status": status}, subresource="status")


def container(state: Object, *, ready: bool = False) -> Object:
    """The status of the driver's container."""
    return {
        "name": "driver", "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": state,
        "started": ready,
    }  # fmt: skip


def now() -> str:
    """The time as a kubelet writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
