"""`foreachBatch` beside a sink with writers: both see the same rows, in one decision."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import rand

from sinkruntime.api import Clock
from sinkruntime.driver.staging import Assignment, check_lineage
from sinkruntime.sinks.console import ConsoleSink
from sinkruntime.sinks.console import Options as ConsoleOptions
from sinkruntime.sinks.foreachBatch import ForeachBatchSink
from sinkruntime.sinks.foreachBatch import Options as BatchOptions
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.passes import StagingPass
from tests.sinks import harness

pytestmark = pytest.mark.spark
SEEN: list[Any] = []


def collect(df: Any, batch: Any) -> None:
    """The user's function."""
    SEEN.append((batch.checkpoint, batch.key, [tuple(row) for row in df.collect()]))


@pytest.mark.parametrize("alone", [True, False])
def test_it_sees_the_rows_of_the_batch_once(spark: SparkSession, alone: bool) -> None:
    SEEN.clear()
    options = BatchOptions(function=f"{__name__}:collect")
    sinks = [JobSink(ForeachBatchSink(options, harness.identity(sink="mine")), 0, None, "id > 0")]
    if not alone:
        sinks.append(JobSink(ConsoleSink(ConsoleOptions(rows=100), harness.identity(sink="screen")), 1, None, None))
    # Rows that are computed again are other rows: only a kept batch gives both sinks the same.
    df = spark.range(10).withColumn("luck", rand(random.randrange(1000)))
    clock: Clock = harness.ManualClock()
    assignment = Assignment(4, 2)
    staging, _ = StagingPass(df, sinks, clock).run(df, assignment)
    check_lineage(assignment, staging, [sink.sink.identity.sink for sink in sinks])
    ((checkpoint, key, rows),) = SEEN
    assert (checkpoint, key) == (4, f"{harness.LEDGER}/mine/4")
    assert sorted(number for number, _ in rows) == list(range(1, 10))
    assert [result for result in staging.results if result.sink == "mine"] == []
    if not alone:
        written = [result.committable for result in staging.results if result.committable is not None]
        shown = [
            row for item in written for row in ConsoleSink.committable_serializer.deserialize(1, item.data)["rows"]
        ]
        mine = Counter((str(number), f"{luck}"[:17]) for number, luck in rows)
        theirs = Counter((number, luck[:17]) for number, luck in shown if number != "0")
        assert mine == theirs
