"""What a staging pass returns to the driver, and the check that it is whole.

`sinkruntime.spark` makes `TaskResult`s from what the tasks sent back; the driver turns them into a decision record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sinkruntime.api import Lineage


@dataclass(frozen=True, slots=True)
class Written:
    """A value of a sink's own (committable, writer state) in its written form."""

    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task's writer for one sink prepared. `committable` None: it staged nothing."""

    sink: str
    lineage: Lineage
    committable: Written | None
    rows: int = 0
    remaining_life_seconds: float | None = None
    states: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a staging pass is for: the checkpoint, the driver run, and the former checkpoint's writer states by sink."""

    checkpoint: int
    epoch: int
    states: Mapping[str, Sequence[Written]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staging:
    """A finished pass. `subtasks` is the number of tasks per sink as the stage had it, never as results came."""

    results: Sequence[TaskResult]
    subtasks: Mapping[str, int]


class LineageIncomplete(Exception):
    """The results of a pass are not exactly one per subtask and sink: the batch is not decided."""


def check_lineage(assignment: Assignment, staging: Staging, sinks: Collection[str]) -> None:
    """Raises `LineageIncomplete` unless the pass had just these `sinks`, and each has every subtask exactly once, all
    of this checkpoint and epoch."""
    if set(staging.subtasks) != set(sinks):
        raise LineageIncomplete(f"the pass wrote to sinks {sorted(staging.subtasks)}, the job has {sorted(sinks)}")
    for sink, subtasks in staging.subtasks.items():
        mine = [result.lineage for result in staging.results if result.sink == sink]
        seen = Counter(lineage.subtask for lineage in mine)
        missing = [index for index in range(subtasks) if not seen[index]]
        extra = sorted(index for index, count in seen.items() if count > 1 or index >= subtasks)
        strangers = [
            lineage
            for lineage in mine
            if (lineage.checkpoint, lineage.epoch) != (assignment.checkpoint, assignment.epoch)
            or lineage.subtasks != subtasks
        ]
        if missing or extra or strangers:
            raise LineageIncomplete(
                f"checkpoint {assignment.checkpoint} of sink {sink}: {subtasks} subtasks, "
                f"missing {missing}, twice or beyond {extra}, of another pass {strangers}"
            )
    unknown = {result.sink for result in staging.results} - set(staging.subtasks)
    if unknown:
        raise LineageIncomplete(f"results of sinks that are not in the pass: {sorted(unknown)}")
