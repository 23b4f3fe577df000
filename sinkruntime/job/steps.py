"""The single steps of a run with Spark, from the bound manifest to the driver's start check.

Called by a local run and by a driver pod, in the order of this file. What differs between the two (where the ledger
comes from, who coordinates, how it ends) is theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sinkruntime.api import Clock, Guarantee, Sink
from sinkruntime.dead_letters import DeadLetters
from sinkruntime.driver.driver import Driver, Stage
from sinkruntime.errors import ConfigurationError, TargetError, sink_path
from sinkruntime.job.backstage import Backstage
from sinkruntime.protocol.events import TargetView
from sinkruntime.protocol.ledger import Position
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.query import Query, QueryJob
from sinkruntime.spec.bind import BoundJob

#: How long one target may take to say what it has evidence of.
EVIDENCE_SECONDS = 60.0


@contextmanager
def of_sink(index: int) -> Iterator[None]:
    """A sink knows its options and not its place in the manifest: its errors get their whole path here."""
    try:
        yield
    except (ConfigurationError, TargetError) as error:
        error.path = sink_path(index, error.path)
        raise


def check_guarantees(job: BoundJob, sinks: Mapping[str, Sink]) -> None:
    """With what the targets themselves say; raises `ConfigurationError` for a guarantee that they cannot give."""
    for index, bound in enumerate(job.sinks):
        with of_sink(index):
            facts = sinks[bound.spec.name].inspect()
        offer = bound.sink_class.guarantee(bound.options, facts)
        if bound.spec.guarantee and not offer.guarantee >= Guarantee(bound.spec.guarantee):
            message = f"{bound.spec.guarantee} is more than this target can give: {offer.why}"
            path = f"spec.sinks[{index}].guarantee"
            raise ConfigurationError("GuaranteeTooStrong", message, path=path, advice=f"at most {offer.guarantee}")


def query_job(job: BoundJob, sinks: Mapping[str, Sink], checkpoint: str, revision: str, clock: Clock) -> QueryJob:
    """What Spark is to run: `checkpoint` is Spark's own location, `revision` names the manifest."""
    spec = job.manifest.job.spec
    taking = {bound.spec.dead_letter.sink for bound in job.sinks if bound.spec.dead_letter}
    parts = []
    for index, bound in enumerate(job.sinks):
        told, name = bound.spec, bound.spec.name
        letters = DeadLetters(told.dead_letter.sink, told.dead_letter.max_rows) if told.dead_letter else None
        warn = told.on_failure == "Warn"
        parts.append(JobSink(sinks[name], index, told.select, told.where, warn, letters, name in taking))
    batch = f"{revision}/{spec.restart_nonce}" if spec.mode == "Batch" else ""
    return QueryJob(spec, parts, checkpoint, clock, job.manifest.base, dict(job.source_secrets), batch)


def prepare_targets(query: Query, sinks: Mapping[str, Sink]) -> None:
    """Let every sink create what its target lacks; `sinks` in the manifest's order. Raises `TargetError`."""
    schemas = query.schemas
    for index, (name, sink) in enumerate(sinks.items()):
        with of_sink(index):
            sink.prepare_target(schemas[name])


async def target_views(sinks: Mapping[str, Sink]) -> dict[str, TargetView]:
    """What the targets prove, of the sinks that keep evidence which can be read back."""
    views = {}
    for name, sink in sinks.items():
        evidence = await asyncio.wait_for(asyncio.to_thread(sink.evidence), EVIDENCE_SECONDS)
        if evidence is not None:
            views[name] = TargetView(evidence.checkpoint, evidence.target)
    return views


@dataclass(frozen=True, slots=True)
class GuardedDriver:
    """The driver as the query sees it: it fails where a coordinator has."""

    driver: Driver
    backstage: Backstage

    async def checkpoint(self, position: Position, stage: Stage, batch: str = "") -> bool:
        """See `Driver.checkpoint`."""
        return await self.backstage.guard(self.driver.checkpoint(position, stage, batch))
