"""Who works: this replica's part of the shards, taken, kept, given back and lost.

The application runs one `Leases` beside everything else, asks `holds` before each piece of work, and is told by the
`Worker` calls. Live replicas share all shards evenly. A replica that cannot renew its own Lease stops before anybody
can take it for dead, and joins again later as a new one.

It is a hint to who works, and fences nobody: a process may be paused between `holds` and what it does next. What
fences is the token in the job's ledger, raised at the beginning of every tenure. Apart from that, two replicas hold a
shard at the same time only when somebody deletes or edits Leases by hand (until the next renewal or look, so for
`retry_seconds` and a request), or when one's monotonic clock runs at less than two thirds of the other's speed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Protocol

from sinkoperator.membership import LABELS, LeaseApi, LeaseSettings, Membership, instance_of
from sinkoperator.shards import Moves, Seen, Sightings, garbage, plan_moves, view_of
from sinkruntime.environment import Environment
from sinkruntime.errors import ConfigurationError
from sinkruntime.kube import LEASE, AlreadyExists, ApiError, Conflict, NotFound, Object

log = logging.getLogger(__name__)

#: What the replica's role must allow on leases.coordination.k8s.io in its namespace; `watch` is for the health check.
VERBS = ("list", "watch", "create", "patch", "delete")
#: Writes of one kind after one look; the rest follows at the next look, which then comes at once.
WRITES_PER_LOOK_MAX = 32
#: So that a look that is due when a Lease expires does not come a clock's tick too early.
EXPIRY_MARGIN_SECONDS = 0.01


class Worker(Protocol):
    """What `Leases` calls. It must return at once, but for `stop`."""

    def taken(self, shard: int) -> None:
        """This replica works on the shard from now on; each call begins a new tenure, under a new token."""

    async def stop(self, shard: int) -> None:
        """End the shard's work in order; returns when nothing of it runs. May be cancelled: then `lost` follows."""

    def lost(self, shards: frozenset[int]) -> None:
        """Stop at once; another replica may be at work already."""


class _State(Enum):
    HELD = "held"
    STOPPING = "stopping"  # its work is ending
    STOPPED = "stopped"  # to be given back, until a look shows that it is not ours any more


