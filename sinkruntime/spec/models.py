"""The manifest as one model: `SinkJob` with its `metadata` and `spec`.

Read by `load.py`, imported by all that needs a job's settings. Attributes are snake_case, the manifest's fields
camelCase. Says the shape of each field; what contradicts what is in `checks.py`, so a model alone is not yet checked.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sinkruntime.spec.base import (
    NAME_LENGTH_MAX,
    Items,
    Matching,
    Model,
    PositiveDuration,
    Scalars,
)
from sinkruntime.spec.delivery import (
    Commit,
    DeletionPolicy,
    Recovery,
    RestartPolicy,
    SinkSpec,
    Upgrade,
)
from sinkruntime.spec.pods import (
    Deps,
    Driver,
    DynamicAllocation,
    Executor,
    ImagePullPolicy,
)
from sinkruntime.spec.quantities import Duration
from sinkruntime.spec.source import (
    Checkpoint,
    ObjectRef,
    OutputMode,
    Source,
    TransformStep,
    Trigger,
)

API_GROUP = "sinkjob.io"
API_VERSION = "sinkjob.io/v1alpha1"
KIND = "SinkJob"
SINKS_MAX = 32
STEPS_MAX = 64

Mode = Literal["Streaming", "Batch"]
Label = Annotated[
    str,
    Matching(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
        "a name of lower-case letters, digits and `-`, a letter or digit at both ends",
        NAME_LENGTH_MAX,
    ),
]
Nonce = Annotated[int, Field(ge=0, le=2**53)]

# Written by the API server into every object; a manifest saved from a cluster runs as it is.
_SERVER_FIELDS = frozenset(
    {
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
        "managedFields", "ownerReferences", "resourceVersion", "selfLink",
    }
)  # fmt: skip


class Metadata(Model):
    """The names of the job."""

    name: Label = Field(description="Name of the job, unique in its namespace.")
    namespace: Label = Field(default="default", description="Namespace of the job; without a cluster only a name.")
    labels: dict[str, str] = Field(default={}, description="As on every Kubernetes object.")
    annotations: dict[str, str] = Field(default={}, description="As on every Kubernetes object.")
    uid: str = Field(default="", description="Set by the API server.")
    generation: int = Field(default=0, ge=0, description="Set by the API server.")

    @model_validator(mode="before")
    @classmethod
    def _without_server_fields(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key not in _SERVER_FIELDS}
        return data


class SinkJobSpec(Model):
    """What the job reads, does and writes, and how it is run."""

    mode: Mode = Field(
        default="Streaming",
        description="`Streaming` makes checkpoint after checkpoint; `Batch` one, of all there is, then ends.",
    )
    suspend: bool = Field(
        default=False,
        description="Stops the job at a checkpoint, with nothing pending, and keeps it stopped.",
    )
    image: str = Field(
        default="",
        max_length=1024,
        description="Image of driver and executors. The default is the chart's.",
    )
    image_pull_policy: ImagePullPolicy = Field(default="IfNotPresent", description="As on a Kubernetes container.")
    image_pull_secrets: Items[ObjectRef] = Field(default=(), description="As on a Kubernetes pod.")
    deps: Deps = Field(default=Deps(), description="The users' own code and jars.")
    source: Source = Field(description="Where the rows come from.")
    transform: Annotated[Items[TransformStep], Field(max_length=STEPS_MAX)] = Field(
        default=(), description="Steps from the source's rows to the sinks' rows, in order."
    )
    trigger: Trigger = Field(
        default=Trigger(),
        description="When the next checkpoint is made; only with `mode: Streaming`.",
    )
    output_mode: OutputMode = Field(
        default="Append",
        description="As Spark's: which rows of an aggregation each checkpoint gives; only with `mode: Streaming`.",
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="Where Spark keeps its own progress and state.")
    commit: Commit = Field(default=Commit(), description="How decided checkpoints are made visible.")
    sinks: Annotated[Items[SinkSpec], Field(min_length=1, max_length=SINKS_MAX)] = Field(
        description="The targets: all see the same rows, one decision for all."
    )
    driver: Driver = Field(default=Driver(), description="The Spark driver's pod.")
    executor: Executor = Field(default=Executor(), description="The pods of the Spark executors.")
    dynamic_allocation: DynamicAllocation = Field(
        default=DynamicAllocation(), description="Spark's scaling of the executors."
    )
    spark_conf: Scalars = Field(
        default={},
        description="Settings of Spark. Those that would break the guarantee are refused.",
    )
    service_account_name: str = Field(
        default="",
        max_length=253,
        description="Service account of the driver. The default is the chart's.",
    )
    restart_policy: RestartPolicy = Field(default=RestartPolicy(), description="What happens when the driver ends.")
    upgrade: Upgrade = Field(default=Upgrade(), description="How a changed manifest takes over.")
    deletion_policy: DeletionPolicy = Field(
        default="Drain",
        description="What deleting the SinkJob does to pending checkpoints: `Drain` commits them first, `Abort` "
        "removes them, `Orphan` leaves all as it is.",
    )
    deletion_timeout: PositiveDuration = Field(
        default=Duration.parse("5m"),
        description="After this `Drain` and `Abort` turn into `Orphan`, with an event.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Seconds after which a finished job is deleted. The default is never.",
    )
    restart_nonce: Nonce = Field(
        default=0,
        description="Raise it to restart the driver, to try held commits again, or to run a `Batch` job again.",
    )
    recovery: Recovery = Field(
        default=Recovery(),
        description="A person's word that a named disagreement may be passed over.",
    )


class SinkJob(Model):
    """One job: reads a source, transforms it, writes it to one or more targets."""

    api_version: Literal["sinkjob.io/v1alpha1"] = Field(description="The version of this page.")
    kind: Literal["SinkJob"] = Field(description="The kind of this page.")
    metadata: Metadata = Field(description="The names of the job.")
    spec: SinkJobSpec = Field(description="What the job reads, does and writes, and how it is run.")
    status: Any = Field(
        default=None,
        exclude=True,
        description="Written by the operator; ignored in a manifest.",
    )
