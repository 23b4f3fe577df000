"""One run of a job in this process: `sinkjob run`.

Order of things: the ledger and its epoch, Spark, the checkpoint location's marker, coordinators, the driver's claim and
start check, then the query; at the end everything decided is committed and cleaned. A crash anywhere leaves what the
next run rolls forward or cleans up.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from sinkruntime.api import Sink
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import Metrics
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.driver.driver import Driver, DriverSettings, stuck
from sinkruntime.environment import Environment
from sinkruntime.errors import ExitCode
from sinkruntime.job.backstage import Backstage
from sinkruntime.job.ownership import mark_taken, taken_over
from sinkruntime.job.sinks import authorities, commit_settings, warn_sinks
from sinkruntime.job.steps import GuardedDriver, check_guarantees, prepare_targets, query_job, target_views
from sinkruntime.ledger.change import change
from sinkruntime.local.workspace import RUN_VARIABLE, Workspace, older_gone
from sinkruntime.protocol.events import Action, Event, RaiseEpoch
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.protocol.machine import outstanding
from sinkruntime.spark.query import BatchDone, Hosts, Query, QueryJob, open_query
from sinkruntime.spark.session import SessionSettings, open_session
from sinkruntime.spark.tolerant import FAILED_WRITERS
from sinkruntime.spec.bind import BoundJob
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.source import Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Waits of a local run: for the ledger's file, for clean-up after the last commit.
LEDGER_SECONDS = 60.0
CLEANED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to the manifest."""

    available_now: bool = False
    master: str = "local[*]"


class Display(Protocol):
    """Who is told of progress. Called from several threads."""

    def started(self, facts: Mapping[str, str]) -> None:
        """The job, its ledger, epoch, checkpoint location, and the sinks with their guarantees."""

    def batch(self, batch_id: int, rows: int, rows_per_second: float) -> None:
        """A batch is decided."""

    def ledger(self, ledger: Ledger) -> None:
        """The ledger has changed."""

    def said(self, text: str) -> None:
        """A line for people."""

    def ended(self, summary: Mapping[str, str]) -> None:
        """The run is over, and well."""


def run_local(job: BoundJob, options: RunOptions, display: Display) -> ExitCode:
    """Run the job until its source is done, or a signal; raises `SinkjobError` for whatever stops it."""
    if job.manifest.job.spec.suspend:
        display.said("spec.suspend is true: nothing is run")
        return ExitCode.DONE
    workspace = Workspace(job)
    with workspace.lock(), _stop_signals(display) as stop, Backstage() as backstage:
        return _LocalRun(workspace, options, display, backstage, stop).run()


def settle_local(workspace: Workspace, display: Display) -> Ledger:
    """A run without Spark and query: commit all that is decided, then remove what older epochs staged and never
    decided. A target that is away is waited for a bounded time. The ledger in the end; there must be one."""
    with workspace.lock(), Backstage() as backstage:
        return _LocalRun(workspace, RunOptions(), display, backstage, threading.Event()).settle()


