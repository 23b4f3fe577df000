"""A coordinator with a real ledger and small sinks whose target does what a test tells it to."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    Guarantee,
    Lineage,
    Offer,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.driver.staging import Written
from sinkruntime.environment import Environment, SystemClock
from sinkruntime.ledger.change import change
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.payloads import pack, store_payloads
from sinkruntime.protocol.events import Event
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.protocol.ledger import Authority, Ledger, Part
from tests.protocol.build import decision, running

DONE = {Answer.COMMITTED, Answer.ALREADY_COMMITTED}

#: What a test says of one call: an answer, an error to raise, or None for what the target would do by itself.
Said = Answer | Exception | None


class Target:
    """What is visible, what was called in which order, and a hook that may answer otherwise."""

    def __init__(self) -> None:
        self.visible: set[tuple[str, int, int]] = set()  # (sink, checkpoint, subtask; -1: aggregated)
        self.calls: list[tuple[str, str, int, tuple[int, ...]]] = []  # (operation, sink, checkpoint, subtasks)
        self.requests: list[CommitRequest] = []
        self.say: Callable[[str, CommitRequest], Said] = lambda operation, request: None
        self.lock = threading.Lock()

    def call(self, operation: str, sink: str, requests: Sequence[CommitRequest]) -> None:
        """One call of a committer."""
        with self.lock:
            at = requests[0].lineage.checkpoint
            self.calls.append((operation, sink, at, tuple(request.lineage.subtask for request in requests)))
        for request in requests:
            said = self.say(operation, request)
            if isinstance(said, Exception):
                raise said
            self._answer(operation, sink, request, said)

    def _answer(self, operation: str, sink: str, request: CommitRequest, said: Answer | None) -> None:
        key = (sink, request.lineage.checkpoint, request.lineage.subtask if request.lineage.attempt >= 0 else -1)
        there = key in self.visible
        if said is not None:
            request.reply(said, "Said" if said is not Answer.COMMITTED else "", "as the test says")
        elif operation == "commit":
            request.reply(Answer.ALREADY_COMMITTED if there else Answer.COMMITTED)
        else:
            missing = Answer.FENCED if operation == "fence" else Answer.ABSENT
            request.reply(Answer.ALREADY_COMMITTED if there else missing)
        if operation == "commit" and request.answer in DONE:
            self.visible.add(key)
        self.requests.append(replace(request))

    def count(self, operation: str, sink: str = "a") -> int:
        return sum(call[:2] == (operation, sink) for call in self.calls)

    def of(self, *operations: str) -> list[tuple[str, str, int, tuple[int, ...]]]:
        return [call for call in self.calls if call[0] in operations]


class _Tier:
    def __init__(self, target: Target, name: str) -> None:
        self.target, self.name = target, name

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self.target.call("commit", self.name, requests)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        self.target.call("probe", self.name, requests)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        self.target.call("fence", self.name, requests)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        self.target.call("abort", self.name, requests)

    def note(self, operation: str, number: int) -> None:
        with self.target.lock:
            self.target.calls.append((operation, self.name, number, ()))

    def recover(self, garbage: Garbage) -> None:
        self.note("recover", garbage.epoch)

    def clean(self, checkpoint: int, epoch: int) -> None:
        self.note("clean", checkpoint)

    def close(self) -> None:
        self.note("close", 0)


class Committer(_Tier, SinkCommitter):
    """The tier per writer."""


class Aggregated(_Tier, SinkAggregatedCommitter):
    """The global tier; in the target's words its sink is called `<sink>+`."""

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        return [value for _, value in committables]


class Nothing(BaseModel):
    """No options."""


class TestSink(Sink):
    """A sink of the given tiers."""

    __test__ = False
    Options = Nothing
    summary = "for the coordinator's tests"

    def __init__(self, name: str, target: Target, tiers: str = "committer") -> None:
        super().__init__(Nothing(), SinkIdentity("ledger-1", name, "team/flights"))
        self.target, self.tiers = target, tiers
        self.hook: Callable[[int], None] = lambda checkpoint: None

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.EXACTLY_ONCE, "")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError

    def create_committer(self) -> SinkCommitter | None:
        return Committer(self.target, self.identity.sink) if self.tiers in ("committer", "both") else None

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        named = f"{self.identity.sink}+"
        return Aggregated(self.target, named) if self.tiers in ("aggregated", "both") else None

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Committable]]) -> None:
        self.target.calls.append(("post_commit", self.identity.sink, checkpoint, ()))
        self.hook(checkpoint)


