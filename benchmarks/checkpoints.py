"""Checkpoints of a few rows, staged by a sink's own writers without Spark, and the coordinators that commit them.

The measurements that run the real `Driver` without Spark use it.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from sinkruntime.api import Lineage, Sink, WriterContext
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.driver.staging import Assignment, Staging, TaskResult, Written
from sinkruntime.environment import Environment
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.protocol.ledger import Authority, Position
from sinkruntime.protocol.position import NOWHERE, offsets

ROWS = 10
_FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("name", pa.string())]
SCHEMA = pa.schema(_FIELDS)


def position(batch: int) -> Position:
    """Of the source, before and after this batch."""
    before = offsets([json.dumps({"partition": batch - 1})]) if batch else NOWHERE
    return Position("query", batch, before, offsets([json.dumps({"partition": batch})]))


def staged(sink: Sink, assignment: Assignment, environment: Environment, tasks: int = 1) -> Staging:
    """What the tasks of a pass do, one after the other."""
    name = sink.identity.sink
    results = [_task(sink, assignment, environment, subtask, tasks) for subtask in range(tasks)]
    return Staging(results, {name: tasks})


def _task(sink: Sink, assignment: Assignment, environment: Environment, subtask: int, tasks: int) -> TaskResult:
    number = assignment.checkpoint
    lineage = Lineage(number, assignment.epoch, subtask, tasks, number)
    context = WriterContext(sink.identity, lineage, "bench", SCHEMA, lambda name, amount=1: None, environment.clock)
    writer = sink.create_writer(context)
    writer.open()
    writer.write(pa.RecordBatch.from_pylist([{"id": number, "name": f"row {number}"}] * ROWS, schema=SCHEMA))
    writer.flush(end_of_input=True)
    committable = writer.prepare_commit(number)
    writer.close()
    serializer = sink.committable_serializer
    return TaskResult(sink.identity.sink, lineage, Written(serializer.version, serializer.serialize(committable)), ROWS)


def local_coordinators(
    store: FileLedgerStore, sink: Sink, environment: Environment, *, in_driver: bool
) -> list[Coordinator]:
    """As a local run has them: one under the token, one under the epoch, for the sinks that commit `in_driver`."""
    services = Services(
        store=store,
        environment=environment,
        runner=ThreadRunner(),
        metrics=Metrics(),
        sinks_of=lambda revision: {"out": sink},
        revision="r1",
        driver_sinks=frozenset({"out"} if in_driver else ()),
        older_gone=lambda epoch: True,
    )
    tenures = [Tenure(Authority.TOKEN, "bench"), *([Tenure(Authority.EPOCH, "bench", 1)] if in_driver else [])]
    return [Coordinator(services, CommitSettings(), tenure) for tenure in tenures]
