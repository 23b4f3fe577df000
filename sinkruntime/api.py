"""The sink interface: what an author of a sink writes, and what the runtime promises to call.

A sink has up to three tiers. A `SinkWriter` runs in an executor task and stages rows where no reader sees them;
a `SinkCommitter` makes each writer's committable visible, independently and in parallel; a `SinkAggregatedCommitter`
makes a whole checkpoint visible in one global operation, alone, after the committers. `Sink` is their factory.
A target that cannot stage has neither committer; its rows are visible before the decision, and it offers no more than
`AtLeastOnce` or `EffectivelyOnce`.

Construct cheaply: constructors keep settings only; connect in `open`. A `Sink` is pickled to the executors.
Anything may be killed at any instant: no method may rely on `close` or `abort` having run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pydantic import BaseModel

from sinkruntime.dead_letters import Reject, reject_nothing
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.serializers import JsonSerializer, Serializer

#: One writer's committable, one checkpoint's aggregated committable, one writer's state: any value of the sink's own
#: that its serializer can write. Small: metadata, never rows.
Committable = Any


class Guarantee(Enum):
    """How often a row of the source arrives, weakest first."""

    AT_LEAST_ONCE = "AtLeastOnce"
    EFFECTIVELY_ONCE = "EffectivelyOnce"  # it may be sent twice, and the target keeps it once
    EXACTLY_ONCE = "ExactlyOnce"

    def __ge__(self, other: Guarantee) -> bool:
        ranks = list(Guarantee)
        return ranks.index(self) >= ranks.index(other)


@dataclass(frozen=True, slots=True)
class Offer:
    """The strongest guarantee that a sink can give with its options, and why not more (or how it keeps it)."""

    guarantee: Guarantee
    why: str
    visible: str = ""  # how a checkpoint becomes visible, where it is not as its committers say


class RunOn(StrEnum):
    """Where a sink's committers run by default."""

    OPERATOR = "Operator"
    DRIVER = "Driver"  # it needs what only the driver has, such as a local volume
    JOB = "Job"  # it needs code that only the job's image has


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """Whose sink it is. Everything that a sink names in its target is keyed by (`ledger_id`, `sink`, checkpoint)."""

    ledger_id: str
    sink: str
    job: str  # namespace/name, for people only


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a committable comes from: which writer of how many, of which checkpoint and driver run."""

    checkpoint: int
    epoch: int
    subtask: int
    subtasks: int
    attempt: int  # of the task; two attempts of one subtask never share one


class Counter(Protocol):
    """A metric that only grows."""

    def __call__(self, name: str, amount: float = 1) -> None: ...


class Clock(Protocol):
    """Seconds: `wall` since 1970, `monotonic` since any instant."""

    def wall(self) -> float: ...
    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a writer is told. `unique` is random per writer: staged names hold it, so two attempts never collide."""

    identity: SinkIdentity
    lineage: Lineage
    unique: str
    schema: pa.Schema  # of every batch that `write` is given: the sink's `select`, in order
    count: Counter
    clock: Clock
    reject: Reject = reject_nothing  # called from `write`, `flush` or `prepare_commit`
    pending_max: int = 1  # `commit.maxPending`: so many earlier checkpoints may be staged and not yet committed

    @property
    def stem(self) -> str:
        """A name for what this writer stages, like no other's: checkpoint, epoch, subtask, attempt, random."""
        at = self.lineage
        return f"{at.checkpoint:012d}-{at.epoch}-{at.subtask:05d}-{at.attempt}-{self.unique}"


class SinkWriter(ABC):
    """Writes one task's rows of one checkpoint. Called in this order, from one thread:

    `open`, then `write` for each batch (none for an empty task), `write_watermark` when the source has one,
    `flush(end_of_input=True)`, `prepare_commit`, `snapshot_state`, `close`. On an error in any of them:
    `abort_prepare` once, then `close`. A killed process calls nothing more.
    """

    def open(self) -> None:  # noqa: B027  (nothing to connect to by default)
        """Connect. Called once, in the executor."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Stage one batch, of `context.schema`. May buffer; must bound what it buffers."""

    def write_watermark(self, watermark_ms: int) -> None:  # noqa: B027
        """The source's event-time watermark for this checkpoint, in ms since 1970."""

    def flush(self, end_of_input: bool) -> None:  # noqa: B027
        """Write out what is buffered. `end_of_input`: no `write` follows in this checkpoint."""

    @abstractmethod
    def prepare_commit(self, checkpoint: int) -> Committable | None:
        """Make what was staged durable and say how to commit it; None: nothing was staged. No reader sees any of it."""

    def remaining_life_seconds(self) -> float | None:
        """After `prepare_commit`: how long the staged data will live (a transaction's timeout); None: for ever."""
        return None

    def abort_prepare(self) -> None:  # noqa: B027
        """Take back what this writer staged, if anything. Best effort: `recover` removes what is left."""

    def snapshot_state(self, checkpoint: int) -> Sequence[Any]:
        """States for the next checkpoint's writers; they travel in the decision record, and are remapped by index."""
        return ()

    def notify_committed(self, checkpoint: int) -> None:  # noqa: B027
        """Checkpoint became visible. Only called where the writer lives that long; rely on nothing here."""

    def notify_aborted(self, checkpoint: int) -> None:  # noqa: B027
        """Checkpoint was aborted. As `notify_committed`."""

    def close(self) -> None:  # noqa: B027
        """Release everything, also after an error; never publish anything."""


