"""What an observation means: derived once, read by all rules of the plan. Pure; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkoperator.causes import GONE, NODE_LOST, Cause, Kind, cause_of
from sinkoperator.names import intent, run_of
from sinkoperator.observed import DriverPod, Observed, Revision
from sinkoperator.restarts import Account, End, Restarts, read_restarts
from sinkruntime.driver.driver import stuck
from sinkruntime.protocol.events import Action
from sinkruntime.protocol.ledger import Authority, Ledger, Record
from sinkruntime.protocol.machine import outstanding
from sinkruntime.spec.delivery import RestartPolicy
from sinkruntime.spec.digest import revision as revision_of
from sinkruntime.spec.digest import sinks_revision
from sinkruntime.spec.models import SinkJobSpec


@dataclass(frozen=True, slots=True)
class Facts:
    """An observation with what follows from it at once. `revision` is "" where the manifest is invalid."""

    observed: Observed
    ledger: Ledger | None
    restarts: Restarts
    revision: str
    intent: str
    live: tuple[DriverPod, ...]  # whose process may live: not ended, by name
    lost: frozenset[str]  # those of them whose node is lost

    @property
    def spec(self) -> SinkJobSpec | None:
        """The manifest, where it is valid."""
        return self.observed.job.spec

    @property
    def policy(self) -> RestartPolicy:
        """Of an invalid manifest the default: it concerns drivers that only commit."""
        return self.spec.restart_policy if self.spec else RestartPolicy()

    @property
    def epoch(self) -> int:
        """The ledger's; 0 before the first driver."""
        return self.ledger.epoch if self.ledger else 0

    @property
    def blocking(self) -> tuple[DriverPod, ...]:
        """Live drivers before whose end no other is created."""
        return tuple(pod for pod in self.live if pod.name not in self.lost)

    @property
    def driver(self) -> DriverPod | None:
        """The live driver of the ledger's epoch, unless its node is lost."""
        return next((pod for pod in self.blocking if pod.epoch == self.epoch and pod.ours), None)

    @property
    def newest(self) -> DriverPod | None:
        """The driver pod of the ledger's epoch, live or ended."""
        return next((pod for pod in self.observed.drivers if pod.epoch == self.epoch and pod.ours), None)

    @property
    def pending(self) -> tuple[Record, ...]:
        """Decided, and neither committed nor aborted."""
        return self.ledger.pending if self.ledger else ()

    @property
    def run(self) -> str:
        """`<revision>/<restartNonce>`: the identity of a Batch job."""
        return run_of(self.intent)

    @property
    def batch_decided(self) -> bool:
        """Whether this is a Batch job whose only checkpoint is decided: it is never run again."""
        batch = self.spec is not None and self.spec.mode == "Batch"
        return batch and self.ledger is not None and self.run in self.ledger.batches

    @property
    def gone_below(self) -> int:
        """The processes of all epochs below this one are gone for certain."""
        return min([pod.epoch for pod in self.live], default=self.epoch + 1)

    def owed(self, authority: Authority) -> bool:
        """Whether something is to be done in targets or payloads under this authority; a held part is asked about.

        `recover` counts for the token only: under the epoch it is done by the next driver anyway.
        """
        if self.ledger is None:
            return False
        return any(
            effect.authority is authority and not (effect.action is Action.RECOVER and authority is Authority.EPOCH)
            for effect in outstanding(self.ledger)
        )

    @property
    def stuck(self) -> list[tuple[int, str, str]]:
        """Pending parts that wait for a person or their target: checkpoint, sink, and the sentence that says why."""
        if self.ledger is None:
            return []
        return [(number, sink, f"{part.reason}: {part.message}") for number, sink, part in stuck(self.ledger)]

    def stuck_reason(self) -> str:
        """The reason of the first of them; "" where there is none."""
        return next((part.reason for _, _, part in stuck(self.ledger)), "") if self.ledger else ""

    @property
    def retried(self) -> str:
        """The run in which what is held was tried again, and is held still; "": none is known of.

        The status keeps it, so that a takeover alone tries nothing again; where it is lost, that is done once more.
        """
        if not self.stuck:
            return ""
        if self.observed.coordinator.begun:
            return run_of(self.observed.coordinator.begun)
        before = self.observed.job.status.get("commit")
        return str(before.get("retried", "")) if isinstance(before, Mapping) else ""

    def foreign_pending(self, spec: SinkJobSpec) -> tuple[Record, ...]:
        """Pending checkpoints whose sinks are others than the manifest's: a new revision waits for them."""
        if not self.pending:
            return ()
        mine = sinks_revision(spec)
        same = {revision.name for revision in self.observed.revisions if revision.sinks == mine} | {self.revision}
        return tuple(record for record in self.pending if record.revision not in same)

    def known_revision(self, name: str) -> Revision | None:
        """A revision that is kept."""
        return next((revision for revision in self.observed.revisions if revision.name == name), None)

    def last_end(self, commit_only: bool) -> End | None:
        """How the driver of the ledger's epoch ended, where it has, and this is not accounted for yet.

        `commit_only` is taken for a pod that has vanished: nobody can ask it any more.
        """
        if self.ledger is None or not self.epoch or self.driver is not None:
            return None
        pod = self.newest
        if pod is not None:
            cause = Cause(Kind.INFRASTRUCTURE, NODE_LOST) if pod.name in self.lost else cause_of(pod)
            ran = max(0.0, (pod.finished or pod.deleting_since or 0.0) - (pod.started or float("inf")))
            end = End(self.epoch, pod.intent, pod.commit_only, cause, ran)
        elif self.ledger.claim:
            end = End(self.epoch, self.intent, commit_only, Cause(Kind.INFRASTRUCTURE, GONE))
        else:
            return None
        return None if self.accounted_epoch >= self.epoch else end

    @property
    def accounted_epoch(self) -> int:
        """The newest epoch whose end is accounted for."""
        return max(self.restarts.work.epoch, self.restarts.commit.epoch)


def facts_of(observed: Observed) -> Facts:
    """See `Facts`."""
    job = observed.job
    live = tuple(sorted((pod for pod in observed.drivers if not pod.ended), key=lambda pod: (pod.epoch, pod.name)))
    bound = observed.settings.node_lost_seconds
    lost = frozenset(
        pod.name
        for pod in live
        if pod.deleting_since is not None and observed.now > pod.deleting_since + pod.grace_seconds + bound
    )
    ledger = observed.ledger.ledger if observed.ledger else None
    revision = revision_of(job.spec) if job.spec else ""
    asked = intent(job.spec, revision) if job.spec else f"generation-{job.generation}"
    return Facts(observed, ledger, _restarts(job.status, ledger), revision, asked, live, lost)


def _restarts(status: Mapping[str, Any], ledger: Ledger | None) -> Restarts:
    """As the status has them. An account from beyond the ledger's epoch was of another ledger: it counts no more."""
    restarts = read_restarts(status)
    epoch = ledger.epoch if ledger else 0
    work, commit = (account if account.epoch <= epoch else Account() for account in (restarts.work, restarts.commit))
    return Restarts(restarts.total, work, commit)


def suspended(raw: Mapping[str, Any]) -> bool:
    """What the manifest says, valid or not: to stop is always safe."""
    return raw.get("suspend") is True
