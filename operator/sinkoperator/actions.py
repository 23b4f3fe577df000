"""What a plan asks for: frozen actions, each with its reason, and the decision that holds them.

`plan` makes them, the shell applies them in order and stops at the first that is not definitely done: what follows may
rest on it. Applying one twice, or after a crash, does no harm. This module holds no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    """`why` is one short sentence for the log."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class AddFinalizer(_Action):
    """Put `names.JOB_FINALIZER` on the SinkJob. First of all: nothing is made for a job that could vanish."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer(_Action):
    """Take it off: the SinkJob goes, and with it all that it owns. Comes after the ledger was let go."""


@dataclass(frozen=True, slots=True)
class EnsureRevision(_Action):
    """Create the ControllerRevision of the present spec (`objects.revision`); one that is there is as good."""

    revision: str


@dataclass(frozen=True, slots=True)
class PruneRevisions(_Action):
    """Delete these ControllerRevisions (names as in `Observed.revisions`): nothing refers to them."""

    revisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateLedger(_Action):
    """Create a new ledger with a new ledger id, the SinkJob's uid and the finalizer; only if there is none."""


@dataclass(frozen=True, slots=True)
class AdoptLedger(_Action):
    """Put owner and finalizer on a ledger that an earlier SinkJob of this name left (`uid`), or that lost them."""

    uid: str


@dataclass(frozen=True, slots=True)
class OrphanLedger(_Action):
    """Take owner and finalizer off the ledger: it stays when the SinkJob goes.

    `keep_finalizer`: the ledger itself is being deleted, and would be gone without it.
    """

    uid: str
    keep_finalizer: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseLedger(_Action):
    """Delete the ledger, finalizer and all; payload objects go with it. Nothing is owed."""

    uid: str


@dataclass(frozen=True, slots=True)
class RaiseEpoch(_Action):
    """Raise the ledger's epoch (`protocol.events.RaiseEpoch`), by compare-and-swap.

    Before that the shell reads the job's driver pods live, not from a cache, and stops where one that has not ended is
    not in `fenced` (pods on a lost node, which the raised epoch fences).
    """

    epoch: int
    fenced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsureAccess(_Action):
    """Create or correct what the driver's and committer's pods may do: `objects.access`."""


@dataclass(frozen=True, slots=True)
class CreateDriver(_Action):
    """Create the driver's ConfigMap, then its Pod: `objects.driver`.

    "Already exists": look at it live; with this SinkJob as its controller and this epoch it is ours, else report
    `Trouble("NameTaken", …)` as refused.
    """

    epoch: int
    revision: str
    commit_only: bool = False


@dataclass(frozen=True, slots=True)
class StopDriver(_Action):
    """Delete a live driver pod by name and uid, with this grace: it ends at a checkpoint boundary."""

    name: str
    uid: str
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class DeletePod(_Action):
    """Delete a pod that has ended, by name and uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PruneDriverObjects(_Action):
    """Delete the ConfigMaps of drivers of these epochs: their pods are gone."""

    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PruneCommitterObjects(_Action):
    """Delete the ConfigMaps of committer pods of these numbers: their pods are gone."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnsureCommitter(_Action):
    """Create the committer pod `number`, which coordinates the whole job: `objects.committer`."""

    number: int
    revision: str


@dataclass(frozen=True, slots=True)
class StopCommitter(_Action):
    """Delete a committer pod by name and uid."""

    name: str
    uid: str
    grace_seconds: int = 30


@dataclass(frozen=True, slots=True)
class RunCoordinator(_Action):
    """See that this operator's coordinator of the job runs, with these settings. Comes with every plan that wants it.

    `revision` is that of the sinks which `recover` looks at. Another `intent` means another word of a person: wishes
    are made anew from the manifest's `recovery`, and with another restart nonce what is held is tried again, unless
    `retried` (`<revision>/<restartNonce>`, from the status) says that an earlier replica has done so. The
    processes of all epochs below `gone_below` are gone for certain: `Services.older_gone(epoch)` is
    `epoch <= gone_below`.
    """

    revision: str
    intent: str
    driver_sinks: frozenset[str] = frozenset()
    gone_below: int = 0
    retried: str = ""


@dataclass(frozen=True, slots=True)
class StopCoordinator(_Action):
    """End this operator's coordinator of the job, where one runs: nothing is owed, or another one does it."""


@dataclass(frozen=True, slots=True)
class BeginAbort(_Action):
    """The coordinator records an abort of the checkpoints from `first` on (`protocol.events.BeginAbort`)."""

    first: int
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteJob(_Action):
    """Delete the SinkJob itself (with its uid as precondition): `ttlSecondsAfterFinished` is over."""


@dataclass(frozen=True, slots=True)
class Emit(_Action):
    """Post an event on the SinkJob. The shell joins equal ones and limits their rate."""

    reason: str
    message: str
    warning: bool = False


Action = (
    AddFinalizer | RemoveFinalizer | EnsureRevision | PruneRevisions | CreateLedger | AdoptLedger | OrphanLedger
    | ReleaseLedger | RaiseEpoch | EnsureAccess | CreateDriver | StopDriver | DeletePod | PruneDriverObjects
    | PruneCommitterObjects | EnsureCommitter | StopCommitter | RunCoordinator | StopCoordinator | BeginAbort
    | DeleteJob | Emit
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now.

    `status` is the whole status; the shell writes it before it applies the actions where `urgent` (it holds something
    that a later plan reads, or that people wait for), else with its usual pause. `look_again_seconds` is the longest
    time until the next look; any hint may come earlier.
    """

    actions: tuple[Action, ...]
    status: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    urgent: bool = False
    look_again_seconds: float = 300.0