class Answer(StrEnum):
    """What a committer says of one request."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already_committed"
    RETRY_LATER = "retry_later"  # an error that may pass
    UPDATE_AND_RETRY_LATER = "update_and_retry_later"  # the same, with another committable
    REFUSED = "refused"  # turned down, and why: held until a person or a new revision changes something
    UNKNOWN = "unknown"  # the answer is lost: probe
    ABSENT = "absent"  # of a probe: the target does not have it
    FENCED = "fenced"  # of `fence`: a late commit will fail


@dataclass(slots=True)
class CommitRequest:
    """One committable to commit, probe, fence or discard, and the answer to it.

    A request that is unanswered when the method returns counts as committed (absent, of a probe; fenced, of
    `fence`). One that is unanswered when the method raises or runs out of time counts as unknown.
    """

    committable: Committable
    lineage: Lineage  # of an aggregated one: subtask 0 of 1
    previous: int  # the evidence that this sink must hold before: the last checkpoint that left any, or 0
    retries: int = 0
    may_have_landed: bool = False  # an earlier attempt, perhaps another process's, may be in the target
    order: tuple[int, int] = (0, 0)  # the token or epoch it is sent under, and a count of the sender's that only grows
    answer: Answer | None = None
    reason: str = ""
    message: str = ""
    evidence: bool = True  # the target holds evidence of this checkpoint now; an aggregated committer may say no

    def reply(self, answer: Answer, reason: str = "", message: str = "") -> None:
        """Answer; the last answer counts."""
        self.answer, self.reason, self.message = answer, reason, message

    def update(self, committable: Committable, message: str = "") -> None:
        """Ask for another try with another committable."""
        self.committable = committable
        self.reply(Answer.UPDATE_AND_RETRY_LATER, message=message)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the target itself proves: the last checkpoint of (ledger id, sink), and the target's own identity."""

    checkpoint: int = 0
    target: str = ""
    detail: str = ""  # for people: where it stands


class CommitterBase(ABC):
    """What both committers share. One instance serves one sink in one process; methods may run in any thread, one at
    a time for an aggregated committer, several at once for a `SinkCommitter`.
    """

    def open(self) -> None:  # noqa: B027
        """Connect. Called once before anything else; raises `TargetError` where the target is not reachable."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Make them visible and answer each. Repeatable: what is there already is `ALREADY_COMMITTED`.

        Where `may_have_landed` is set, `probe` has been asked first, and has answered `ABSENT`. A fence turns down
        (`REFUSED`, `Fenced`) each request whose `order` is not above the fence's; one above it lifts the fence.
        """

    @abstractmethod
    def probe(self, requests: Sequence[CommitRequest]) -> None:
        """Ask the target whether they landed: `ALREADY_COMMITTED`, `ABSENT`, or `UNKNOWN` where it cannot tell."""

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """Make every commit up to this `order` fail, whenever it arrives, before an abort: `FENCED`, or
        `ALREADY_COMMITTED`. Removes nothing."""
        for request in requests:
            request.reply(Answer.UNKNOWN, "CannotFence", "this sink cannot fence a late commit, so nothing is aborted")

    def abort(self, requests: Sequence[CommitRequest]) -> None:  # noqa: B027
        """Remove what the requests staged, after the abort is on record. Repeatable; unknown ones are no error."""

    def recover(self, garbage: Garbage) -> None:  # noqa: B027
        """Remove what undecided checkpoints of older epochs staged, by `garbage`. Called before the first batch of an
        epoch and again later; repeatable. Never touches what it was not told about."""

    def clean(self, checkpoint: int, epoch: int) -> Mapping[str, float] | None:  # noqa: B027
        """Remove losing attempts' staged data of a checkpoint that is over. Repeatable. May return `SINK_GAUGES`."""

    def close(self) -> None:  # noqa: B027
        """Release everything."""


class SinkCommitter(CommitterBase):
    """Commits each writer's committable, independently of the others: called with chunks of them, in parallel."""


