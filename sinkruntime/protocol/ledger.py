"""The ledger's state: what is durably known of a job's checkpoints, as plain values.

`machine.step` makes new values from old ones, `codec` writes and reads them, the ledger stores keep them.
This module holds no rule: it never decides anything, and it knows no clock, thread, file or cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class CheckpointState(StrEnum):
    """Where a checkpoint stands. Before `DECIDED` it never happened; after `COMMITTED` it is visible everywhere."""

    DECIDED = "decided"  # the record is durable: the checkpoint will be committed
    COMMITTED = "committed"  # every sink is committed; losing attempts and payloads are still to be removed
    SETTLED = "settled"  # nothing staged is left; only payload objects are still to be removed
    ABORTING = "aborting"  # a person asked for it; each sink is being fenced against a late commit
    ABORTED = "aborted"  # fenced in every sink, never to become visible; staged data is being removed


class PartState(StrEnum):
    """Where one sink's part of a checkpoint stands."""

    PENDING = "pending"  # no commit of it can be under way but by the present tenure
    IN_DOUBT = "in_doubt"  # a commit may have landed: ask the target first
    HELD = "held"  # turned down, with a reason; the next look asks the target first
    COMMITTED = "committed"  # visible in the target
    CLEANED = "cleaned"  # visible or aborted, and nothing staged is left
    FENCED = "fenced"  # being aborted: the target will refuse a late commit
    GIVEN_UP = "given_up"  # a person accepted its loss


#: Part states that end a part for good: nothing more will become visible, nothing is owed.
FINAL_PARTS = frozenset({PartState.COMMITTED, PartState.CLEANED, PartState.GIVEN_UP})


class Authority(StrEnum):
    """Whose word on a part counts: the coordinator's, under the token, or the driver's, under the epoch."""

    TOKEN = "token"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Offsets:
    """One end of a batch in the source: the source lines of Spark's `offsets/<batch>`.

    `digest` is the SHA-256 of these lines and, where a source's offset is only an index, of what the index
    stands for (see `position.digest`). `text` is for people; it is "" where it was too long to keep.
    """

    digest: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """Which rows a checkpoint holds: Spark's query and batch, and the source offsets (start excluded, end included)."""

    query_id: str
    batch_id: int
    start: Offsets
    end: Offsets

    def same_rows(self, other: Position) -> bool:
        """Whether both stand for the same rows; texts do not matter."""
        mine = (self.query_id, self.batch_id, self.start.digest, self.end.digest)
        return mine == (other.query_id, other.batch_id, other.start.digest, other.end.digest)


@dataclass(frozen=True, slots=True)
class Payload:
    """Serialized committables, or writer states, of one sink: in the ledger itself, or beside it.

    Exactly one of `inline` (base64 of the bytes) and `pointer` (object name in the payload store) is set.
    `sha256` is that of the bytes, checked whenever they are read.
    """

    sha256: str
    size_bytes: int
    inline: str | None = None
    pointer: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One sink's part of a checkpoint.

    `done` counts the committables that are known to be committed, as sorted, disjoint, inclusive ranges of
    indexes; `attempts` counts the commit rounds that are on record.
    """

    payload: Payload | None = None
    rows: int = 0
    state: PartState = PartState.PENDING
    authority: Authority = Authority.TOKEN
    done: tuple[tuple[int, int], ...] = ()
    attempts: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A decision record: a checkpoint's entry in the ledger, one for all its sinks.

    `record_id` is the decision's own identity, by which a driver that lost the answer knows its record again.
    `revision` names the spec revision whose sinks commit it. `decided_ms` is for people: no rule reads it.
    """

    number: int
    record_id: str
    epoch: int
    revision: str
    position: Position
    parts: Mapping[str, Part]
    state: CheckpointState = CheckpointState.DECIDED
    decided_ms: int = 0
    superseded: tuple[str, ...] = ()  # payload objects that this decision made useless; removed with its own
    who: str = ""  # of an abort
    why: str = ""  # of an abort

    @property
    def pending(self) -> bool:
        """Whether it is decided and neither committed nor aborted: it takes one of the `maxPending` slots."""
        return self.state in (CheckpointState.DECIDED, CheckpointState.ABORTING)


