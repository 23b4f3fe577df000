"""What was gathered of one job before a plan is made: plain frozen values.

The shell fills it, from its caches and, where it says so, live; `plan` and the object builders read it.
This module holds no rule, knows no clock, cluster or library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sinkruntime.errors import Problem
from sinkruntime.protocol.ledger import Ledger
from sinkruntime.spec.models import SinkJobSpec

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that went wrong: `reason` CamelCase, a sentence, what to do ("" nothing), the manifest's field."""

    reason: str
    message: str = ""
    advice: str = ""
    path: str = ""

    @property
    def text(self) -> str:
        """One line for a condition."""
        where = f"{self.path}: " if self.path and not self.message.startswith(self.path) else ""
        return f"{where}{self.message}" + (f" — {self.advice}" if self.advice else "")


@dataclass(frozen=True, slots=True)
class JobObject:
    """The SinkJob as the API server has it.

    `raw` is its `spec` as given; `spec` what was read of it, None where it is invalid, and then `problems` says why.
    Times are wall seconds. `status` is the last one that was written; only counters of restarts and what is finished
    are read from it to decide.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    raw: Mapping[str, Any]
    spec: SinkJobSpec | None
    problems: tuple[Problem, ...] = ()
    deleting_since: float | None = None
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    status: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class LedgerObject:
    """The ledger's ConfigMap. `ledger` is None where it cannot be used: `trouble` (LedgerCorrupt, …) then says why."""

    uid: str
    ledger: Ledger | None
    trouble: Trouble | None = None
    owner_uid: str = ""  # of the SinkJob that owns it; "": an orphan
    finalizer: bool = True
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class DriverPod:
    """One driver pod, of any epoch, live or ended.

    `phase` is the pod's (Pending, Running, Succeeded, Failed, Unknown). `deleting_since` is when its deletion was
    asked for (not `deletionTimestamp`, which is `grace_seconds` later). `waiting` is the container's reason and
    message while it does not run (ImagePullBackOff, CreateContainerConfigError, …), `unschedulable` the message of
    PodScheduled=False. `pod_reason` is `status.reason` (Evicted, NodeLost, …) or that of the DisruptionTarget
    condition. `termination` is the parsed termination message. `log_tail` is bounded and fetched only for the newest
    ended pod. `ours`: its controller is this very SinkJob.
    """

    name: str
    uid: str
    epoch: int
    revision: str
    intent: str
    commit_only: bool = False
    ours: bool = True
    phase: str = "Pending"
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    ready: bool = False
    deleting_since: float | None = None
    grace_seconds: float = 30.0
    exit_code: int | None = None
    oom_killed: bool = False
    pod_reason: str = ""
    termination: Trouble | None = None
    waiting: Trouble | None = None
    unschedulable: str = ""
    log_tail: str = ""

    @property
    def ended(self) -> bool:
        """Whether no process of it lives any more, for certain."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class CommitterPod:
    """A committer pod (`runOn: Job`); fields as those of `DriverPod`, `number` the last part of its name."""

    name: str
    uid: str
    number: int
    revision: str
    intent: str
    phase: str = "Pending"
    created: float = 0.0
    deleting_since: float | None = None
    finished: float | None = None
    exit_code: int | None = None
    termination: Trouble | None = None
    waiting: Trouble | None = None

    @property
    def ended(self) -> bool:
        """Whether no process of it lives any more, for certain."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Executors:
    """Counts of the executors of the newest driver."""

    desired: int = 0
    running: int = 0
    pending: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Revision:
    """A ControllerRevision of the job: `name` is the digest, `number` grows, `raw` the whole `spec` as it was given."""

    name: str
    number: int
    sinks: str
    raw: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Missing:
    """A Secret or ConfigMap that the manifest names at `path`, and that is not there."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class PreparedFacts:
    """The prepared transactions that a sink's database held, anybody's, when the sink cleaned up last."""

    sink: str
    count: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class CoordinatorFacts:
    """This operator's coordinator of the job. `begun` is the intent with which it has begun ("": it has not): what was
    held is tried again, and what an earlier word granted is put away. `trouble`: why it ended, or cannot begin.
    `prepared`: of the sink whose database holds the oldest."""

    running: bool = False
    begun: str = ""
    trouble: Trouble | None = None
    prepared: PreparedFacts | None = None


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the operator's own settings say; the same for all jobs.

    `driver_image` and `service_account` are used where the manifest names none; with both empty of a service account
    one per job is made. `drivers_per_namespace_max`: 0 is no limit; it is looked at before a driver starts, so two that
    start at the same instant may pass it. A pod that is still there `node_lost_seconds` after its grace period has
    lost its node.
    """

    driver_image: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    drivers_per_namespace_max: int = 0
    node_lost_seconds: float = 60.0
    stop_grace_seconds: int = 60
    revisions_kept_max: int = 10


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is made from.

    `run_on` has for each sink of the manifest where its committer runs: `Operator`, `Driver` or `Job`, the sink's own
    default where the manifest says nothing. `drivers` has all driver pods with the job's label.
    `driver_configs` are the epochs of which a driver's ConfigMap is there, `committer_configs` the numbers of which a
    committer pod's is. `other_drivers` counts live drivers of other jobs in the namespace, where they are limited (else
    0). `refused`: what the API server definitely turned down when the last plan was applied (quota, Pod Security,
    rights). `now` is wall seconds.
    """

    job: JobObject
    now: float
    settings: PlanSettings = field(default_factory=PlanSettings)
    ledger: LedgerObject | None = None
    run_on: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    drivers: tuple[DriverPod, ...] = ()
    committers: tuple[CommitterPod, ...] = ()
    executors: Executors = field(default_factory=Executors)
    revisions: tuple[Revision, ...] = ()
    driver_configs: frozenset[int] = frozenset()
    committer_configs: frozenset[int] = frozenset()
    missing: tuple[Missing, ...] = ()
    coordinator: CoordinatorFacts = field(default_factory=CoordinatorFacts)
    refused: Trouble | None = None
    namespace_terminating: bool = False
    other_drivers: int = 0
