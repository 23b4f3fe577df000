"""A simulated Spark: a source of numbered rows, the checkpoint location, tasks that stage.

The driver actor plans batches as Spark does: `offsets/N` is written before batch N, `commits/N` after `foreachBatch`
returned; both are created only if absent; a planned batch that is not finished is run again with the same rows.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sinkruntime.api import Lineage
from sinkruntime.driver.staging import Assignment, Staging, TaskResult, Written
from sinkruntime.protocol.ledger import Offsets, Position
from sinkruntime.protocol.position import NOWHERE, offsets
from sinkruntime.protocol.start import SourceView
from sinkruntime.sinks.memory.target import StagedKey
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class SparkStopped(Exception):
    """The query ends with an error of Spark's own: a task failed for good, or the checkpoint was written by another."""


def offsets_at(row: int) -> Offsets:
    """The source's offset after so many rows."""
    return offsets([f'{{"row":{row}}}']) if row else NOWHERE


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """What lies in the checkpoint location; a value, so that a copy of it is a backup."""

    query_id: str = ""
    marker: str = ""
    planned: dict[int, tuple[int, int]] = field(default_factory=dict)  # batch -> rows (first, beyond the last)
    finished: frozenset[int] = frozenset()

    def position(self, batch: int) -> Position:
        """Which rows a planned batch has."""
        first, beyond = self.planned[batch]
        return Position(self.query_id, batch, offsets_at(first), offsets_at(beyond))

    def view(self) -> SourceView:
        """As the start check sees it."""
        last = max(self.planned, default=-1)
        planned = self.position(last) if last >= 0 else None
        return SourceView(self.marker, self.query_id, planned, max(self.finished, default=-1))

    def one_batch_back(self) -> CheckpointLocation:
        """As it was before the last batch was planned."""
        last = max(self.planned, default=-1)
        planned = {batch: rows for batch, rows in self.planned.items() if batch < last}
        return replace(self, planned=planned, finished=frozenset(b for b in self.finished if b < last))


