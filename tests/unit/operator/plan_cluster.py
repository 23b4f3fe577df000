"""A tiny cluster in memory that applies a plan's actions: pods that live and die, a real ledger, commits that happen.

Used by the random test of the plan. The ledger's rules are the protocol's own (`machine.step`); drivers and the
coordinator do the least that a job needs. What must never happen is asserted where it would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sinkoperator import actions, names
from sinkoperator.actions import Action
from sinkoperator.objects.manifests import raw_of as raw_of_revision
from sinkoperator.observed import CoordinatorFacts, DriverPod, JobObject, Observed, PlanSettings, Revision, Trouble
from sinkruntime.protocol.events import (
    Action as Owed,
)
from sinkruntime.protocol.events import (
    BeginAbort,
    ClaimEpoch,
    Decide,
    Event,
    Forget,
    NoteRecovered,
    Outcome,
    OutcomeKind,
    RaiseEpoch,
    RaiseToken,
    Refused,
    Report,
)
from sinkruntime.protocol.ledger import Authority, Ledger, Offsets, Part, Position, Record
from sinkruntime.protocol.machine import outstanding, step
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.digest import sinks_revision
from tests.unit.operator.plan_world import NOW, UID, held, job, read

OUTCOMES = {
    Owed.COMMIT: OutcomeKind.COMMITTED,
    Owed.PROBE: OutcomeKind.COMMITTED,
    Owed.FENCE: OutcomeKind.FENCED,
    Owed.CLEAN: OutcomeKind.CLEANED,
    Owed.DISCARD: OutcomeKind.CLEANED,
}
PENDING_MAX = 3


class Lost(Exception):
    """The operator died, or the answer of a write was lost: the rest of the plan is not applied."""


@dataclass
class Cluster:
    """One job and all that belongs to it. `gone` is True once the SinkJob itself is."""

    random: random.Random
    job: JobObject
    now: float = NOW
    ledger: Ledger | None = None
    ledger_owned: bool = True
    pods: dict[str, DriverPod] = field(default_factory=dict)
    lost_nodes: set[str] = field(default_factory=set)
    revisions: dict[str, Revision] = field(default_factory=dict)
    configs: set[int] = field(default_factory=set)
    coordinator: actions.RunCoordinator | None = None
    begun: str = ""
    epochs_created: set[int] = field(default_factory=set)
    decided_for: set[str] = field(default_factory=set)
    gone: bool = False
    created: int = 0

    def observe(self) -> Observed:
        """What the operator would gather."""
        sinks = self.job.spec.sinks if self.job.spec else ()
        kept = held(self.ledger, owner_uid=UID if self.ledger_owned else "", finalizer=self.ledger_owned)
        return Observed(
            job=self.job,
            now=self.now,
            settings=PlanSettings(driver_image="image", revisions_kept_max=2),
            ledger=kept if self.ledger else None,
            run_on={sink.name: sink.commit.run_on or "Operator" for sink in sinks},
            drivers=tuple(self.pods.values()),
            revisions=tuple(self.revisions.values()),
            driver_configs=frozenset(self.configs),
            coordinator=CoordinatorFacts(running=self.coordinator is not None, begun=self.begun),
        )

    def apply(self, observed: Observed, action: Action) -> None:
        """Do one action as the shell would; twice does no harm. Raises `Lost` where it is refused."""
        if self.gone:
            raise Lost
        does: Callable[[Observed, Any], None] | None = getattr(self, f"_{type(action).__name__}", None)
        if does is not None:
            does(observed, action)

    def _AddFinalizer(self, _: Observed, action: Action) -> None:  # noqa: N802
        if self.job.deleting_since is None:
            self.job = replace(self.job, finalizers=(names.JOB_FINALIZER,))

    def _RemoveFinalizer(self, _: Observed, action: Action) -> None:  # noqa: N802
        assert self.ledger is None or not self.ledger_owned, "nobody would delete it any more"
        self.gone = True

    def _CreateLedger(self, _: Observed, action: Action) -> None:  # noqa: N802
        if self.ledger is not None:
            raise Lost
        self.ledger = Ledger(f"ledger-{self.random.random()}", "data/flights")

    def _ReleaseLedger(self, _: Observed, action: Action) -> None:  # noqa: N802
        assert self.ledger is None or not self.ledger.records, "what is let go owes nothing"
        self.ledger = None

    def _OrphanLedger(self, _: Observed, action: Action) -> None:  # noqa: N802
        self.ledger_owned = False

    def _EnsureRevision(self, observed: Observed, action: actions.EnsureRevision) -> None:  # noqa: N802
        spec = observed.job.spec
        assert spec is not None
        assert revision_of(spec) == action.revision
        number = max((each.number for each in self.revisions.values()), default=0) + 1
        made = Revision(action.revision, number, sinks_revision(spec), dict(observed.job.raw))
        self.revisions.setdefault(action.revision, made)

    def _PruneRevisions(self, _: Observed, action: actions.PruneRevisions) -> None:  # noqa: N802
        records = self.ledger.records if self.ledger is not None else ()
        assert not {record.revision for record in records} & set(action.revisions)
        for name in action.revisions:
            self.revisions.pop(name, None)

    def _RaiseEpoch(self, _: Observed, action: actions.RaiseEpoch) -> None:  # noqa: N802
        assert self.ledger is not None
        if any(not pod.ended and pod.name not in action.fenced for pod in self.pods.values()):
            raise Lost
        if self.ledger.epoch == action.epoch and not self.ledger.claim:
            return
        if self.ledger.epoch != action.epoch - 1:
            raise Lost
        self.send(RaiseEpoch(action.epoch))

    def _CreateDriver(self, observed: Observed, action: actions.CreateDriver) -> None:  # noqa: N802
        assert self.ledger is not None
        assert action.epoch <= self.ledger.epoch, "the epoch of a driver is raised before it is created"
        raw = raw_of_revision(observed, action.revision)
        assert raw is not None, "a driver's revision is kept"
        name = names.driver_name(self.job.name, action.epoch)
        if name in self.pods:
            return  # adopted
        living = [pod for pod in self.pods.values() if not pod.ended and pod.name not in self.lost_nodes]
        if action.epoch == self.ledger.epoch:
            assert not living, f"{living} may live while the driver of epoch {action.epoch} is created"
        spec = observed.job.spec
        asked = names.intent(spec) if spec else f"generation-{observed.job.generation}"
        self.created += 1
        self.pods[name] = DriverPod(
            name, f"{name}-{self.created}", action.epoch, action.revision, asked, action.commit_only, created=self.now
        )
        self.configs.add(action.epoch)
        self.epochs_created.add(action.epoch)

    def _StopDriver(self, _: Observed, action: actions.StopDriver) -> None:  # noqa: N802
        pod = self.pods.get(action.name)
        if pod is not None and pod.uid == action.uid and pod.deleting_since is None:
            self.pods[pod.name] = replace(pod, deleting_since=self.now)

    def _DeletePod(self, _: Observed, action: actions.DeletePod) -> None:  # noqa: N802
        pod = self.pods.get(action.name)
        if pod is not None and pod.uid == action.uid:
            assert pod.ended
            del self.pods[action.name]

    def _PruneDriverObjects(self, _: Observed, action: actions.PruneDriverObjects) -> None:  # noqa: N802
        self.configs -= set(action.epochs)

    def _RunCoordinator(self, _: Observed, action: actions.RunCoordinator) -> None:  # noqa: N802
        if self.coordinator is None and self.ledger is not None:
            self.send(RaiseToken(self.ledger.token + 1, "operator"))
        if self.begun != action.intent:
            self.begun = ""
        self.coordinator = action

    def _StopCoordinator(self, _: Observed, action: Action) -> None:  # noqa: N802
        self.coordinator, self.begun = None, ""

    def _BeginAbort(self, _: Observed, action: actions.BeginAbort) -> None:  # noqa: N802
        assert self.coordinator is not None, "a coordinator is to begin it"
        assert self.ledger is not None
        if not self.send(BeginAbort(self.ledger.token, action.first, action.who, action.reason)):
            raise Lost

    def send(self, event: Event) -> bool:
        """Whether the ledger took it."""
        assert self.ledger is not None
        try:
            self.ledger, _ = step(self.ledger, event)
        except Refused:
            return False
        return True

    def edit(self, raw: dict[str, Any]) -> None:
        """A person applies another manifest."""
        if raw != self.job.raw and not self.gone:
            spec, error = read(raw)
            problems = error.problems if error else ()
            generation = self.job.generation + 1
            self.job = replace(self.job, raw=raw, spec=spec, problems=problems, generation=generation)

    def lives(self) -> None:
        """What processes do in one step: a coordinator's commits, drivers' claims, decisions and ends."""
        if self.coordinator is not None and self.ledger is not None:
            self.begun = self.coordinator.intent
            self.commit(Authority.TOKEN, self.ledger.token, self.coordinator.gone_below)
        for pod in list(self.pods.values()):
            if not pod.ended:
                self._live(pod)

    def commit(self, authority: Authority, fence: int, gone_below: int = 0) -> None:
        """A coordinator's look: the first thing that is owed under its authority."""
        assert self.ledger is not None
        for effect in outstanding(self.ledger):
            if effect.authority is not authority:
                continue
            if effect.action is Owed.RECOVER:
                settled = all(record.epoch >= self.ledger.epoch for record in self.ledger.records)
                final = settled and gone_below >= self.ledger.epoch
                if final or self.ledger.recovered.get(authority, 0) < self.ledger.epoch:
                    self.send(NoteRecovered(authority, fence, self.ledger.epoch, final))
            elif effect.action is Owed.REMOVE_PAYLOADS:
                self.send(Forget(fence, (effect.number,)))
            elif effect.action in OUTCOMES:
                evidence = OUTCOMES[effect.action] is OutcomeKind.COMMITTED
                outcome = Outcome(effect.number, effect.sink, OUTCOMES[effect.action], evidence=evidence)
                self.send(Report(authority, fence, (outcome,)))

    def _live(self, pod: DriverPod) -> None:
        assert self.ledger is not None
        if pod.name in self.lost_nodes:
            if self.random.random() < 0.3:  # it works on where nobody sees it
                self.decide(pod)
            return
        if pod.deleting_since is not None:
            late = self.now >= pod.deleting_since + pod.grace_seconds
            if late or self.random.random() < 0.5:
                del self.pods[pod.name]
            return
        if pod.phase == "Pending":
            self.pods[pod.name] = replace(pod, phase="Running", started=self.now)
            return
        if self.ledger.epoch != pod.epoch or self.ledger.claim not in ("", pod.uid):
            self.end(pod, 3, Trouble("Fenced", "a newer epoch"))
            return
        self.send(ClaimEpoch(pod.epoch, pod.uid))
        self.pods[pod.name] = pod = replace(pod, ready=True)
        self.commit(Authority.EPOCH, pod.epoch)
        if pod.commit_only:
            owed = [effect for effect in outstanding(self.ledger) if effect.authority is Authority.EPOCH]
            if all(effect.action is Owed.RECOVER for effect in owed):
                self.end(pod, 0, Trouble("Completed", "all is committed"))
            return
        self.decide(pod)

    def decide(self, pod: DriverPod) -> None:
        """One checkpoint, as the driver of this pod has it; a batch job's only one ends it."""
        assert self.ledger is not None
        ledger = self.ledger
        revision = self.revisions.get(pod.revision)
        spec, _ = read(revision.raw) if revision else (None, None)
        if spec is None or pod.epoch != ledger.epoch or ledger.claim != pod.uid or len(ledger.pending) >= PENDING_MAX:
            return
        run = names.run_of(pod.intent)
        batch = run if spec.mode == "Batch" else ""
        where = {sink.name: sink.commit.run_on for sink in spec.sinks}
        parts = {
            name: Part(rows=1, authority=Authority.EPOCH if run_on == "Driver" else Authority.TOKEN)
            for name, run_on in where.items()
        }
        number = ledger.decided + 1
        start = ledger.last.position.end if ledger.last else Offsets("0")
        query = "batch" if batch else "query"
        at = Position(query, number, start, Offsets(f"{number}"))
        made = Record(number, f"record-{number}-{pod.uid}", pod.epoch, pod.revision, at, parts)
        if batch not in ledger.batches and self.send(Decide(made, pod.uid, PENDING_MAX, 60.0, batch=batch)) and batch:
            assert batch not in self.decided_for, "a batch job is decided once"
            self.decided_for.add(batch)
        if batch and batch in self.ledger.batches and pod.name not in self.lost_nodes:
            owed = any(part.authority is Authority.EPOCH for r in self.ledger.records for part in r.parts.values())
            if not owed:
                self.end(pod, 0, Trouble("Completed", "decided"))

    def end(self, pod: DriverPod, code: int, said: Trouble | None = None, **fields: Any) -> None:
        """The pod's process ends."""
        phase = "Succeeded" if code == 0 else "Failed"
        self.pods[pod.name] = replace(
            pod, phase=phase, exit_code=code, termination=said, finished=self.now, ready=False, **fields
        )


def new_cluster(seed: int, raw: dict[str, Any]) -> Cluster:
    """A SinkJob that was just applied."""
    return Cluster(random.Random(seed), job(raw, finalizers=(), created=NOW))