FAST = CommitSettings(timeout_seconds=5.0, backoff_first_seconds=0.001, backoff_max_seconds=0.004, chunk_size=64)


@dataclass
class World:
    """One job: its ledger, its sinks, and coordinators that come and go."""

    tiers: Mapping[str, str] = field(default_factory=lambda: {"a": "committer"})
    settings: CommitSettings = FAST
    store: MemoryLedgerStore = field(default_factory=MemoryLedgerStore)
    target: Target = field(default_factory=Target)
    metrics: Metrics = field(default_factory=Metrics)
    authority: Authority = Authority.TOKEN
    older_gone: bool = True
    services: dict[str, Any] = field(default_factory=dict)
    sinks: dict[str, TestSink] = field(default_factory=dict)
    tenures: int = 0

    def __post_init__(self) -> None:
        self.sinks = {name: TestSink(name, self.target, tiers) for name, tiers in self.tiers.items()}
        self.environment = Environment(SystemClock(), random.Random(3))

    async def begin(self, ledger: Ledger | None = None) -> None:
        await self.store.create(running(token=0) if ledger is None else ledger)

    def coordinator(self, wishes: Wishes | None = None) -> Coordinator:
        """A new tenure."""
        self.tenures += 1
        in_driver = frozenset(self.sinks) if self.authority is Authority.EPOCH else frozenset[str]()
        services = Services(
            self.store,
            self.environment,
            ThreadRunner(),
            self.metrics,
            lambda revision: self.sinks,
            "rev-1",
            in_driver,
            lambda epoch: self.older_gone,
            wishes=wishes or Wishes(),
        )
        tenure = Tenure(self.authority, f"coordinator-{self.tenures}", 1)
        return Coordinator(replace(services, **self.services), self.settings, tenure)

    @asynccontextmanager
    async def working(self, wishes: Wishes | None = None) -> AsyncIterator[Coordinator]:
        """A coordinator that works, its token raised; stopped in an orderly way at the end."""
        coordinator = self.coordinator(wishes)
        task = asyncio.create_task(coordinator.run())
        await self.until(lambda ledger: self.authority is Authority.EPOCH or ledger.token >= self.tenures)
        yield coordinator
        coordinator.stop()
        await asyncio.wait_for(task, 10.0)

    async def ledger(self) -> Ledger:
        present = await self.store.load()
        assert present is not None
        return present.ledger

    async def until(self, predicate: Callable[[Ledger], bool]) -> Ledger:
        """Wait for the ledger to be so."""
        for _ in range(2000):
            ledger = await self.ledger()
            if predicate(ledger):
                return ledger
            await asyncio.sleep(0.002)
        raise AssertionError(f"it did not come to pass: {ledger}")

    async def happen(self, make: Callable[[Ledger], Event | None]) -> Ledger:
        return (await change(self.store, make, self.environment, 5.0)).ledger

    async def decide(self, number: int, subtasks: int = 1, large: bool = False, epoch: int = 1) -> None:
        """Decide a checkpoint with so many committables per sink."""
        parts: dict[str, Part] = {}
        for sink in self.sinks:
            filler = random.Random(number).randbytes(70_000 if large else 0)
            data = b'{"n":"%s"}' % filler.hex().encode()
            items = [(Lineage(number, epoch, index, subtasks, 0), Written(1, data)) for index in range(subtasks)]
            payload = (await store_payloads(self.store, epoch, {sink: pack(items)}))[sink] if items else None
            parts[sink] = Part(payload, subtasks, authority=self.authority)
        await self.happen(partial(_decided, event=decision(number, epoch, parts)))


def _decided(ledger: Ledger, event: Any) -> Event | None:
    return None if ledger.decided >= event.record.number else event


def settled(ledger: Ledger) -> bool:
    """Everything that was decided is committed, cleaned and gone."""
    return ledger.decided > 0 and not ledger.records


def play(scene: Callable[[World], Coroutine[Any, Any, None]], **fields: Any) -> World:
    """Run a scene in a new world."""
    world = World(**fields)
    asyncio.run(scene(world))
    return world
