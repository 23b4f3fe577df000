"""One epoch of a job, as the pod's process lives it: claimed first of all, drained at the end.

Used by the driver, with or without Spark. The operator raised the epoch before it made the pod; here it is only
claimed, and a second claim is refused.
"""

from __future__ import annotations

import logging

from sinkruntime.cluster.connection import LEDGER_SECONDS, Connection
from sinkruntime.cluster.owed import Owed, owed, waits_for_a_person
from sinkruntime.cluster.report import COMPLETED, STOPPED, Ended
from sinkruntime.cluster.stopping import Stop
from sinkruntime.coordinator.coordinator import Tenure
from sinkruntime.driver.driver import Driver, DriverSettings
from sinkruntime.job.sinks import authorities
from sinkruntime.ledger.change import read
from sinkruntime.ledger.store import Stored
from sinkruntime.protocol.ledger import Authority, Ledger

log = logging.getLogger(__name__)

#: How long a process whose commits are done waits until what they left is removed; the next epoch would do it, too.
TIDY_SECONDS = 30.0
#: How often it is asked whether the process has to end.
LOOK_SECONDS = 1.0


async def present(connection: Connection) -> Stored:
    """The job's ledger, which the operator has made; raises `LedgerCorrupt` where it is gone."""
    return await read(connection.store, connection.environment, LEDGER_SECONDS)


def make_driver(connection: Connection) -> Driver:
    """The protocol's side of this driver process, which has claimed nothing yet."""
    spec = connection.job.spec
    settings = DriverSettings(
        epoch=connection.surroundings.epoch,
        claimant=connection.claimant,
        revision=connection.job.revision,
        authority=authorities(connection.job.bound),
        max_pending=spec.commit.max_pending,
        commit_timeout_seconds=spec.commit.timeout.seconds,
        patience_seconds=LEDGER_SECONDS,
        nonce=spec.recovery.nonce,
        accept=frozenset(spec.recovery.accept),
    )
    return Driver(connection.store, settings, connection.environment)


def coordinate(connection: Connection, ledger_id: str, stop: Stop) -> None:
    """Start the coordinator of the sinks with `runOn: Driver`; returns when what was held is tried again."""
    epoch = connection.surroundings.epoch
    made = connection.coordinate(ledger_id, Tenure(Authority.EPOCH, f"driver of epoch {epoch}", epoch))
    connection.backstage.call(made.begun.wait(), stop.event)


async def drained(connection: Connection, stop: Stop) -> Ledger:
    """Wait until the parts under the epoch are committed and clean, or wait for a person, or the pod's time is over.

    What the operator commits is not waited for. As long as nobody asks to stop, commits are tried as the manifest
    says (`commit.retry`), which may be for ever.
    """
    clock = connection.environment.clock
    tidy_until = None
    while True:
        stored = await present(connection)
        state, left = owed(stored.ledger, Authority.EPOCH), stop.left_seconds()
        if state is Owed.CLEANING:
            tidy_until = tidy_until or clock.monotonic() + TIDY_SECONDS
            left = min(left, tidy_until - clock.monotonic())
        if state in (Owed.NOTHING, Owed.STUCK) or left <= 0:
            return stored.ledger
        await connection.store.wait_changed(stored.version, min(left, LOOK_SECONDS))


def finish(connection: Connection, stop: Stop, message: str) -> Ended:
    """Drain, end the coordinator, and say how it stands: `message` where all is done."""
    ledger = connection.backstage.call(drained(connection, stop))
    connection.end_coordinators()
    if (waits := waits_for_a_person(ledger, Authority.EPOCH)) is not None:
        return waits
    if not stop.asked:
        return Ended(COMPLETED, message)
    left = len(ledger.pending)
    how = (
        f"{left} decided checkpoints are still to be committed" if left else "everything that was decided is committed"
    )
    return Ended(STOPPED, f"asked to stop; {how}")
