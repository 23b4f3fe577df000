"""Several replicas, one API server and a bad network between them, in virtual time.

`test_leases` makes one world per test. The replicas run the real `Leases`; the server keeps resourceVersions as the
real one does. `World.judge` is called all the time: no shard may be held by two, whatever goes wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sinkoperator.leases import Leases
from sinkoperator.membership import LeaseSettings
from sinkruntime.environment import Environment
from sinkruntime.kube import AlreadyExists, Conflict, Forbidden, Kind, NotFound, Object, Unanswered, Unavailable
from tests.simulation.loop import Process, SimLoop

T = TypeVar("T")
NAMESPACE = "operators"
STEPS_MAX = 2_000_000
LEASE_SECONDS = 15.0
#: The worst case that is promised: the lease duration, and 5 s.
TAKEOVER_SECONDS = LEASE_SECONDS + 5.0
#: How often the world is judged.
JUDGE_SECONDS = 0.05


class Server:
    """The Leases of one namespace, with the rules of resourceVersion."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 0
        self.forbidden: set[str] = set()
        self.reads = self.writes = 0
        self.watches: list[Callable[[str, Object], None]] = []

    def _stored(self, name: str, body: Object) -> Object:
        self.version += 1
        self.writes += 1
        body["metadata"] |= {"name": name, "resourceVersion": str(self.version)}
        event = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = body
        self._show(event, body)
        return _copy(body)

    def _show(self, event: str, body: Object) -> None:
        for watch in self.watches:
            watch(event, _copy(body))

    def allow(self, verb: str) -> None:
        """Raises where it is forbidden."""
        if verb in self.forbidden:
            raise Forbidden(f"cannot {verb} leases")

    def list(self) -> tuple[list[Object], str]:
        """See `Api`."""
        self.allow("list")
        self.reads += 1
        return [_copy(body) for body in self.objects.values()], str(self.version)

    def create(self, body: Object) -> Object:
        """See `Api`."""
        self.allow("create")
        name = body["metadata"]["name"]
        if name in self.objects:
            raise AlreadyExists(name)
        body = _copy(body)
        body["metadata"]["uid"] = f"uid-{self.version}"
        return self._stored(name, body)

    def patch(self, name: str, change: Object) -> Object:
        """See `Api`; an object that stays as it is gets no new resourceVersion."""
        self.allow("patch")
        if name not in self.objects:
            raise NotFound(name)
        body = _copy(self.objects[name])
        expected = (change.get("metadata") or {}).get("resourceVersion")
        if expected not in (None, body["metadata"]["resourceVersion"]):
            raise Conflict(name)
        for key, value in (change.get("spec") or {}).items():
            if value is None:
                body.setdefault("spec", {}).pop(key, None)
            else:
                body.setdefault("spec", {})[key] = value
        return body if body == self.objects[name] else self._stored(name, body)

    def delete(self, name: str, uid: str) -> bool:
        """See `Api`."""
        self.allow("delete")
        if name not in self.objects or uid not in ("", self.objects[name]["metadata"]["uid"]):
            return False
        self.version += 1
        self._show("DELETED", self.objects.pop(name))
        return True

    def holder(self, shard: int) -> str:
        """Whom the Lease names."""
        body = self.objects.get(f"sinkjob-shard-{shard}") or {}
        return str((body.get("spec") or {}).get("holderIdentity") or "")


def _copy(body: Object) -> Object:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in body.items()}


@dataclass(slots=True)
class Line:
    """One replica's connection: seconds there and back, and what goes wrong."""

    latency_max_seconds: float = 0.05
    back_seconds: float = 0.0  # more, for the answer only
    lost_requests: float = 0.0  # probabilities
    lost_answers: float = 0.0
    refused: float = 0.0
    cut: bool = False
    answers_cut: bool = False
    watch_cut: bool = False  # it shows nothing any more, and nobody notices
    watch_seconds: float = 0.0  # how much later it shows things