@dataclass(frozen=True, slots=True)
class Settled:
    """What is kept of a checkpoint whose record has left the ledger: for people, no rule reads it.

    `rows` is by sink; `start` and `end` are the source offsets, "" where they are longer than `SETTLED_TEXT_CHARS_MAX`.
    """

    number: int
    epoch: int
    revision: str
    batch_id: int
    start: str = ""
    end: str = ""
    rows: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    decided_ms: int = 0
    aborted: bool = False

    @classmethod
    def of(cls, record: Record, aborted: bool) -> Settled:
        """What is kept of a record."""
        at = record.position
        start, end = (text if len(text) <= SETTLED_TEXT_CHARS_MAX else "" for text in (at.start.text, at.end.text))
        rows = {sink: part.rows for sink, part in record.parts.items()}
        return cls(
            record.number, record.epoch, record.revision, at.batch_id, start, end, rows, record.decided_ms, aborted
        )  # fmt: skip


#: How many settled checkpoints are kept, and how much of their offsets: 20 times 1 KiB at most, beside the records.
HISTORY_MAX = 20
SETTLED_TEXT_CHARS_MAX = 400


@dataclass(frozen=True, slots=True)
class LastDecision:
    """What outlives a record: where the source stands, and the states for the next checkpoint's writers."""

    number: int
    record_id: str
    position: Position
    states: Mapping[str, Payload] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """What the ledger knows of one sink over the job's life.

    `since` is the first checkpoint that had it, `committed` the last one that it committed, `evidence` the last one
    that left evidence in the target (0: none; an empty checkpoint may leave none), `target` the target's own
    identity, such as a table's UUID ("" where it has none). `rows` is the sum over its committed parts, `committed_ms`
    the wall time at which the last of them was reported; both are for people, no rule reads them.
    """

    since: int
    committed: int = 0
    evidence: int = 0
    target: str = ""
    rows: int = 0
    committed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """A recorded abort of the checkpoints `first` to `last`: a person's word, or the job's deletion policy."""

    first: int
    last: int
    who: str
    why: str
    accepted: bool = False  # a person accepted `Aborted`: the job goes on without these rows


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A person's `recovery.accept`, taken once per nonce."""

    nonce: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The durable record of a job's checkpoints.

    `firsts[e - 1]` is the first number that epoch `e` could decide. Epoch `e` therefore decided the numbers from
    `firsts[e - 1]` up to the one before `firsts[e]`; these ranges are kept for ever (see `garbage`).
    `records` holds, in order of their numbers, what is not yet settled, `history` the newest of what is.
    `recovered` holds, per authority, the newest epoch for which `recover` has run, `closed` the newest for which it
    ran after the processes of all older epochs were confirmed gone.
    `batches` names the batch jobs (spec revision and restart nonce) that are decided.
    """

    ledger_id: str
    job: str
    epoch: int = 0
    claim: str = ""
    token: int = 0
    holder: str = ""
    decided: int = 0
    recovered: Mapping[Authority, int] = field(default_factory=lambda: MappingProxyType({}))
    closed: Mapping[Authority, int] = field(default_factory=lambda: MappingProxyType({}))
    firsts: tuple[int, ...] = ()
    last: LastDecision | None = None
    records: tuple[Record, ...] = ()
    sinks: Mapping[str, SinkEntry] = field(default_factory=lambda: MappingProxyType({}))
    batches: tuple[str, ...] = ()
    aborts: tuple[Abort, ...] = ()
    acceptances: tuple[Acceptance, ...] = ()
    history: tuple[Settled, ...] = ()

    def record(self, number: int) -> Record | None:
        """The record of checkpoint `number`, or None where it is settled or was never decided."""
        return next((record for record in self.records if record.number == number), None)

    @property
    def pending(self) -> tuple[Record, ...]:
        """The checkpoints that are decided and neither committed nor aborted, in order."""
        return tuple(record for record in self.records if record.pending)
