"""How many executors Spark has, and whether it needs any: for the watch over them (`sinkruntime.cluster.executors`).

Every call goes to the JVM and may take its time: call it in a thread. It changes nothing, but for `give_up`.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from sinkruntime.spark.failure import SPARK_ERRORS

log = logging.getLogger(__name__)


class Executors:
    """Those of one session. With `elastic`, a job without work rightly has none."""

    def __init__(self, session: SparkSession, *, elastic: bool) -> None:
        self._context = session.sparkContext
        self._elastic = elastic

    def registered(self) -> int:
        """How many have come and are not lost; the driver itself is no executor."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def wanted(self) -> bool:
        """Whether there should be at least one now."""
        return not self._elastic or bool(self._context.statusTracker().getActiveStageIds())

    def give_up(self) -> None:
        """End all jobs that run: they wait for executors that do not come."""
        try:
            self._context.cancelAllJobs()
        except SPARK_ERRORS as error:
            log.info("jobs were not cancelled: %s", error)