class Connection:
    """`LeaseApi`, over a bad line."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.line = Line()

    async def list(self, kind: Kind, namespace: str = "") -> tuple[list[Object], str]:
        assert (kind.name, namespace) == ("Lease", NAMESPACE)
        return await self._call(self._replica.world.server.list)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        return await self._call(lambda: self._replica.world.server.create(body))

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        def apply() -> Object:
            if (body.get("spec") or {}).get("holderIdentity", "") is None:
                self._replica.gives_back(name)
            return self._replica.world.server.patch(name, body)

        return await self._call(apply)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> bool:
        return await self._call(lambda: self._replica.world.server.delete(name, uid))

    async def allowed(self, verb: str, kind: Kind, namespace: str = "") -> bool:
        return verb not in self._replica.world.server.forbidden

    async def _call(self, apply: Callable[[], T]) -> T:
        world, line, dice = self._replica.world, self.line, self._replica.world.rng
        if dice.random() < line.refused:
            raise Unavailable("connection refused")
        answer: asyncio.Future[T] = world.loop.create_future()
        there, back = (dice.random() * line.latency_max_seconds for _ in range(2))

        def arrive() -> None:
            result: T | None = None
            error: Exception | None = None
            try:
                result = apply()
            except Exception as caught:  # noqa: BLE001  (the server's answer)
                error = caught
            if line.answers_cut or line.cut:
                return
            if dice.random() < line.lost_answers:
                result, error = None, Unanswered("connection reset")
            world.loop.nature(back + line.back_seconds, tell, result, error)

        def tell(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        if not line.cut and dice.random() >= line.lost_requests:
            world.loop.nature(there, arrive)
        return await answer

    def watch(self) -> asyncio.Queue[tuple[str, Object]]:
        """What changes from now on, in order, as far as the line lets it through."""
        world, line, shown = self._replica.world, self.line, asyncio.Queue[tuple[str, Object]]()
        dice = random.Random(self._replica.process.name)  # its own: requests go as they went without a watch
        last = 0.0

        def show(event: str, body: Object) -> None:
            nonlocal last
            if line.cut or line.answers_cut or line.watch_cut:
                return
            now = world.loop.time()
            last = max(last, now + line.watch_seconds + dice.random() * line.latency_max_seconds)
            world.loop.nature(last - now, shown.put_nowait, (event, body))

        world.server.watches.append(show)
        return shown


@dataclass
class Clock:
    """A process's own clock: another beginning, another speed; the wall clock is wrong on top."""

    loop: SimLoop
    speed: float = 1.0
    offset_seconds: float = 0.0
    wall_offset_seconds: float = 0.0
    stopped: bool = False  # the wall clock only

    def monotonic(self) -> float:
        return self.offset_seconds + self.loop.time() * self.speed

    def wall(self) -> float:
        return 1_800_000_000.0 + self.wall_offset_seconds + (0.0 if self.stopped else self.loop.time())