class Spark:
    """The source and the checkpoint location of the job, which all driver processes share."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.location = CheckpointLocation()
        self.backup: CheckpointLocation | None = None  # of what a person could restore
        self.queries = 0
        self.rows_total = 0  # how many rows the source will have had in the end
        self.available = 0

    def start_query(self) -> None:
        """As Spark does when a query starts at a location: a new one gets an id."""
        if not self.location.query_id:
            self.queries += 1
            self.location = replace(self.location, query_id=f"query-{self.queries}")

    def mark(self, ledger_id: str) -> None:
        """Write the ledger's id into the location, create-if-absent (or taken over by a person's word)."""
        self.location = replace(self.location, marker=ledger_id)

    def next_batch(self, last: int | None) -> int | None:
        """Plan the next batch, after `last`, the one that this query ran; None where there is nothing new."""
        location = self.location
        if last is None:
            last = max(location.planned, default=-1)
            if last >= 0 and last not in location.finished:
                return last
        first = location.planned[last][1] if last in location.planned else 0
        if last + 1 in location.planned:
            raise SparkStopped(f"offsets/{last + 1} was written by another query")
        rng = self._world.rng
        left = self.rows_total - first
        if left <= 0:
            return None
        size = 0 if rng.random() < 0.1 else min(left, rng.randint(1, 4))
        if left == size == 0:
            return None
        self.location = replace(location, planned={**location.planned, last + 1: (first, first + size)})
        return last + 1

    def plan_all(self) -> None:
        """What a batch job reads: everything."""
        self.location = replace(self.location, planned={0: (0, self.rows_total)})

    def finish(self, query_id: str, batch: int) -> None:
        """`foreachBatch` has returned: write `commits/N`."""
        if self.location.query_id != query_id or batch not in self.location.planned:
            raise SparkStopped("the checkpoint location was exchanged")
        if batch in self.location.finished:
            raise SparkStopped(f"commits/{batch} was written by another query")
        self.location = replace(self.location, finished=self.location.finished | {batch})


class Tasks:
    """The staging pass of one batch: its tasks, their attempts, and the attempts that Spark does not keep."""

    def __init__(self, world: World, executor: Process, position: Position) -> None:
        self._world = world
        self._executor = executor
        self._query_id = position.query_id
        self._rows = world.row_range(position)

    async def stage(self, assignment: Assignment) -> Staging:
        """See `driver.Stage`."""
        world, dice = self._world, self._world.dice
        world.oracle.assigned(assignment)
        subtasks = dice.rng.randint(1, world.shape.subtasks_max)
        results: list[TaskResult] = []
        for subtask in range(subtasks):
            rows = [world.row_of(row, self._query_id) for row in self._rows if row % subtasks == subtask]
            attempt = 0
            while dice.hit("task.crash"):
                self._partly(assignment, subtask, attempt, rows)
                attempt += 1
                await asyncio.sleep(dice.seconds(0.1))
            if dice.hit("task.speculative"):
                self._partly(assignment, subtask, attempt + 10, rows)
            if dice.hit("task.zombie"):
                world.loop.call_later(
                    dice.seconds(20.0), self._later, assignment, subtask, attempt + 20, rows,
                    context=world.context_of(self._executor),
                )  # fmt: skip
            if dice.hit("task.fatal"):
                raise SparkStopped("a task failed four times")
            for name in world.sinks:
                at = Lineage(assignment.checkpoint, assignment.epoch, subtask, subtasks, attempt)
                results.append(self._attempt(name, at, rows, assignment))
            await asyncio.sleep(dice.seconds(0.2) if dice.rng.random() < 0.2 else 0)
            world.stumble()
        if not self._executor.alive:
            raise SparkStopped("the executors are gone")
        if dice.hit("task.lineage"):
            victim = dice.rng.randrange(len(results))
            if dice.rng.random() < 0.5:
                del results[victim]
            else:
                results.append(results[victim])
        return Staging(results, dict.fromkeys(world.sinks, subtasks))

    def _attempt(self, sink: str, at: Lineage, rows: list[int], assignment: Assignment) -> TaskResult:
        """What one attempt's writer does for one sink, to the end."""
        world = self._world
        life = world.shape.life_seconds
        if life is not None and world.dice.hit("task.short_life"):
            life = 1.5 * world.shape.commit_timeout_seconds
        states: tuple[Written, ...] = ()
        if world.shape.states:
            states = (Written(1, f"{at.checkpoint}/{at.epoch}/{at.subtask}".encode()),)
        if not rows:
            return TaskResult(sink, at, None, 0, None, states)
        key = self._key(sink, at)
        target = world.targets[sink]
        target.stage(key, [{"row": row} for row in rows])
        expires = None if life is None else world.loop.time() + life
        target.prepare(key, expires)
        if life is not None:
            world.lives[key] = life
        if expires is not None:
            world.loop.nature(expires - world.loop.time() + 0.001, world.expire, sink)
        committable = {"key": key.as_json(), "rows": len(rows), "updates": 0}
        data = json.dumps(committable, separators=(",", ":")).encode()
        return TaskResult(sink, at, Written(1, data), len(rows), life, states)

    def _partly(self, assignment: Assignment, subtask: int, attempt: int, rows: list[int]) -> None:
        """An attempt that is not kept: it stages in some sinks, and prepares in some."""
        world, rng = self._world, self._world.dice.rng
        for name in world.sinks:
            if not rows or rng.random() < 0.3:
                continue
            key = self._key(name, Lineage(assignment.checkpoint, assignment.epoch, subtask, 1, attempt))
            world.targets[name].stage(key, [{"row": row} for row in rows])
            if rng.random() < 0.5:
                world.targets[name].prepare(key, None)

    def _later(self, assignment: Assignment, subtask: int, attempt: int, rows: list[int]) -> None:
        self._world.note("a zombie task stages checkpoint %d of epoch %d", assignment.checkpoint, assignment.epoch)
        self._partly(assignment, subtask, attempt, rows)

    def _key(self, sink: str, at: Lineage) -> StagedKey:
        unique = f"{self._world.dice.rng.getrandbits(32):08x}"
        return StagedKey(self._world.ledger_id, sink, at.checkpoint, at.epoch, at.subtask, at.attempt, unique)
