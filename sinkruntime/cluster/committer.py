"""The processes that only commit: the committer pod of `runOn: Job`, and a driver that has nothing but commits to do.

`sinkjob commit` coordinates the whole job under the token until the operator ends it: only the operator knows whether a
driver lives that may decide more. `sinkjob driver --commit-only` claims its epoch and coordinates the sinks with
`runOn: Driver` until nothing of theirs is owed. Neither starts Spark, decides a checkpoint or creates a ledger.
"""

from __future__ import annotations

import asyncio

from sinkruntime.cluster import tenure
from sinkruntime.cluster.connection import Connection
from sinkruntime.cluster.report import STOPPED, Ended
from sinkruntime.cluster.stopping import Stop
from sinkruntime.coordinator.coordinator import Tenure
from sinkruntime.job.backstage import Cancelled
from sinkruntime.kube.names import committer_holder
from sinkruntime.protocol.ledger import Authority


def commit_job(connection: Connection, stop: Stop) -> Ended:
    """The committer pod: until it is asked to stop. Raises `Fenced` where another coordinator has taken over."""
    backstage = connection.backstage
    try:
        ledger = backstage.call(tenure.present(connection), stop.event).ledger
        told = connection.surroundings
        holder = f"{committer_holder(told.pod_name, told.pod_uid)}/{connection.environment.identity()}"
        connection.coordinate(ledger.ledger_id, Tenure(Authority.TOKEN, holder))
        backstage.call(asyncio.Event().wait(), stop.event)
    except Cancelled:
        connection.end_coordinators()
    return Ended(STOPPED, "the committer was asked to stop")


def commit_only(connection: Connection, stop: Stop) -> Ended:
    """The driver that only commits: until nothing under its epoch is owed, or waits for a person."""
    backstage = connection.backstage
    try:
        ledger = backstage.call(tenure.present(connection), stop.event).ledger
        backstage.call(tenure.make_driver(connection).claim(), stop.event)
        tenure.coordinate(connection, ledger.ledger_id, stop)
    except Cancelled:
        connection.end_coordinators()
        return Ended(STOPPED, "asked to stop before anything was committed")
    return tenure.finish(connection, stop, "everything that was decided under the epoch is committed")