@dataclass
class Worker:
    """Works on what it is given, and takes its time to stop."""

    replica: Replica
    stop_seconds: float = 0.0
    fails_to_stop: bool = False
    clings_seconds: float = 0.0  # how long it goes on after it was cancelled
    active: set[int] = field(default_factory=set)
    story: list[tuple[float, str, Any]] = field(default_factory=list)

    def _tell(self, what: str, of: Any) -> None:
        self.story.append((self.replica.world.loop.time(), what, of))

    def taken(self, shard: int) -> None:
        if shard in self.active or not self.replica.leases.holds(shard):
            self.replica.world.broken.append(f"{self.replica.name} is told that it has taken shard {shard}")
        self.active.add(shard)
        self._tell("taken", shard)

    async def stop(self, shard: int) -> None:
        self._tell("stop", shard)
        try:
            await asyncio.sleep(self.stop_seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(self.clings_seconds)
            raise
        if self.fails_to_stop:
            raise RuntimeError("it does not stop")
        self.active.discard(shard)
        self._tell("stopped", shard)

    def lost(self, shards: frozenset[int]) -> None:
        assert shards
        self.active -= shards
        self._tell("lost", shards)


class Replica:
    """One process with its own clock and line."""

    def __init__(self, world: World, name: str, instance: str, **settings: Any) -> None:
        self.world = world
        self.name = name
        self.process = Process(f"{name}-{len(world.replicas)}", "operator")
        self.clock = Clock(world.loop)
        self.connection = Connection(self)
        self.worker = Worker(self)
        given = {"shards": world.shards} | settings
        self.settings = LeaseSettings(NAMESPACE, name, instance, **given)
        environment = Environment(self.clock, random.Random(world.rng.getrandbits(64)))
        self.leases = Leases(self.connection, self.settings, environment, self.worker)
        self.ended: BaseException | str | None = "it runs"

    @property
    def line(self) -> Line:
        """What goes wrong with its requests."""
        return self.connection.line

    def start(self) -> Replica:
        """Run it."""
        _ = self.world.loop.start(self.process, self._main())
        _ = self.world.loop.start(self.process, self._watch())
        return self

    async def _watch(self) -> None:
        shown = self.connection.watch()
        while True:
            self.leases.hint(*await shown.get())

    async def _main(self) -> None:
        self.ended = None
        try:
            await self.leases.run()
            self.ended = "in order"
        except Exception as error:  # noqa: BLE001  (looked at by the test)
            self.ended = error

    def kill(self) -> None:
        """SIGKILL."""
        self.world.loop.kill(self.process)
        self.worker.active.clear()

    def gives_back(self, lease: str) -> None:
        """A write that frees a shard has arrived."""
        shard = int(lease.rpartition("-")[2])
        if shard in self.worker.active:
            self.world.broken.append(f"{self.name} gave back shard {shard} while it worked on it")


class World:
    """See the module."""

    def __init__(self, seed: int = 0, shards: int = 4) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(seed + 1))
        self.server = Server()
        self.shards = shards
        self.replicas: list[Replica] = []
        self.broken: list[str] = []
        self.judging = True

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def replica(self, name: str, instance: str = "", **settings: Any) -> Replica:
        """A replica, not yet started."""
        replica = Replica(self, name, instance or name, **settings)
        self.replicas.append(replica)
        return replica

    def run(self, seconds: float) -> None:
        """Let so many virtual seconds pass, judging all the time."""
        end = self.loop.time() + seconds
        while self.loop.time() < end and not self.broken:
            self.loop.nature(min(JUDGE_SECONDS, end - self.loop.time()), self.loop.stop)
            self.loop.run(lambda: False, STEPS_MAX)
            self.loop.stopping = False
            if self.loop.failed is not None:
                raise self.loop.failed
            self.judge()
        assert self.broken == []

    def until(self, done: Callable[[], bool], seconds_max: float) -> float:
        """Run until it is so; the answer is how long it took."""
        begin = self.loop.time()
        while not done():
            assert self.loop.time() - begin < seconds_max, f"not within {seconds_max} s: {self.holding()}"
            self.run(JUDGE_SECONDS)
        return self.loop.time() - begin

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine that belongs to no replica."""
        task = self.loop.create_task(coroutine)
        self.loop.run(task.done, STEPS_MAX)
        result: T = task.result()
        return result

    def alive(self) -> list[Replica]:
        """Processes that are not dead; a paused one is not."""
        return [replica for replica in self.replicas if replica.process.alive]

    def holders(self, shard: int) -> list[str]:
        """Who says that it holds the shard; a paused process is asked as if it woke now."""
        return [replica.name for replica in self.alive() if replica.leases.holds(shard)]

    def holding(self) -> dict[str, list[int]]:
        """By process."""
        return {replica.process.name: sorted(replica.leases.held) for replica in self.alive()}

    def settled(self) -> bool:
        """Every shard has exactly one holder, who works on it, and the shares are even."""
        counts = [len(replica.leases.held) for replica in self.alive() if replica.leases.own_lease]
        work = [shard for replica in self.alive() for shard in replica.worker.active]
        return (
            all(len(self.holders(shard)) == 1 for shard in range(self.shards))
            and max(counts) - min(counts) <= 1
            and sorted(work) == list(range(self.shards))
        )

    def judge(self) -> None:
        """No shard is held by two, nor worked on by two that run."""
        if not self.judging:
            return
        for shard in range(self.shards):
            holders = self.holders(shard)
            working = [r.name for r in self.alive() if shard in r.worker.active and not r.process.paused]
            if len(holders) > 1 or len(working) > 1:
                self.broken.append(f"{self.loop.time():.2f} s: shard {shard}: held by {holders}, work by {working}")


def settled_pair(world: World) -> tuple[Replica, Replica]:
    """Two replicas that share the shards."""
    first, second = world.replica("first").start(), world.replica("second").start()
    world.run(5.0)
    assert world.settled()
    return first, second
