"""Pipelined against blocking commits: the same job with `maxPending` 4 and 1, into a sink whose commits take a second.

`runtime.py` lists it. The sink keeps nothing: it stages for a second, and commits for a second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from sinkruntime.api import (
    CommitRequest,
    Guarantee,
    Offer,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.spec.base import OptionsModel

STAGING_SECONDS = 1.0
COMMIT_SECONDS = 1.0
CHECKPOINTS = 10
ROWS = 10


class Pipelining:
    """(d) Checkpoints per second with four pending against one."""

    name = "pipelining"
    warm_up = True
    figures: Sequence[Figure] = (Figure("pipelining", 1.5, "pipelined", "blocking", at_least=True),)

    def __init__(self, bench: Bench, scale: float) -> None:
        self._bench = bench
        self._checkpoints = max(4, int(CHECKPOINTS * scale))
        self._source = Path()

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("slow-source", ROWS * self._checkpoints, self._checkpoints)

    def round(self, index: int) -> Round:
        """See `Measurement`: checkpoints per second."""
        return {name: self._once(name) for name in in_turn(index, ("pipelined", "blocking"))}

    def _once(self, name: str) -> float:
        source = {
            "format": "parquet", "path": str(self._source), "schema": SCHEMA, "options": {"maxFilesPerTrigger": "1"},
        }  # fmt: skip
        spec = {
            "source": source,
            "trigger": {"type": "AvailableNow"},
            "commit": {"maxPending": 4 if name == "pipelined" else 1},
            "sinks": [{"name": "slow", "type": "slow"}],
        }
        taken = self._bench.run(self._bench.new_folder(f"slow-{name}"), spec, own=(SlowSink, SlowOptions()))
        return self._checkpoints / taken


class SlowOptions(OptionsModel):
    """None."""


class SlowSink(Sink):
    """Takes its time."""

    Options = SlowOptions
    summary = "a sink of the benchmarks"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.EXACTLY_ONCE, "nothing is kept")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return SlowWriter()

    def create_committer(self) -> SinkCommitter:
        return SlowCommitter()


class SlowWriter(SinkWriter):
    """Stages nothing, in a second."""

    def write(self, batch: pa.RecordBatch) -> None:
        return

    def prepare_commit(self, checkpoint: int) -> object:
        time.sleep(STAGING_SECONDS)
        return {"checkpoint": checkpoint}


class SlowCommitter(SinkCommitter):
    """Commits nothing, in a second; what is unanswered counts as committed (absent, of a probe)."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        time.sleep(COMMIT_SECONDS)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        return