@contextmanager
def _stop_signals(display: Display) -> Iterator[threading.Event]:
    """The first SIGTERM or SIGINT asks for a stop at a checkpoint boundary, a second one ends the process at once."""
    stop = threading.Event()
    former: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def asked(number: int, frame: FrameType | None) -> None:
        stop.set()
        display.said("stopping at the next checkpoint; a second signal ends it at once, and loses nothing either")
        for known in former:
            signal.signal(known, signal.SIG_DFL)

    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class _LocalRun:
    """The parts of one run, in the order in which they come to be."""

    workspace: Workspace
    options: RunOptions
    display: Display
    backstage: Backstage
    stop: threading.Event
    environment: Environment = field(default_factory=Environment.real)
    metrics: Metrics = field(default_factory=Metrics)
    coordinators: list[Coordinator] = field(default_factory=list)

    @property
    def spec(self) -> SinkJobSpec:
        """The job's spec."""
        return self.workspace.job.manifest.job.spec

    def run(self) -> ExitCode:
        """See `run_local`."""
        store = self.workspace.store
        stored = self.backstage.call(store.load())
        ledger_id = stored.ledger.ledger_id if stored else self.environment.identity()
        epoch = (stored.ledger.epoch if stored else 0) + 1
        os.environ[RUN_VARIABLE] = f"{ledger_id}:{epoch}"  # before Spark starts, so that all its processes have it
        session = self._open_session()
        try:
            sinks = self.workspace.sinks_of(self.workspace.revision, ledger_id)
            check_guarantees(self.workspace.job, sinks)
            query = open_query(session, self._query_job(sinks))
            self._open_ledger(query, ledger_id, stored is None)
            self.backstage.call(change(store, partial(_raise, epoch=epoch), self.environment, LEDGER_SECONDS))
            return self._run(query, sinks, epoch)
        finally:
            session.stop()

    def settle(self) -> Ledger:
        """See `settle_local`. The new epoch fences the last driver, wherever it may still be."""
        stored = self.backstage.call(self.workspace.store.load())
        assert stored is not None, "its caller has looked"
        ledger_id, epoch = stored.ledger.ledger_id, stored.ledger.epoch + 1
        os.environ[RUN_VARIABLE] = f"{ledger_id}:{epoch}"
        raising = partial(_raise, epoch=epoch)
        self.backstage.call(change(self.workspace.store, raising, self.environment, LEDGER_SECONDS))
        self._start_coordinators(ledger_id, epoch)
        ledger = self.backstage.call(self._cleaned())
        self._stop_coordinators()
        return ledger

    def _open_session(self) -> SparkSession:
        job = self.workspace.job
        secrets = dict(job.checkpoint_secrets)
        settings = SessionSettings(self.workspace.name, self.spec, job.manifest.base, self.options.master, secrets)
        return open_session(settings)

    def _query_job(self, sinks: Mapping[str, Sink]) -> QueryJob:
        workspace = self.workspace
        made = query_job(
            workspace.job, sinks, workspace.checkpoint_location, workspace.revision, self.environment.clock
        )
        if self.options.available_now and self.spec.mode == "Streaming":  # of this run only: the revision stays
            spec = self.spec.model_copy(update={"trigger": Trigger(type="AvailableNow")})
            made = replace(made, spec=spec)
        return made

    def _open_ledger(self, query: Query, ledger_id: str, absent: bool) -> None:
        """Create the ledger where there is none; with the checkpoint location's marker one of them may be lost."""
        if absent:
            name = self.workspace.name
            accepted = taken_over(query, ledger_id, name, self.spec.recovery)
            if accepted is not None:
                mark_taken(query, ledger_id, name, accepted)
            acceptances = () if accepted is None else (accepted,)
            self.backstage.call(self.workspace.store.create(Ledger(ledger_id, name, acceptances=acceptances)))
        self.workspace.save_revision()

    def _run(self, query: Query, sinks: Mapping[str, Sink], epoch: int) -> ExitCode:
        workspace, store = self.workspace, self.workspace.store
        loaded = self.backstage.call(store.load())
        assert loaded is not None, "created or found just now"
        ledger_id = loaded.ledger.ledger_id
        prepare_targets(query, sinks)
        self._start_coordinators(ledger_id, epoch)
        driver = Driver(store, self._driver_settings(epoch), self.environment)
        if not loaded.ledger.decided:
            query.files.mark(ledger_id, workspace.name)
        self.backstage.call(driver.claim())
        self.display.started(self._facts(ledger_id, epoch))
        self.backstage.call(driver.start(query.view(), partial(target_views, sinks)))
        if query.files.owner()[0] != ledger_id:
            query.files.take_over(ledger_id, workspace.name)
        port = GuardedDriver(driver, self.backstage)
        done = query.run(Hosts(port, self.backstage.loop, self.stop, self._on_batch))
        return self._end(driver, done)

    def _start_coordinators(self, ledger_id: str, epoch: int) -> None:
        """One under the token, one under the epoch where a sink commits in the driver."""
        found = authorities(self.workspace.job)
        in_driver = frozenset(name for name, authority in found.items() if authority is Authority.EPOCH)
        recovery = self.spec.recovery
        services = Services(
            store=self.workspace.store,
            environment=self.environment,
            runner=ThreadRunner(),
            metrics=self.metrics,
            sinks_of=lambda revision: self.workspace.sinks_of(revision, ledger_id),
            revision=self.workspace.revision,
            driver_sinks=in_driver,
            older_gone=partial(older_gone, ledger_id),
            warn_sinks=warn_sinks(self.spec),
            wishes=Wishes(recovery.nonce, frozenset(recovery.accept), retry_held=True, who="sinkjob run"),
            observe=self.display.ledger,
        )
        settings = commit_settings(self.spec.commit)
        tenures = [Tenure(Authority.TOKEN, self.environment.identity())]
        if in_driver:
            tenures.append(Tenure(Authority.EPOCH, f"driver of epoch {epoch}", epoch))
        for tenure in tenures:
            coordinator = Coordinator(services, settings, tenure)
            self.coordinators.append(coordinator)
            self.backstage.spawn(coordinator.run())
        for coordinator in self.coordinators:  # else the driver could stop for what the last run was told
            self.backstage.call(coordinator.begun.wait())

    def _driver_settings(self, epoch: int) -> DriverSettings:
        recovery, commit = self.spec.recovery, self.spec.commit
        return DriverSettings(
            epoch=epoch,
            claimant=f"{os.uname().nodename}/{os.getpid()}/{self.environment.identity()}",
            revision=self.workspace.revision,
            authority=authorities(self.workspace.job),
            max_pending=commit.max_pending,
            commit_timeout_seconds=commit.timeout.seconds,
            patience_seconds=LEDGER_SECONDS,
            nonce=recovery.nonce,
            accept=frozenset(recovery.accept),
            attended=False,
        )

    def _facts(self, ledger_id: str, epoch: int) -> dict[str, str]:
        sinks = ", ".join(
            f"{bound.spec.name} ({bound.spec.type}, {bound.sink_class.guarantee(bound.options, {}).guarantee.value})"
            for bound in self.workspace.job.sinks
        )
        return {
            "job": self.workspace.name,
            "ledger": ledger_id,
            "epoch": str(epoch),
            "checkpoint location": self.workspace.checkpoint_location,
            "sinks": sinks,
        }

    def _on_batch(self, done: BatchDone) -> None:
        for sink, counters in done.counters.items():
            if failed := counters.get(FAILED_WRITERS):
                self.display.said(
                    f"batch {done.batch_id}: sink {sink} lost rows in {failed:.0f} tasks (onFailure: Warn)"
                )
        if not done.skipped:
            self.display.batch(done.batch_id, done.rows, done.rows_per_second)

    def _end(self, driver: Driver, done: bool) -> ExitCode:
        """Commit what is decided, clean up, and say how it stands."""
        ledger = self.backstage.call(driver.drained())
        held = stuck(ledger)
        if not held:
            ledger = self.backstage.call(self._cleaned())
        self._stop_coordinators()
        self.display.ledger(ledger)
        for number, sink, part in held:
            self.display.said(f"checkpoint {number} of sink {sink} is {part.state}: {part.reason}: {part.message}")
        if held:
            return ExitCode.FENCED_OR_IN_DOUBT
        committed = {name: str(entry.committed) for name, entry in sorted(ledger.sinks.items())}
        why = "the source is done" if done else "asked to stop"
        self.display.ended({"why": why, "decided": str(ledger.decided), **committed})
        return ExitCode.DONE

    def _stop_coordinators(self) -> None:
        for coordinator in self.coordinators:
            self.backstage.loop.call_soon_threadsafe(coordinator.stop)
        self.backstage.joined()

    async def _cleaned(self) -> Ledger:
        """Until nothing is left to be removed, for a bounded time: the next start goes on with the rest."""
        store, ours = self.workspace.store, set(authorities(self.workspace.job).values()) | {Authority.TOKEN}
        deadline = self.environment.clock.monotonic() + CLEANED_SECONDS
        while True:
            stored = await store.load()
            assert stored is not None, "this run has made it"
            owed = [effect for effect in outstanding(stored.ledger) if effect.authority in ours]
            left = deadline - self.environment.clock.monotonic()
            if all(effect.action is Action.HOLD for effect in owed) or left <= 0:
                return stored.ledger
            await store.wait_changed(stored.version, min(left, 1.0))


def _raise(ledger: Ledger, epoch: int) -> Event | None:
    return None if ledger.epoch == epoch else RaiseEpoch(epoch)
