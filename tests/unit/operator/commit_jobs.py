"""A manager with real coordinators and workers over ledgers in memory; only the API server is a dictionary."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from sinkoperator import names
from sinkoperator.commits.frames import Json
from sinkoperator.commits.manager import Charge, Key, Manager
from sinkoperator.commits.nursery import Nursery
from sinkruntime.api import Lineage
from sinkruntime.driver.staging import Written
from sinkruntime.environment import Environment, SystemClock
from sinkruntime.kube import Api, Kind
from sinkruntime.ledger.change import change
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.payloads import pack, store_payloads
from sinkruntime.protocol.events import Decide, Event
from sinkruntime.protocol.ledger import Ledger, Part
from sinkruntime.spec.models import SinkJobSpec
from tests.protocol.build import decision, running
from tests.unit.operator.commit_world import Place, Stage, place, spec

KEY: Key = ("team", "flights")
FAST = {"timeout": "2s", "maxTimeout": "4s", "retry": {"initialBackoff": "10ms", "maxBackoff": "40ms"}}


class ShiftedClock(SystemClock):
    """The machine's clock, which a test can put forward."""

    shift_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_seconds


class Cluster:
    """The two requests that an opening makes."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.asked: list[tuple[str, str]] = []
        self.tokens = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        self.asked.append((kind.name, name))
        return self.objects.get((kind.name, namespace, name))

    async def token(self, namespace: str, service_account: str, *, audience: str, seconds: int) -> str:
        self.tokens += 1
        return f"token of {service_account} for {audience}"

    def put(self, kind: str, name: str, body: Json) -> None:
        self.objects[kind, KEY[0], name] = body

    def secret(self, name: str, **values: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.put("Secret", name, {"data": data})


@dataclass
class Jobs:
    """One job, whose driver the test plays."""

    place: Place
    manager: Manager
    cluster: Cluster
    held: bool = True
    key: Key = KEY
    store: MemoryLedgerStore = field(default_factory=MemoryLedgerStore)
    seen: list[Ledger] = field(default_factory=list)
    changes: int = 0
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.environment = Environment(self.clock, random.Random(3))

    # What the manager asks.
    def store_of(self, key: Key) -> MemoryLedgerStore:
        return self.store

    def holds(self, key: Key) -> bool:
        return self.held

    def observe(self, key: Key, ledger: Ledger) -> None:
        self.seen.append(ledger)

    def changed(self, key: Key) -> None:
        self.changes += 1

    # What the test does.
    def manifest(self, **options: Any) -> Json:
        return {**spec(self.place.folder, **options), "commit": FAST}

    def charge(self, manifest: Json, revision: str = "rev-1", intent: str = "rev-1/0/x", **fields: Any) -> Charge:
        """Keep the revision, and make the charge of it."""
        self.cluster.put("ControllerRevision", names.revision_name(self.key[1], revision), {"data": {"spec": manifest}})
        return Charge(SinkJobSpec.model_validate(manifest, by_alias=True, by_name=False), revision, intent, **fields)

    async def begin(self, charge: Charge, ledger: Ledger | None = None) -> None:
        await self.store.create(running(token=0) if ledger is None else ledger)
        self.manager.run(self.key, charge)
        await self.until_begun()

    async def until_begun(self) -> None:
        await self.until(lambda ledger: self.manager.begun(self.key))

    async def decide(self, number: int, values: list[str] | None = None, revision: str = "rev-1") -> None:
        data = ['{"n":0}'] if values is None else values
        items = [
            (Lineage(number, 1, index, len(data), 0), Written(1, text.encode())) for index, text in enumerate(data)
        ]
        payload = (await store_payloads(self.store, 1, {"a": pack(items)}))["a"]
        event = decision(number, 1, {"a": Part(payload, 1)})
        event = Decide(_of(event, revision), event.claimant, event.max_pending, event.commit_timeout_seconds)
        await change(self.store, partial(_once, event=event), self.environment, 5.0)

    async def ledger(self) -> Ledger:
        stored = await self.store.load()
        assert stored is not None
        return stored.ledger

    async def until(self, condition: Callable[[Ledger], bool], seconds: float = 15.0) -> Ledger:
        deadline = time.monotonic() + seconds
        while True:
            ledger = await self.ledger()
            if condition(ledger):
                return ledger
            assert time.monotonic() < deadline, f"it did not come to pass: {ledger.records}"
            await asyncio.sleep(0.01)


def _of(event: Decide, revision: str) -> Any:
    from dataclasses import replace

    return replace(event.record, revision=revision)


def _once(ledger: Ledger, event: Decide) -> Event | None:
    return None if ledger.decided >= event.record.number else event


def play(stage: Stage, tmp_path: Path, act: Callable[[Jobs], Coroutine[Any, Any, None]], **changes: Any) -> None:
    """Run a scene."""

    async def run(nursery: Nursery) -> None:
        async with place(tmp_path, nursery, **changes) as there:
            cluster = Cluster()
            made = Jobs(there, cast(Manager, None), cluster)
            made.manager = Manager(cast(Api, cluster), there.pool, made, made.environment)
            try:
                await act(made)
            finally:
                await made.manager.close(5.0)

    stage.run(run)


def settled(ledger: Ledger) -> bool:
    """Everything that was decided is committed, cleaned and gone."""
    return ledger.decided > 0 and not ledger.records
