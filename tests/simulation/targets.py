"""Targets and calls of them: the reference sink's own target, an intercept that does harm, a runner on virtual time.

The shells call committers through `SimRunner`, the committers call the target through `Intercept`. Each operation on a
target is atomic; after each the oracle looks at what landed and what was removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from sinkruntime.api import SinkAggregatedCommitter, SinkCommitter
from sinkruntime.coordinator.runner import OutOfTime
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.memory import MemorySink
from sinkruntime.sinks.memory.committers import MemoryAggregatedCommitter, MemoryCommitter
from sinkruntime.sinks.memory.session import Fault, Tier
from sinkruntime.sinks.memory.target import MemoryTarget, Owner, Removal, Row, StagedKey
from tests.simulation.loop import ACTOR, PROCESS

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")


class SimTarget(MemoryTarget):
    """A target that may be restored from a backup, or hold its data files where they were staged.

    `in_place`: what is staged keeps its name when it is published, so whoever removes it takes it from the readers.
    """

    def __init__(self, identity: str, in_place: bool) -> None:
        super().__init__(identity)
        self.in_place = in_place
        self.files: set[StagedKey] = set()
        self.published: set[StagedKey] = set()
        self.seen_history = 0
        self.seen_removals = 0

    def stage(self, key: StagedKey, rows: Iterable[Row]) -> None:
        """See `MemoryTarget`."""
        super().stage(key, rows)
        self.files.add(key)

    def remove(self, condition: Callable[[StagedKey], bool], by: str) -> None:
        """See `MemoryTarget`; a clean-up looks up what is published, `recover` trusts what it was told."""
        if self.in_place and by == "recover":
            for key in sorted(filter(condition, self.files & self.published)):
                self.files.discard(key)
                self.removals.append(Removal(key, by))
        super().remove(condition, by)

    def roll_back(self, owner: Owner) -> int:
        """Someone restores a backup from before the last publication; returns its checkpoint (0: there is none)."""
        last = self.evidence.get(owner, 0)
        if not last:
            return 0
        self.evidence[owner] = max((h.checkpoint for h in self.history if h.checkpoint < last and h.keys), default=0)
        self._landed = {place for place in self._landed if (place[0], place[1]) != (owner, last)}
        self.visible = [(key, row) for key, row in self.visible if key.checkpoint != last]
        return last


class _InPlace:
    """A committer of a sink whose staged files are the final ones."""

    session: Any

    def recover(self, garbage: Garbage) -> None:
        """Only what was never decided: a settled checkpoint's files are in the target."""

        def undecided(key: StagedKey) -> bool:
            return key.owner == self.session.owner and garbage.undecided(key.checkpoint, key.epoch)

        def late(key: StagedKey) -> bool:
            staged = key in self.session.target.staged
            return staged and key.owner == self.session.owner and garbage.settled(key.checkpoint, key.epoch)

        target = self.session.target
        self.session.must("recover", str(garbage.epoch), lambda: target.remove(undecided, "recover"))
        self.session.must("recover", str(garbage.epoch), lambda: target.remove(late, "recover"))


class _InPlaceCommitter(_InPlace, MemoryCommitter):
    pass


class _InPlaceAggregatedCommitter(_InPlace, MemoryAggregatedCommitter):
    pass


class InPlaceSink(MemorySink):
    """The reference sink, with staged files that are the final ones."""

    def create_committer(self) -> SinkCommitter | None:
        """See `Sink`."""
        if self.options.tier is Tier.AGGREGATED:
            return None
        committer = _InPlaceCommitter(self.options, self.identity)
        committer.proves = self.options.tier is Tier.COMMITTER
        return committer

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        """See `Sink`."""
        if self.options.tier is Tier.COMMITTER:
            return None
        committer = _InPlaceAggregatedCommitter(self.options, self.identity)
        committer.publishes = self.options.tier is Tier.AGGREGATED
        return committer


class Dies(BaseException):
    """The process that makes a call ends here; what the call has done so far is done."""


class SimIntercept:
    """Stands between a sink and its target."""

    def __init__(self, world: World, sink: str) -> None:
        self._world = world
        self._sink = sink
        self.refuses_until = 0.0

    def before(self, operation: str, subject: str) -> Fault:
        """See `Intercept`."""
        world, dice = self._world, self._world.dice
        if operation in ("commit", "probe", "clean"):
            world.oracle.called(self._sink, operation, subject, ACTOR.get())
        if operation == "commit":
            if world.loop.time() < self.refuses_until and not dice.healed:
                return Fault.REFUSED
            if dice.hit("target.refused"):
                return Fault.REFUSED
        if dice.hit("target.unavailable"):
            return Fault.UNAVAILABLE
        if dice.hit("target.lost_answer"):
            return Fault.LOST_ANSWER
        return Fault.NONE

    def after(self, operation: str, subject: str) -> None:
        """See `Intercept`."""
        world = self._world
        world.oracle.look(self._sink)
        if operation == "recover":
            world.oracle.recovered(self._sink, int(subject))
        if world.dice.hit("call.dies_within"):
            raise Dies


class SimRunner:
    """Runs calls in no time, or late, or halfway, or without an answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """See `Runner`."""
        world, dice = self._world, self._world.dice
        world.stumble()
        await asyncio.sleep(dice.seconds(0.5) if dice.hit("call.slow") else 0)
        if dice.hit("call.raises_before"):
            raise ConnectionError("no connection")
        if dice.hit("call.hangs"):
            await self._hang(function, timeout_seconds)
        try:
            value = function()
        except Dies:
            world.kill(PROCESS.get(), "died within a call")
            await asyncio.sleep(0)
            raise AssertionError("a dead process goes on") from None
        world.stumble()
        await asyncio.sleep(0)
        if dice.hit("call.raises_after"):
            raise ConnectionError("connection lost")
        return value

    async def _hang(self, function: Callable[[], T], timeout_seconds: float) -> None:
        """The call does not return in time; it happens now, much later, or never."""
        world, dice = self._world, self._world.dice
        when = dice.rng.choice(("now", "later", "later", "never"))
        if when == "now":
            _abandoned(function)
        elif when == "later":
            late = dice.seconds(2.0 * timeout_seconds)
            if dice.hit_event("person.impatient", 0.9):
                patience = dice.seconds(timeout_seconds)
                world.loop.nature(patience, world.chaos.abort)
                late = patience + dice.seconds(0.5)  # it races with the fence, and with what is removed after that
            world.loop.nature(late, _abandoned, function)
        await asyncio.sleep(timeout_seconds)
        raise OutOfTime(f"no answer within {timeout_seconds:.1f} s")


def _abandoned(function: Callable[[], object]) -> None:
    """Nobody hears what comes of it."""
    try:
        function()
    except (Exception, Dies):  # noqa: BLE001  (the caller has gone)
        return