class SinkAggregatedCommitter(CommitterBase):
    """Commits whole checkpoints, in order, alone. `commit` may get several pending ones at once, oldest first."""

    @abstractmethod
    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        """One aggregated committable from those of all writers, ordered by subtask; may be empty. Deterministic."""

    def restore_commit(self, requests: Sequence[CommitRequest]) -> None:
        """As `commit`, for checkpoints that a former process had decided: `probe` first unless a sink knows better."""
        self.probe(requests)
        absent = [request for request in requests if request.answer in (None, Answer.ABSENT)]
        for request in absent:
            request.answer = None
        self.commit(absent)


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a sink wants its rows before writing (its pre-write topology): hashed by `keys` into `partitions` tasks
    (0: as many as there are), each task's rows sorted by `sort_by`. Sinks with equal ones share a pass."""

    keys: tuple[str, ...] = ()
    partitions: int = 0
    sort_by: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()  # of Spark's SQL, beside `keys`
    by_range: bool = False  # ranges of them instead of their hash


@dataclass(frozen=True, slots=True)
class StageContext:
    """What `Sink.stage` is told; names must hold `stem` (checkpoint, epoch, random), as a writer's do."""

    identity: SinkIdentity
    checkpoint: int
    epoch: int
    stem: str
    clock: Clock


class Sink(ABC):
    """The factory of a sink's parts, made from its options. Cheap to construct, and picklable."""

    Options: ClassVar[type[BaseModel]]
    summary: ClassVar[str]  # one line, for `sinkjob sinks`
    #: Its writers may call `context.reject`: `deadLetter` is of use. A property of `Options` of this name narrows it.
    rejects_rows: ClassVar[bool] = False

    def __init__(self, options: Any, identity: SinkIdentity) -> None:
        self.options = options
        self.identity = identity

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        """The options with local paths that are relative begun at `base`, the manifest's directory. Local mode only."""
        return options

    @classmethod
    @abstractmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        """The strongest guarantee with these options. `facts` is what `inspect` found; {} when nothing was asked."""

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        """Where its committers run, with these options, unless the manifest says otherwise."""
        return RunOn.OPERATOR

    @classmethod
    def pending_max(cls, options: Any) -> int | None:
        """The most that `commit.maxPending` may be with these options: 1 where writers build on what the target holds,
        so that every earlier checkpoint must be committed before they begin; None: any number."""
        return None

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one task of one checkpoint."""

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter:
        """As `create_writer`, with the states that were remapped to this subtask."""
        return self.create_writer(context)

    def create_committer(self) -> SinkCommitter | None:
        """None: the sink has no such tier."""
        return None

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        """None: the sink has no such tier."""
        return None

    def inspect(self) -> Mapping[str, Any]:
        """Facts about the target that bear on the guarantee (limits, settings). Connects; raises `TargetError`."""
        return {}

    def evidence(self) -> Evidence | None:
        """What the target proves of (ledger id, sink) at this moment; None: this sink keeps no evidence. Connects."""
        return None

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        """What the target proves of one checkpoint, a sentence for people; None: nothing. Connects."""
        return None

    def staged_life_seconds(self) -> float | None:
        """How long the target keeps what a writer has prepared, with these options; None: for ever. `sinkjob plan` says
        it as the time that committer and target may be down together. Never connects."""
        return None

    def prepare_target(self, schema: pa.Schema) -> None:  # noqa: B027
        """Once per driver start, before the first batch: create what is missing, or raise `TargetError` (which column,
        what the target has, what it would get). Repeatable."""

    def write_schema(self) -> pa.Schema | None:
        """The schema of the table that it writes, where there is one."""
        return None

    def distribution(self) -> Distribution | None:
        """How it wants its rows; None: as they come, in one pass with all such sinks."""
        return None

    def stage(self, df: Any, context: StageContext) -> Sequence[Committable] | None:
        """Let Spark's own writer stage the whole DataFrame `df`, in one action, and say how to commit what it wrote.
        None: it does not, and writers are used. Asked only of a job's only sink."""
        return None

    def can_stage(self) -> bool:
        """Whether `stage` would be used."""
        return False

    def must_stage(self) -> bool:
        """Whether it has no writers: `stage` is then called beside other sinks, too, over the same persisted batch."""
        return False

    def staged_rows(self, committable: Committable) -> int:
        """How many rows a committable that `stage` returned stands for; 0: not known."""
        return 0

    def pre_commit(self, committables: Sequence[tuple[Lineage, Committable]]) -> Sequence[tuple[Lineage, Committable]]:
        """Merge or rewrite a checkpoint's committables before they are committed. Deterministic, and harmless when
        it is given its own result, as after an update."""
        return committables

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Committable]]) -> None:  # noqa: B027
        """After a checkpoint is committed (compaction, success files, notification). Failing never undoes a commit.
        May run twice, or not at all when the process dies."""

    committable_serializer: ClassVar[Serializer] = JsonSerializer()
    state_serializer: ClassVar[Serializer] = JsonSerializer()