class Leases:
    """See the module."""

    def __init__(self, api: LeaseApi, settings: LeaseSettings, environment: Environment, worker: Worker) -> None:
        self._api = api
        self._settings = settings
        self._environment = environment
        self._worker = worker
        self._names = settings.names
        self._member: Membership | None = None
        self._sightings = Sightings()
        self._states: dict[int, _State] = {}
        self._stops: dict[int, asyncio.Task[None]] = {}
        self._look = asyncio.Event()
        self._leave = asyncio.Event()

    @property
    def own_lease(self) -> str:
        """The name of the Lease that this replica renews; "" while it has none."""
        return self._member.lease if self._member is not None else ""

    @property
    def lives(self) -> bool:
        """Whether the own Lease is there and was renewed in time: the API server takes this replica's writes."""
        return self._member is not None and self._member.live()

    @property
    def held(self) -> frozenset[int]:
        """The shards that this replica may work on at this instant."""
        if not self.lives:
            return frozenset()
        return frozenset(shard for shard, state in self._states.items() if state is not _State.STOPPED)

    def holds(self, shard: int) -> bool:
        """Whether work on this shard may begin at this instant; True while the shard is being stopped, too."""
        state = self._states.get(shard, _State.STOPPED)
        return state is not _State.STOPPED and self.lives

    def hint(self, event: str, body: Mapping[str, Any]) -> None:
        """A watch has shown a Lease: a renewal counts from here, and not from the next look, so that a takeover waits
        for nothing but the Lease; and it looks at once where a shard may have become free. For `Watch.subscribe`."""
        name = body["metadata"]["name"]
        if event != "DELETED" and self._names.identity_in(name):
            self._sightings.note(body, self._environment.clock.monotonic())
        holder = (body.get("spec") or {}).get("holderIdentity")
        freed = self._names.number_in(name) is not None and (event == "DELETED" or not holder)
        if freed or (event == "DELETED" and self._names.identity_in(name)):
            self._look.set()

    def leave(self) -> None:
        """End in order: `run` stops all work, frees all shards, and returns."""
        self._leave.set()

    async def run(self) -> None:
        """Until `leave`. Raises `ConfigurationError` where a right is missing at the start. When it is cancelled all
        is lost at once and nothing is written: for the others it is as if the process had died."""
        await self._retry(self._check_rights)
        while not self._leave.is_set():
            member = Membership(self._api, self._settings, self._environment)
            if not await self._retry(partial(self._join, member)):
                await member.delete()  # it may have been made although no answer came
                return
            self._member = member
            log.info("joined as %s", member.identity)
            await self._tenure(member)

    async def _retry(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Again and again until it is done (True) or this replica is to leave (False)."""
        while not self._leave.is_set():
            try:
                await step()
                return True
            except (ApiError, TimeoutError) as error:
                log.warning("waiting for the API server: %s", str(error) or type(error).__name__)
            await self._sleep(self._leave, self._settings.retry_seconds)
        return False

    async def _check_rights(self) -> None:
        namespace = self._settings.namespace
        async with asyncio.timeout(self._settings.request_seconds):
            missing = [verb for verb in VERBS if not await self._api.allowed(verb, LEASE, namespace)]
        if missing:
            verbs = ", ".join(missing)
            raise ConfigurationError(
                "RightMissing",
                f"this service account may not {verbs} leases.coordination.k8s.io in namespace {namespace}",
                advice=f"Add the verbs {verbs} on leases to a Role in {namespace} that is bound to it.",
            )

    async def _join(self, member: Membership) -> None:
        """A former process of this instance is dead, a former tenure has ended: what they held is freed first."""
        for body in await self._list():
            name = body["metadata"]["name"]
            if self._names.identity_in(name) and name != member.lease and instance_of(body) == self._settings.instance:
                await self._delete(body)
        await member.join()

    async def _tenure(self, member: Membership) -> None:
        """Until the own Lease is lost, or this replica has left in order."""
        keep = asyncio.create_task(member.keep())
        share = asyncio.create_task(self._share(member))
        tasks: list[asyncio.Task[Any]] = [keep, share, asyncio.create_task(self._leave.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if share.done():
                await share  # it never ends but by an error
            if not keep.done():
                await _end(share)
                tasks.append(asyncio.create_task(self._stop_all()))
                await asyncio.wait({keep, tasks[-1]}, return_when=asyncio.FIRST_COMPLETED)
            if keep.done():
                log.error("%s has lost its shards: %s", member.identity, keep.result())
        finally:
            lives = member.live()
            stops = self._lose()  # before anything is waited for
            await _end(*tasks, *stops)
        if lives:
            await member.delete()

    async def _stop_all(self) -> None:
        for shard in list(self._states):
            self._begin_stop(shard)
        if self._stops:
            await asyncio.wait(self._stops.values())

    def _lose(self) -> list[asyncio.Task[None]]:
        """Nothing is held any more; what was is told. The answer: orderly ends that are still under way."""
        lost = frozenset(shard for shard, state in self._states.items() if state is not _State.STOPPED)
        if self._member is not None:
            self._member.end()
        self._member = None
        stops = list(self._stops.values())
        self._states.clear()
        self._stops.clear()
        if lost:
            self._worker.lost(lost)
        return stops

    async def _share(self, member: Membership) -> None:
        """Look, act, wait; all writes about shards are made here, one look after the other."""
        while True:
            self._look.clear()
            wait_seconds = self._settings.retry_seconds
            try:
                wait_seconds = await self._look_and_act(member)
            except (ApiError, TimeoutError) as error:
                log.warning("the Leases were not read: %s", str(error) or type(error).__name__)
            await self._sleep(self._look, wait_seconds)

    async def _look_and_act(self, member: Membership) -> float:
        """The answer: after how many seconds to look again."""
        settings, clock = self._settings, self._environment.clock
        sent = clock.monotonic()
        leases = await self._list()
        seen = self._sightings.look(leases, sent, clock.monotonic())
        view = view_of(seen, member.identity, self._names, settings.shards, settings.lease_seconds)
        self._compare(view.of(member.identity))
        leaving = frozenset(shard for shard, state in self._states.items() if state is not _State.HELD)
        moves = plan_moves(view, member.identity, settings.shards, leaving)
        for shard in moves.give_back:
            self._begin_stop(shard)
        give_back = [shard for shard, state in self._states.items() if state is _State.STOPPED]
        await self._in_parallel([partial(self._give_back, shard, seen) for shard in give_back[:WRITES_PER_LOOK_MAX]])
        await self._in_parallel(
            [partial(self._take, shard, seen, member.identity) for shard in moves.take[:WRITES_PER_LOOK_MAX]]
        )
        rubbish = garbage(seen, view, self._names, settings.shards)
        await self._in_parallel([partial(self._delete, lease.body) for lease in rubbish[:WRITES_PER_LOOK_MAX]])
        return self._next_look(seen, moves)

    def _next_look(self, seen: Mapping[str, Seen], moves: Moves) -> float:
        """Sooner than usual where a replica is about to expire: its shards shall not wait longer than they must."""
        if len(moves.take) > WRITES_PER_LOOK_MAX:
            return 0.0
        lease_seconds = self._settings.lease_seconds
        left = [
            lease_seconds - lease.unchanged_seconds for lease in seen.values() if self._names.identity_in(lease.name)
        ]
        return min([self._settings.retry_seconds, *(due + EXPIRY_MARGIN_SECONDS for due in left if due > 0)])

    def _compare(self, mine: frozenset[int]) -> None:
        """Bring what is remembered in line with what the Leases say; they are right."""
        gone = frozenset(self._states) - mine
        lost = frozenset(shard for shard in gone if self._states[shard] is not _State.STOPPED)
        for shard in gone:
            del self._states[shard]
            if stop := self._stops.pop(shard, None):
                stop.cancel()
        if lost:
            log.warning("shards %s name another holder: their work is cut off", sorted(lost))
            self._worker.lost(lost)
        for shard in sorted(mine - frozenset(self._states)):
            self._begin(shard)  # taken by a write whose answer was lost

    def _begin(self, shard: int) -> None:
        if self.lives and self._states.setdefault(shard, _State.HELD) is _State.HELD:
            self._worker.taken(shard)

    def _begin_stop(self, shard: int) -> None:
        if self._states.get(shard) is _State.HELD:
            self._states[shard] = _State.STOPPING
            self._stops[shard] = asyncio.create_task(self._stop(shard))

    async def _stop(self, shard: int) -> None:
        try:
            async with asyncio.timeout(self._settings.stop_seconds):
                await self._worker.stop(shard)
        except Exception as error:
            why = (
                f"it took more than {self._settings.stop_seconds:g} s"
                if isinstance(error, TimeoutError)
                else "it failed"
            )
            log.exception("shard %d was not stopped in order, its work is cut off: %s", shard, why)
            self._worker.lost(frozenset({shard}))
        self._states[shard] = _State.STOPPED
        self._look.set()

    async def _take(self, shard: int, seen: Mapping[str, Seen], identity: str) -> None:
        """A compare-and-swap on what was seen."""
        name = self._names.shard(shard)
        former = seen.get(name)
        spec: Object = {"holderIdentity": identity}
        try:
            if former is None:
                body: Object = {"metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}
                await self._api.create(LEASE, self._settings.namespace, body)
            else:
                spec["leaseTransitions"] = int((former.body.get("spec") or {}).get("leaseTransitions") or 0) + 1
                await self._patch(former, spec)
        except (AlreadyExists, Conflict, NotFound):
            log.debug("shard %d was taken by another one", shard)
            return
        self._begin(shard)

    async def _give_back(self, shard: int, seen: Mapping[str, Seen]) -> None:
        try:
            await self._patch(seen[self._names.shard(shard)], {"holderIdentity": None})
        except (Conflict, NotFound):
            log.debug("the Lease of shard %d has changed: the next look says what it is now", shard)

    async def _patch(self, lease: Seen, spec: Object) -> None:
        body: Object = {"metadata": {"resourceVersion": lease.body["metadata"]["resourceVersion"]}, "spec": spec}
        await self._api.patch(LEASE, self._settings.namespace, lease.name, body)

    async def _delete(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        async with asyncio.timeout(self._settings.request_seconds):
            await self._api.delete(LEASE, self._settings.namespace, metadata["name"], uid=metadata["uid"])

    async def _list(self) -> list[Object]:
        """All Leases of the namespace. Not by label: a label that somebody removed must not hide a shard."""
        async with asyncio.timeout(self._settings.request_seconds):
            leases, _ = await self._api.list(LEASE, self._settings.namespace)
        return leases

    async def _in_parallel(self, writes: list[Callable[[], Awaitable[None]]]) -> None:
        """All are tried; what fails is told, and tried again after the next look if it is still wanted."""
        if not writes:
            return
        tasks = [asyncio.create_task(_limited(write, self._settings.request_seconds)) for write in writes]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await _end(*tasks)
        for result in results:
            if isinstance(result, ApiError | TimeoutError):
                log.warning("a Lease was not written: %s", str(result) or type(result).__name__)
            elif isinstance(result, BaseException):
                raise result

    @staticmethod
    async def _sleep(event: asyncio.Event, seconds: float) -> None:
        """Until then, or until the event."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return


async def _limited(write: Callable[[], Awaitable[None]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await write()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until they are over; their errors are of no use any more."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
