"""The sinks and how checkpoints are committed, restarted, upgraded and recovered.

Part of the models of the manifest; says the shape only, contradictions are in `checks.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from sinkruntime.spec.base import (
    NAME_LENGTH_MAX,
    FreeMap,
    Items,
    Matching,
    Model,
    PositiveDuration,
    Text,
    UniqueItems,
)
from sinkruntime.spec.quantities import Duration
from sinkruntime.spec.source import OptionsFrom

Guarantee = Literal["ExactlyOnce", "EffectivelyOnce", "AtLeastOnce"]
RunOn = Literal["Operator", "Driver", "Job"]
OnFailure = Literal["Fail", "Warn"]
RestartType = Literal["Never", "OnFailure", "Always"]
UpgradeMode = Literal["LastCommit", "Stateless"]
DeletionPolicy = Literal["Drain", "Abort", "Orphan"]
AcceptReason = Literal[
    "TargetAheadOfLedger", "TargetBehindLedger", "TargetAheadOfSource", "LedgerBehindSource",
    "NewCheckpoint", "LedgerLost", "CheckpointOwnedByAnother", "TargetReplaced",
    "CommittableLost", "AbandonPending", "InDoubt", "Aborted",
]  # fmt: skip

SinkName = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?",
        "a sink's name (letters, digits, `-` and `_`; a letter or digit at both ends)",
        NAME_LENGTH_MAX,
    ),
]
# A module of sinkruntime/sinks, an entry point of the group `sinkjob.sinks`, or package.module:Class.
SinkType = Annotated[
    str,
    Matching(
        r"[A-Za-z][A-Za-z0-9_-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*",
        "a sink's type: a name such as `file`, or `package.module:Class`",
        512,
    ),
]


class Retry(Model):
    """Pauses between attempts of a commit that failed for a reason that may pass; each is twice the one before."""

    initial_backoff: PositiveDuration = Field(
        default=Duration.parse("200ms"), description="Pause after the first failure."
    )
    max_backoff: PositiveDuration = Field(default=Duration.parse("30s"), description="Longest pause.")
    max_attempts: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Attempts before the checkpoint is held; 0 is for ever.",
    )


class Commit(Model):
    """How decided checkpoints are made visible in the targets."""

    max_pending: int = Field(
        default=4,
        ge=1,
        le=16,
        description="Checkpoints that may be decided and not yet committed; 1 waits for each commit.",
    )
    timeout: PositiveDuration = Field(
        default=Duration.parse("60s"),
        description="Time limit of the first attempt; doubles per attempt up to `maxTimeout`.",
    )
    max_timeout: PositiveDuration = Field(
        default=Duration.parse("30m"), description="Longest time limit of an attempt."
    )
    retry: Retry = Field(default=Retry(), description="Pauses between attempts.")


class SinkCommit(Model):
    """Where this sink's committer runs."""

    run_on: RunOn | None = Field(
        default=None,
        description="`Operator`, the `Driver`, or a pod of the job's image (`Job`). The default is the sink's.",
    )


class DeadLetter(Model):
    """Where rows go that the target refuses; part of the same decision."""

    sink: SinkName = Field(
        description="Name of another sink of this job. It gets refused rows only, with the columns `sink`, "
        "`checkpoint`, `reason`, `message` and `row` (the row as JSON)."
    )
    max_rows: int = Field(
        default=1000,
        ge=1,
        le=1_000_000_000,
        description="Refused rows per checkpoint; one more fails the checkpoint.",
    )


class SinkSpec(Model):
    """One target. All sinks of a job see the same rows and share one decision."""

    name: SinkName = Field(description="Unique in the job, and stable for its life: a renamed sink is a new sink.")
    type: SinkType = Field(
        description="A sink of `sinkjob sinks`, or `package.module:Class` of your own.",
    )
    guarantee: Guarantee | None = Field(
        default=None,
        description="The least that is asked for. The default is the strongest that the sink can give with these "
        "options; asking for more than it can give is refused.",
    )
    select: Annotated[UniqueItems[Text], Field(min_length=1)] | None = Field(
        default=None,
        description="The columns that this sink gets, in this order: names, or SQL such as `a + b AS c`, a row for a "
        "row. The default is all. Beside other sinks an expression is computed for the rows that `where` drops, too: "
        "write `try_divide` or `try_cast` where it could fail for those.",
    )
    where: Text | None = Field(
        default=None,
        description="An SQL condition; this sink gets only rows for which it is true.",
    )
    options: FreeMap = Field(
        default={},
        description="The sink's own options, documented in `docs/sinks/<type>.md`. Never secret values.",
    )
    options_from: Items[OptionsFrom] = Field(
        default=(),
        description="Further options. A key `catalog.token` sets `token` in the option `catalog`.",
    )
    commit: SinkCommit = Field(default=SinkCommit(), description="Where this sink's committer runs.")
    on_failure: OnFailure = Field(
        default="Fail",
        description="`Warn` goes on when a checkpoint cannot be written to this sink; only with `AtLeastOnce`.",
    )
    dead_letter: DeadLetter | None = Field(default=None, description="Where rows go that the target refuses.")


class Backoff(Model):
    """Pauses between restarts of the driver."""

    initial: PositiveDuration = Field(default=Duration.parse("5s"), description="Pause before the first restart.")
    factor: float = Field(default=2, ge=1, le=100, description="Each pause is this many times the one before.")
    max: PositiveDuration = Field(default=Duration.parse("5m"), description="Longest pause.")


class RestartPolicy(Model):
    """What happens when the driver ends."""

    type: RestartType = Field(
        default="OnFailure",
        description="`OnFailure` restarts a failed driver, `Always` one that ended well too, `Never` none.",
    )
    max_retries: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="Restarts in a row before the job is `Failed`.",
    )
    backoff: Backoff = Field(default=Backoff(), description="Pauses between restarts.")
    reset_after: PositiveDuration = Field(
        default=Duration.parse("10m"),
        description="A driver that ran this long sets the count of restarts back to 0.",
    )


class Upgrade(Model):
    """How a changed manifest takes over."""

    mode: UpgradeMode = Field(
        default="LastCommit",
        description="`LastCommit` goes on from Spark's checkpoint once nothing is pending; `Stateless` begins with a "
        "new one (`recovery.accept: [NewCheckpoint]` is needed too).",
    )


class Recovery(Model):
    """A person's word that a named disagreement may be passed over, once."""

    nonce: int = Field(
        default=0,
        ge=0,
        le=2**53,
        description="Raise it to give your word again; each value counts once.",
    )
    accept: UniqueItems[AcceptReason] = Field(
        default=(), description="The reasons that are passed over once for this nonce."
    )
