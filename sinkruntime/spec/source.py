"""Where the rows come from and what is done to them: `source`, `transform`, `trigger`, `checkpoint`, `optionsFrom`.

Part of the models of the manifest; says the shape only, contradictions are in `checks.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from sinkruntime.spec.base import Items, Matching, Model, Scalars, Text
from sinkruntime.spec.quantities import Duration

TriggerType = Literal["ProcessingTime", "AvailableNow"]
OutputMode = Literal["Append", "Update", "Complete"]

ObjectName = Annotated[
    str, Matching(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", "the name of a Kubernetes object (a-z, 0-9, `-`, `.`)", 253)
]
PythonObject = Annotated[str, Matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "of the form `package.module:function`", 512)]
EnvironmentName = Annotated[
    str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "a name of environment variables (letters, digits, `_`)", 256)
]


class ObjectRef(Model):
    """A Secret or ConfigMap of the job's namespace, by name."""

    name: ObjectName = Field(description="Name of the object in the namespace of the SinkJob.")


class FileRef(Model):
    """A file on this machine, for `sinkjob run` without a cluster."""

    path: Text = Field(
        description="A file of `KEY=VALUE` lines or a flat YAML mapping (`.yaml`, `.yml`, `.json`); "
        "relative to the manifest."
    )


class EnvRef(Model):
    """Environment variables of this process, for `sinkjob run` without a cluster."""

    prefix: EnvironmentName | None = Field(
        default=None,
        description="Each variable `<prefix><key>` becomes the option `<key>`, its letters as they are. "
        "Either this, or `name` and `key`.",
    )
    name: EnvironmentName | None = Field(default=None, description="One variable, which becomes the option `key`.")
    key: Text | None = Field(default=None, description="The option that the variable `name` becomes.")


class OptionsFrom(Model):
    """One place that options are read from: exactly one of the four."""

    secret_ref: ObjectRef | None = Field(
        default=None,
        description="Each key of the Secret becomes an option. Without a cluster its keys are the files in "
        "`.sinkjob/secrets/<name>/` beside the manifest.",
    )
    config_map_ref: ObjectRef | None = Field(
        default=None,
        description="Each key of the ConfigMap becomes an option. Without a cluster its keys are the files in "
        "`.sinkjob/configmaps/<name>/` beside the manifest.",
    )
    file_ref: FileRef | None = Field(default=None, description="A local file; only where there is no cluster.")
    env_ref: EnvRef | None = Field(default=None, description="Environment variables; only where there is no cluster.")


class Watermark(Model):
    """How late a row may be (Spark's `withWatermark`)."""

    column: Text = Field(description="A timestamp column of the source.")
    delay: Duration = Field(
        description="Rows that are later than this behind the newest are dropped by stateful steps."
    )


class Source(Model):
    """Any Spark source by its format name."""

    format: Text = Field(description="Spark's name of the source: `csv`, `json`, `parquet`, `kafka`, `rate`, …")
    path: Text | None = Field(
        default=None,
        description="What file sources read. Relative to the manifest where there is no cluster.",
    )
    schema_ddl: Text | None = Field(
        default=None,
        alias="schema",
        description="The columns as DDL, such as `year INT, carrier STRING`. Streaming file sources need it.",
    )
    options: Scalars = Field(default={}, description="Options of the Spark source, as text, numbers, true or false.")
    options_from: Items[OptionsFrom] = Field(default=(), description="Further options, the only place for secret ones.")
    watermark: Watermark | None = Field(default=None, description="How late a row may be; stateful transforms need it.")


class TransformStep(Model):
    """One step: exactly one of `sql` and `python`. Its input is the view `input`, or the DataFrame."""

    sql: Text | None = Field(default=None, description="A query over the view `input`.")
    python: PythonObject | None = Field(
        default=None,
        description="`package.module:function`, called with a DataFrame, returns a DataFrame.",
    )


class Trigger(Model):
    """When Spark makes the next checkpoint of a streaming job."""

    type: TriggerType = Field(
        default="ProcessingTime",
        description="`ProcessingTime` goes on until it is stopped; `AvailableNow` ends when all that is there is done.",
    )
    interval: Duration = Field(
        default=Duration.parse("10s"),
        description="Time from the start of one checkpoint to the start of the next, with `ProcessingTime`; "
        "`0s` is as fast as possible.",
    )


class Checkpoint(Model):
    """Where Spark keeps its own progress and state."""

    location: Text | None = Field(
        default=None,
        description="Directory or URI (`file`, `hdfs`, `s3a`, `gs`, `abfs`, `abfss`) that belongs to this job "
        "alone; its storage must be able to create a file only if it is absent. Without a cluster the default is "
        "`.sinkjob/<namespace>/<name>/checkpoint` beside the manifest.",
    )
    options_from: Items[OptionsFrom] = Field(
        default=(), description="Hadoop settings for the location, such as `fs.s3a.secret.key`."
    )
