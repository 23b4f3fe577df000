"""The oracle's half that watches the targets: what became visible, what was removed, who called.

`oracle.Oracle` builds on it and watches the ledger; `SimIntercept` and the disasters of `chaos` tell it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sinkruntime.protocol.ledger import PartState, Position
from sinkruntime.sinks.memory.target import Landed, Removal, StagedKey
from tests.simulation.loop import NATURE, PROCESS

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class Fate:
    """What the oracle knows of one decided checkpoint."""

    number: int
    record_id: str
    epoch: int
    position: Position
    keys: dict[str, frozenset[StagedKey]]
    aborted: bool = False
    begun: bool = False  # an abort was recorded as begun
    excused: set[str] = field(default_factory=set)  # sinks in which it was given up, by a person or a disaster


class TargetOracle:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.fates: dict[int, Fate] = {}
        self.violation: str | None = None
        self._published: dict[str, set[StagedKey]] = {name: set() for name in world.sinks}
        self._proved: dict[str, set[int]] = {name: set() for name in world.sinks}
        self._recovered: dict[str, int] = dict.fromkeys(world.sinks, 0)
        self._newest: dict[str, int] = dict.fromkeys(world.sinks, 0)
        self._holes: dict[str, set[int]] = {name: set() for name in world.sinks}
        self._cleaned: dict[str, set[int]] = {name: set() for name in world.sinks}
        self._tried: dict[tuple[str, int], set[str]] = {}
        self._probed: set[tuple[str, str, int]] = set()

    def fail(self, invariant: str, message: str) -> None:
        """Remember the first violation; the loop stops after this step."""
        if self.violation is None:
            self.violation = f"{invariant}: {message}"
            self._world.loop.stop()

    def demand(self, holds: bool, invariant: str, message: str) -> None:
        """Fail unless it holds."""
        if not holds:
            self.fail(invariant, message)

    # The targets.

    def recovered(self, sink: str, epoch: int) -> None:
        """`recover` ran in the target, with what is garbage below `epoch`."""
        self._recovered[sink] = max(self._recovered[sink], epoch)

    def called(self, sink: str, operation: str, subject: str, actor: str) -> None:
        """A committer calls its target; a new tenure asks before it commits what another one may have committed."""
        number = int(subject.partition("/")[0])
        if operation == "probe":
            self._probed.add((actor, sink, number))
        elif operation == "clean":
            self._cleaned[sink].add(number)
        elif operation == "commit":
            tried = self._tried.setdefault((sink, number), set())
            ledger = self._world.store.ledger
            zombie = ledger is None or actor not in (ledger.holder, ledger.claim)
            asked = zombie or (actor, sink, number) in self._probed or not tried - {actor}
            self.demand(asked, "probe", f"{actor} commits {number} of {sink} without a look, after {tried}")
            tried.add(actor)
            if PROCESS.get() is not NATURE:
                self._not_held(sink, number, actor)

    def _not_held(self, sink: str, number: int, actor: str) -> None:
        ledger = self._world.store.ledger
        record = ledger.record(number) if ledger is not None else None
        if ledger is None or record is None or actor not in (ledger.holder, ledger.claim):
            return
        held = record.parts[sink].state is PartState.HELD
        self.demand(not held, "I6", f"{number} of {sink} is held, and {actor} commits it though nobody released it")

    def look(self, sink: str) -> None:
        """At what happened in a target since the last look."""
        target = self._world.targets[sink]
        for landed in target.history[target.seen_history :]:
            self._landed(sink, landed)
        target.seen_history = len(target.history)
        for removal in target.removals[target.seen_removals :]:
            self._removed(sink, removal)
        target.seen_removals = len(target.removals)

    def _landed(self, sink: str, landed: Landed) -> None:
        self._world.note("%s: checkpoint %d becomes visible (%d keys)", sink, landed.checkpoint, len(landed.keys))
        fate = self.fates.get(landed.checkpoint)
        if fate is None:
            self.fail("I2", f"checkpoint {landed.checkpoint} of {sink} is visible and was never decided")
            return
        strangers = set(landed.keys) - fate.keys[sink]
        self.demand(not strangers, "I2", f"{strangers} of {sink} are visible and not in the decision")
        twice = set(landed.keys) & self._published[sink]
        self.demand(not twice, "I1", f"{twice} of {sink} became visible twice")
        self.demand(not fate.aborted, "I3", f"checkpoint {fate.number} of {sink} is visible after its abort")
        self._published[sink] |= set(landed.keys)
        self._world.targets[sink].published |= set(landed.keys)
        before = [n for n in self.fates if n < landed.checkpoint and not self._over(n, sink)]
        self.demand(not before, "I1", f"checkpoint {landed.checkpoint} of {sink} is visible before {before}")
        newest = self._newest[sink]
        self.demand(landed.checkpoint >= newest, "I1", f"{sink}: {landed.checkpoint} is visible after {newest}")
        self._newest[sink] = landed.checkpoint

    def _over(self, number: int, sink: str) -> bool:
        """Whether nothing of it is still to come in this sink."""
        fate = self.fates[number]
        if fate.aborted or sink in fate.excused or sink not in fate.keys:
            return True
        return number not in self._holes[sink] and fate.keys[sink] <= self._published[sink]

    def _removed(self, sink: str, removal: Removal) -> None:
        key = removal.key
        if removal.by == "expiry":
            self._world.vanished.add(key)
            return
        published = key in self._published[sink]
        self.demand(not published, "I7", f"{removal.by} takes {key} of {sink} from the readers")
        fate = self.fates.get(key.checkpoint)
        if fate is None or published:
            return
        needed = key in fate.keys.get(sink, ()) and not fate.aborted and sink not in fate.excused
        self.demand(not needed, "I7", f"{removal.by} removes {key} of {sink}, which is decided and not committed")

    def rolled_back(self, sink: str, number: int) -> None:
        """Someone restored an older target: this checkpoint is no longer in it."""
        fate = self.fates.get(number)
        if fate is not None:
            self._published[sink] -= fate.keys[sink]
            self._world.targets[sink].published -= fate.keys[sink]
            self._holes[sink].add(number)
            self._newest[sink] = max((n for n in self.fates if n < number), default=0)

    def _excuse_holes(self) -> None:
        """A person goes on without what the targets have lost."""
        for sink, holes in self._holes.items():
            for number in holes:
                self.fates[number].excused.add(sink)
