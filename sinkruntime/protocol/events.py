"""What can happen to a ledger (events), what must then be done (effects), and why an event may be refused.

Each event is one compare-and-swap on the ledger; the comment beside it says who sends it. Effects are never
stored: `machine.outstanding` reads them off the ledger, so a process that takes over owes exactly the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from sinkruntime.protocol.ledger import Acceptance, Authority, Payload, Record


class Refusal(StrEnum):
    """Why the ledger did not take an event. The ledger is then unchanged."""

    STALE_EPOCH = "StaleEpoch"  # an older driver run: fenced
    NOT_CLAIMED = "NotClaimed"  # another process of the same epoch, or one that has not claimed it: fenced
    ALREADY_CLAIMED = "AlreadyClaimed"  # a second process started under one epoch: fenced
    STALE_TOKEN = "StaleToken"  # an older coordinator: fenced
    NOT_NEXT = "NotNext"  # the number is taken, perhaps by one's own record
    NO_SLOT = "NoSlot"  # `maxPending` checkpoints are pending
    OLDER_PENDING = "OlderPending"  # checkpoints of an older epoch are still pending
    NOT_RECOVERED = "NotRecovered"  # `recover` has not run in this epoch
    EXPIRES_TOO_SOON = "ExpiresTooSoon"  # staged data would not live through two commit attempts
    QUERY_CHANGED = "QueryChanged"  # the batch belongs to another streaming query
    OLDER_BATCH = "OlderBatch"  # the batch was decided already, or comes before the last one that was
    NOT_PREDECESSOR = "NotPredecessor"  # the batch does not start where the last decision ended
    BATCH_DECIDED = "BatchDecided"  # this batch job was decided already
    ABORTED = "Aborted"  # checkpoints were aborted, and nobody has accepted that yet
    UNKNOWN_PART = "UnknownPart"  # no such checkpoint or sink is on record
    NOT_ALLOWED = "NotAllowed"  # the table has no such transition
    OUT_OF_ORDER = "OutOfOrder"  # an earlier checkpoint of the sink comes first
    HAS_COMMITTED_PART = "HasCommittedPart"  # a checkpoint of which a sink is committed is never aborted
    ALREADY_ACCEPTED = "AlreadyAccepted"  # a reason is accepted once per nonce


#: Refusals that tell a driver that it is not the one: it raises and exits.
FENCING = frozenset({Refusal.STALE_EPOCH, Refusal.NOT_CLAIMED, Refusal.ALREADY_CLAIMED, Refusal.STALE_TOKEN})


class Refused(Exception):
    """An event that the ledger does not take."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(f"{refusal}: {message}")
        self.refusal = refusal
        self.message = message


class OutcomeKind(StrEnum):
    """What became of a part. The first three are outcomes of a commit attempt."""

    COMMITTED = "committed"  # it is visible, by this attempt or an earlier one
    REFUSED = "refused"  # this attempt was turned down; that none landed is not said
    UNKNOWN = "unknown"  # the answer is lost: the target must be asked
    PROGRESS = "progress"  # some committables are committed, the others will be tried again
    ABSENT = "absent"  # the target was asked, and does not have it
    FENCED = "fenced"  # the target will refuse a late commit
    CLEANED = "cleaned"  # nothing staged is left of it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sink's part of one checkpoint.

    `evidence` says that the target now holds evidence of this very checkpoint. `done` are ranges of committables
    known to be committed, `payload` replaces the part's own where committables were updated.
    """

    number: int
    sink: str
    kind: OutcomeKind
    evidence: bool = False
    done: tuple[tuple[int, int], ...] = ()
    payload: Payload | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TargetView:
    """What a target itself says of a sink: the last checkpoint of which it holds evidence, and who it is."""

    evidence: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True)
class RaiseEpoch:  # whoever starts drivers, before it starts a process
    epoch: int


@dataclass(frozen=True, slots=True)
class ClaimEpoch:  # the driver process, first of all
    epoch: int
    claimant: str


@dataclass(frozen=True, slots=True)
class RaiseToken:  # a coordinator, before its tenure's first commit
    token: int
    holder: str


@dataclass(frozen=True, slots=True)
class NoteRecovered:  # a coordinator, after `recover` ran for its sinks
    authority: Authority
    fence: int  # the token, or the epoch
    epoch: int
    final: bool  # the processes of all older epochs were confirmed gone before it ran


@dataclass(frozen=True, slots=True)
class Decide:  # the driver: this is the decision
    record: Record
    claimant: str
    max_pending: int
    commit_timeout_seconds: float
    remaining_life_seconds: float | None = None  # the shortest of the committables'; None: nothing expires
    states: Mapping[str, Payload] = field(default_factory=lambda: MappingProxyType({}))
    targets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batch: str = ""  # identity of a batch job


@dataclass(frozen=True, slots=True)
class Report:  # a coordinator: the outcomes of a round
    authority: Authority
    fence: int  # the token, or the epoch
    outcomes: tuple[Outcome, ...]
    reported_ms: int = 0  # wall time, for people


@dataclass(frozen=True, slots=True)
class Release:  # a coordinator, on a new revision, a restart or a person's `retry`: held parts are tried again
    authority: Authority
    fence: int


@dataclass(frozen=True, slots=True)
class BeginAbort:  # a coordinator, on a person's word or `deletionPolicy: Abort`; takes the suffix from `first` on
    token: int
    first: int
    who: str
    why: str
    words: tuple[Acceptance, ...] = ()  # the person's word that it takes up, which is spent by it


@dataclass(frozen=True, slots=True)
class Forget:  # a coordinator, after the payload objects of these settled checkpoints are removed
    token: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accept:  # whoever found the disagreement, driver or coordinator, on `recovery.accept`
    authority: Authority
    fence: int  # the token, or the epoch
    nonce: int
    reason: str
    detail: str = ""
    rebase: bool = False  # the next batch need not start where the last decision ended
    views: Mapping[str, TargetView] = field(default_factory=lambda: MappingProxyType({}))  # taken over as they are
    lost: tuple[tuple[int, str], ...] = ()  # parts (checkpoint, sink) that are given up
    landed: tuple[tuple[int, str], ...] = ()  # parts in doubt that a person says are in the target


Event = RaiseEpoch | ClaimEpoch | RaiseToken | NoteRecovered | Decide | Report | Release | BeginAbort | Forget | Accept


class Action(StrEnum):
    """What is to be done about a part, a checkpoint or an epoch."""

    COMMIT = "commit"  # make the part visible
    PROBE = "probe"  # ask the target whether it has the part; commit it if it has not
    HOLD = "hold"  # say why it is held; ask the target, but do not commit
    FENCE = "fence"  # make the target refuse a late commit
    CLEAN = "clean"  # remove the losing attempts' staged data
    DISCARD = "discard"  # remove an aborted part's staged data
    REMOVE_PAYLOADS = "remove_payloads"  # remove a settled checkpoint's payload objects
    RECOVER = "recover"  # remove what undecided checkpoints of older epochs staged


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that is owed. `number` is the checkpoint's, or for `RECOVER` the epoch below which to look."""

    action: Action
    number: int
    sink: str = ""
    authority: Authority = Authority.TOKEN
