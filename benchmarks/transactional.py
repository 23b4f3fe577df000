"""The suite `transactional`: sinks whose targets have transactions, beside Spark's own writers into the same servers.

`docs/benchmarks.md` says how each figure is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from benchmarks.tables import Make, run_in_one_spark
from benchmarks.transactional_commits import XaCommits
from benchmarks.transactional_jdbc import JdbcInsert
from benchmarks.transactional_kafka import KafkaWrite
from benchmarks.transactional_load import JdbcLoad
from benchmarks.transactional_upsert import JdbcUpsert

#: By name; a further sink adds its class here.
SINKS: Mapping[str, Make] = {
    measurement.name: measurement for measurement in (JdbcInsert, JdbcUpsert, JdbcLoad, XaCommits, KafkaWrite)
}
NAMES = tuple(SINKS)


def run(rounds: int, scale: float, only: Collection[str]) -> bool:
    """Run the suite, or those of its measurements that are named; whether every figure is ok."""
    return run_in_one_spark(SINKS, rounds, scale, only)
