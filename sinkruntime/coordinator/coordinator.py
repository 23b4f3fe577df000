"""The coordinator's loop: look at the ledger, start what is owed, persist what came of it, wait, again.

One instance serves one job under one authority: the token (in the operator, or the local process) or the epoch (for
sinks whose commits run in the driver). It is level-triggered: a change of the ledger is only a hint to look. Each
sink has a lane for commits, in checkpoint order, one for fences and one for clean-ups; sinks go side by side. It never
decides a checkpoint, and it issues nothing once the ledger shows a newer token or epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from sinkruntime.api import Sink
from sinkruntime.coordinator import housekeeping
from sinkruntime.coordinator.attempt import Attempt, Work
from sinkruntime.coordinator.handle import SinkHandle
from sinkruntime.coordinator.reports import acceptable, tell, worth_telling
from sinkruntime.coordinator.runner import Runner
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.coordinator.wishes import Wishes, overrule, release
from sinkruntime.crashpoints import reached
from sinkruntime.environment import Environment
from sinkruntime.errors import Fenced, SinkjobError
from sinkruntime.ledger.change import change, read
from sinkruntime.ledger.store import LedgerStore, Stored
from sinkruntime.protocol.events import (
    FENCING,
    Action,
    Effect,
    Event,
    Forget,
    NoteRecovered,
    Outcome,
    OutcomeKind,
    RaiseToken,
    Refused,
    Report,
)
from sinkruntime.protocol.ledger import Authority, Ledger, PartState
from sinkruntime.protocol.machine import outstanding

log = logging.getLogger(__name__)

#: A ledger that cannot be reached for so long ends the tenure; another one starts by probing.
LEDGER_PATIENCE_SECONDS = 600.0

#: How often the ledger is looked at without a hint, and how often `recover` runs while older processes may live.
LOOK_SECONDS = 10.0
RECOVER_AGAIN_SECONDS = 10.0

REMOVALS = frozenset({Action.CLEAN, Action.DISCARD})

#: Everything else goes through its sink's lane for commits. A fence, newest first, waits for no older one that is held.
_LANES = {Action.FENCE: "fence", Action.RECOVER: "recover", Action.REMOVE_PAYLOADS: "payloads"}
_LANES |= dict.fromkeys(REMOVALS, "clean")


@dataclass(frozen=True, slots=True)
class Tenure:
    """Who coordinates: under the token it is raised for this `holder`; under the epoch `fence` is the epoch."""

    authority: Authority
    holder: str
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """What a coordinator works with."""

    store: LedgerStore
    environment: Environment
    runner: Runner
    metrics: Metrics
    sinks_of: Callable[[str], Mapping[str, Sink]]  # a spec revision's sinks
    revision: str  # the present one
    driver_sinks: frozenset[str]  # sinks whose commits run in the driver: under the epoch
    older_gone: Callable[[int], bool]  # are the processes of all epochs below this one confirmed gone?
    warn_sinks: frozenset[str] = frozenset()  # `onFailure: Warn`: what they refuse is told, and not held
    wishes: Wishes = field(default_factory=Wishes)
    observe: Callable[[Ledger], None] = field(default=lambda ledger: None)
    handle_of: Callable[[Sink, Runner], SinkHandle] = SinkHandle  # how a sink's committers are held


@dataclass(frozen=True, slots=True)
class Lane:
    """What runs one at a time: a sink's commits, a sink's clean-ups, recovery, payload removal."""

    kind: str
    sink: str = ""


@dataclass(slots=True)
class _Lanes:
    """What runs, and when a lane may start again after a failure."""

    running: dict[Lane, asyncio.Task[Outcome | None]] = field(default_factory=dict)
    failures: dict[Lane, int] = field(default_factory=dict)
    not_before: dict[Lane, float] = field(default_factory=dict)


class Coordinator:
    """See the module."""

    def __init__(self, services: Services, settings: CommitSettings, tenure: Tenure) -> None:
        self._services = services
        self._settings = settings
        self._tenure = tenure
        self._lanes = _Lanes()
        self._handles: dict[tuple[str, str], SinkHandle] = {}
        self._unreported: list[Outcome] = []
        self._stopping = False
        self.trouble: Exception | None = None  # why `recover` has not run yet: no driver decides before it has
        self.begun = asyncio.Event()  # what an earlier tenure was told is put away, what was held is tried again
        self._wake = asyncio.Event()
        self._rounds = itertools.count(1)

    async def run(self) -> None:
        """Work until `stop`; raises `Fenced` when another one has taken over, `InDoubt` when the ledger is lost."""
        try:
            stored = await self._begin()
            if self._services.wishes.retry_held:
                stored = await self._grant(stored, release)
            self.begun.set()
            while not self._stopping:
                stored = await self._grant(stored, partial(overrule, wishes=self._services.wishes))
                stored = await self._round(stored)
            await self._flush()
        except Refused as refused:
            if refused.refusal in FENCING:
                raise Fenced(f"coordinator {self._tenure.holder}: {refused.message}") from refused
            raise
        finally:
            await self._end()

    def stop(self) -> None:
        """Ask it to end: nothing new is started, what runs is waited for and reported."""
        self._stopping = True
        self._wake.set()

    async def _begin(self) -> Stored:
        services, tenure = self._services, self._tenure
        if tenure.authority is Authority.EPOCH:
            return await read(services.store, services.environment, LEDGER_PATIENCE_SECONDS)

        def raise_token(ledger: Ledger) -> Event | None:
            mine = ledger.holder == tenure.holder  # holders are unique per tenure: the answer was lost
            return None if mine else RaiseToken(ledger.token + 1, tenure.holder)

        stored = await change(services.store, raise_token, services.environment, LEDGER_PATIENCE_SECONDS)
        self._tenure = replace(tenure, fence=stored.ledger.token)
        return stored

    async def _grant(self, stored: Stored, wish: Callable[[Ledger, Authority, int], Event | None]) -> Stored:
        """Put a person's word on record, where the ledger is in a state that it speaks of."""
        tenure = self._tenure
        if wish(stored.ledger, tenure.authority, tenure.fence) is None:
            return stored

        def event(ledger: Ledger) -> Event | None:
            self._check_tenure(ledger)
            return wish(ledger, tenure.authority, tenure.fence)

        return await change(self._services.store, event, self._services.environment, LEDGER_PATIENCE_SECONDS)

    async def _round(self, stored: Stored) -> Stored:
        """Start what is owed, wait for news, persist it."""
        ledger = stored.ledger
        self._check_tenure(ledger)
        self._services.observe(ledger)
        self._gauge(ledger)
        now = self._services.environment.clock.monotonic()  # one for both: a lane that is due in between is not missed
        for effect in outstanding(ledger):
            if effect.authority is self._tenure.authority:
                self._start(ledger, effect, now)
        await self._wait(stored, now)
        self._collect()
        if any(self._urgent(outcome) for outcome in self._unreported) or not self._lanes.running:
            reported = await self._report()
            if reported is not None:
                return reported
        return await read(self._services.store, self._services.environment, LEDGER_PATIENCE_SECONDS)

    def _check_tenure(self, ledger: Ledger) -> None:
        under_token = self._tenure.authority is Authority.TOKEN
        present = ledger.token if under_token else ledger.epoch
        if present != self._tenure.fence:
            raise Fenced(f"coordinator {self._tenure.holder} had {self._tenure.fence}, the ledger is at {present}")

    def _start(self, ledger: Ledger, effect: Effect, now: float) -> None:
        """Start the effect unless its lane is busy or has to wait, or its outcome is still to be reported."""
        lane = _lane(effect)
        if lane in self._lanes.running or now < self._lanes.not_before.get(lane, 0.0):
            return
        if any((o.number, o.sink) == (effect.number, effect.sink) for o in self._unreported):
            return
        self._lanes.running[lane] = asyncio.create_task(self._work(ledger, effect))

    async def _work(self, ledger: Ledger, effect: Effect) -> Outcome | None:
        if effect.action not in (Action.RECOVER, Action.REMOVE_PAYLOADS):
            return await self._attempt(ledger, effect)
        if effect.action is Action.RECOVER:
            await self._recover(ledger)
        else:
            await self._remove_payloads(ledger, effect.number)
        return None

    async def _attempt(self, ledger: Ledger, effect: Effect) -> Outcome | None:
        record = ledger.record(effect.number)
        assert record is not None, "effects are read off this ledger"
        failures = self._lanes.failures.get(_lane(effect), 0)
        order = (self._tenure.fence, next(self._rounds))
        work = Work(effect.action, record, effect.sink, ledger.sinks[effect.sink].evidence, failures, order)
        committing = effect.action in (Action.COMMIT, Action.PROBE)
        if committing:
            self._services.metrics.add("commit_attempts", effect.sink)
        handle = self._handle(record.revision, effect.sink)
        if handle is None:
            message = f"revision {record.revision} of the manifest has no sink {effect.sink}"
            outcome = Outcome(effect.number, effect.sink, OutcomeKind.REFUSED, reason="UnknownSink", message=message)
        else:
            outcome = await Attempt(work, handle, self._services.store, self._settings, self._services.metrics).run()
        tell(record, outcome, failures)
        return self._judge(effect, outcome, work)

    def _handle(self, revision: str, sink: str) -> SinkHandle | None:
        key = (revision, sink)
        if key not in self._handles:
            made = self._services.sinks_of(revision).get(sink)
            if made is None:
                return None
            self._handles[key] = self._services.handle_of(made, self._services.runner)
        return self._handles[key]

    def _judge(self, effect: Effect, outcome: Outcome, work: Work) -> Outcome | None:
        """Count it, let the lane wait after a failure; returns what is worth persisting."""
        lane, metrics = _lane(effect), self._services.metrics
        good = outcome.kind in (OutcomeKind.COMMITTED, OutcomeKind.CLEANED, OutcomeKind.FENCED)
        committing = effect.action in (Action.COMMIT, Action.PROBE)
        if good:
            self._lanes.failures.pop(lane, None)
            if committing:
                metrics.add("commit_successes", effect.sink)
                metrics.put("last_commit_seconds", self._services.environment.clock.wall(), effect.sink)
            return outcome
        self._back_off(lane)
        failures = self._lanes.failures[lane]
        if committing:
            metrics.add("commit_failures", effect.sink)
        if effect.action in REMOVALS:
            return None
        if outcome.kind is OutcomeKind.PROGRESS:
            if not self._settings.attempts_max or failures < self._settings.attempts_max:
                news = outcome.payload is not None or outcome.done != work.part.done
                return outcome if news or worth_telling(work.part, outcome, failures) else None
            said = f"after {failures} attempts: {outcome.message}"
            outcome = replace(outcome, kind=OutcomeKind.REFUSED, reason="RetriesExhausted", message=said)
        if outcome.kind is OutcomeKind.REFUSED and committing and effect.sink in self._services.warn_sinks:
            log.warning("checkpoint %d goes on without sink %s (onFailure: Warn)", effect.number, effect.sink)
            metrics.add("commits_skipped", effect.sink)
            return replace(outcome, kind=OutcomeKind.COMMITTED, evidence=False)
        return outcome

    async def _recover(self, ledger: Ledger) -> None:
        """Remove what undecided checkpoints of older epochs left; again later, until the older processes are gone."""
        services, lane = self._services, Lane("recover")
        # While a record of an older epoch is there, its coordinator may still put updated payloads under that epoch.
        settled = all(record.epoch >= ledger.epoch for record in ledger.records)
        final = services.older_gone(ledger.epoch) and settled
        mine = [name for name in services.sinks_of(services.revision) if self._mine(name)]
        found = [self._handle(services.revision, name) for name in mine]
        try:
            await housekeeping.recover([handle for handle in found if handle is not None], ledger, self._settings)
            if self._tenure.authority is Authority.TOKEN:
                await housekeeping.remove_orphans(services.store, ledger)
        except Exception as error:
            self.trouble = error
            log.warning("recovery is tried again: %s", error, exc_info=not isinstance(error, SinkjobError))
            self._back_off(lane)
            return
        self.trouble = None
        self._lanes.failures.pop(lane, None)
        self._delay(lane, 0.0 if final else RECOVER_AGAIN_SECONDS)

        def note(present: Ledger) -> Event | None:
            self._check_tenure(present)
            known = (present.closed if final else present.recovered).get(self._tenure.authority, 0) >= ledger.epoch
            return None if known else NoteRecovered(self._tenure.authority, self._tenure.fence, ledger.epoch, final)

        await change(services.store, note, services.environment, LEDGER_PATIENCE_SECONDS)

    def _mine(self, sink: str) -> bool:
        return (sink in self._services.driver_sinks) == (self._tenure.authority is Authority.EPOCH)

    async def _remove_payloads(self, ledger: Ledger, number: int) -> None:
        try:
            await housekeeping.remove_payloads(self._services.store, ledger, number)
        except SinkjobError as error:  # of the storage that they lie in, too: commits go on without it
            log.warning("payloads of checkpoint %d are removed later: %s", number, error.message)
            self._back_off(Lane("payloads"))
            return
        self._lanes.failures.pop(Lane("payloads"), None)

        def forget(present: Ledger) -> Event | None:
            self._check_tenure(present)
            return Forget(self._tenure.fence, (number,)) if present.record(number) else None

        await change(self._services.store, forget, self._services.environment, LEDGER_PATIENCE_SECONDS)

    def _back_off(self, lane: Lane) -> None:
        failures = self._lanes.failures[lane] = self._lanes.failures.get(lane, 0) + 1
        self._delay(lane, self._settings.backoff_after(failures, self._services.environment.random.random()))

    def _delay(self, lane: Lane, seconds: float) -> None:
        self._lanes.not_before[lane] = self._services.environment.clock.monotonic() + seconds

    async def _wait(self, stored: Stored, now: float) -> None:
        """Until something that runs has ended, the ledger has changed, a lane that rested `now` may go, or `stop`."""
        due = [at for lane, at in self._lanes.not_before.items() if at > now and lane not in self._lanes.running]
        idle = self._unreported and not self._lanes.running
        left = min(due, default=now + LOOK_SECONDS) - self._services.environment.clock.monotonic()
        timeout = 0.0 if idle else min(LOOK_SECONDS, max(0.0, left))
        changed = asyncio.create_task(self._changed(stored.version, timeout))
        woken = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait([changed, woken, *self._lanes.running.values()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            woken.cancel()

    async def _changed(self, version: str, timeout_seconds: float) -> None:
        if timeout_seconds > 0.0:
            await self._services.store.wait_changed(version, timeout_seconds)

    def _collect(self) -> None:
        for lane, task in list(self._lanes.running.items()):
            if task.done():
                del self._lanes.running[lane]
                outcome = task.result()
                if outcome is not None:
                    self._unreported.append(outcome)

    @staticmethod
    def _urgent(outcome: Outcome) -> bool:
        return outcome.kind is not OutcomeKind.CLEANED

    async def _report(self) -> Stored | None:
        """Persist all outcomes so far in one compare-and-swap; those that the ledger no longer takes are dropped."""
        outcomes, self._unreported = self._unreported, []
        if not outcomes:
            return None
        tenure, wall_ms = self._tenure, int(self._services.environment.clock.wall() * 1000)

        def report(ledger: Ledger) -> Event | None:
            self._check_tenure(ledger)
            taken = acceptable(ledger, tenure.authority, tenure.fence, outcomes)
            return Report(tenure.authority, tenure.fence, taken, wall_ms) if taken else None

        commits = any(self._urgent(outcome) for outcome in outcomes)
        if commits:
            reached("S11", "before")
            reached("S12", "before")
        services = self._services
        stored = await change(services.store, report, services.environment, LEDGER_PATIENCE_SECONDS)
        if commits:
            reached("S11", "after")
            if all((r := stored.ledger.record(o.number)) is None or not r.pending for o in outcomes):
                reached("S12", "after")
        return stored

    async def _flush(self) -> None:
        """Wait for what runs, and persist it."""
        if self._lanes.running:
            await asyncio.wait(self._lanes.running.values())
        self._collect()
        await self._report()

    async def _end(self) -> None:
        for task in self._lanes.running.values():
            task.cancel()
        if self._lanes.running:  # of nothing, gather would look for a loop, and there is none while a killed one closes
            await asyncio.gather(*self._lanes.running.values(), return_exceptions=True)
        for handle in self._handles.values():
            await handle.close(self._settings.timeout_seconds)

    def _gauge(self, ledger: Ledger) -> None:
        parts = [part for record in ledger.pending for part in record.parts.values()]
        metrics = self._services.metrics
        metrics.put("pending", len(ledger.pending))
        metrics.put("in_doubt", sum(part.state is PartState.IN_DOUBT for part in parts))
        metrics.put("held", sum(part.state is PartState.HELD for part in parts))


def _lane(effect: Effect) -> Lane:
    return Lane(_LANES.get(effect.action, "commit"), effect.sink)
