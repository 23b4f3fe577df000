"""The contradictions in a manifest's source, transform, trigger and checkpoint: one named check each.

Listed in `SOURCE_CHECKS`, called by `checks.py` only. Never looks outside the manifest.
"""

import posixpath
import re
from collections.abc import Callable, Iterator

from sinkruntime.spec.ddl import column_names
from sinkruntime.spec.models import SinkJob
from sinkruntime.spec.paths import Finding, suggestion

FILE_FORMATS_WITH_SCHEMA = frozenset({"avro", "csv", "json", "orc", "parquet", "xml"})
FILE_FORMATS = FILE_FORMATS_WITH_SCHEMA | {"text", "binaryfile"}
STREAM_ONLY_FORMATS = frozenset({"rate", "rate-micro-batch", "socket"})
OWN_SCHEMA_FORMATS = STREAM_ONLY_FORMATS | {"kafka"}
# What Spark can write its checkpoint to with create-if-absent; "" is a path without a scheme.
CHECKPOINT_SCHEMES = ("abfs", "abfss", "file", "gs", "hdfs", "s3a", "viewfs")


def batch_has_no_trigger(job: SinkJob) -> Iterator[Finding]:
    if job.spec.mode == "Batch" and "trigger" in job.spec.model_fields_set:
        expected = "leave it out, or set `mode: Streaming` (`type: AvailableNow` ends by itself)"
        yield Finding(("spec", "trigger"), "a `Batch` job makes one checkpoint and has no trigger", expected)


def batch_appends(job: SinkJob) -> Iterator[Finding]:
    if job.spec.mode == "Batch" and job.spec.output_mode != "Append":
        message = f"`{job.spec.output_mode}` is for streaming jobs; a `Batch` job gives its whole result once"
        yield Finding(("spec", "outputMode"), message, "leave it out")


def complete_needs_an_aggregation(job: SinkJob) -> Iterator[Finding]:
    if job.spec.mode == "Streaming" and job.spec.output_mode == "Complete" and not job.spec.transform:
        message = "`Complete` gives the whole result of an aggregation at each checkpoint, and there is no transform"
        yield Finding(("spec", "outputMode"), message, "use `Append`, or aggregate in spec.transform")


def available_now_has_no_interval(job: SinkJob) -> Iterator[Finding]:
    trigger = job.spec.trigger
    if trigger.type == "AvailableNow" and "interval" in trigger.model_fields_set:
        yield Finding(("spec", "trigger", "interval"), "has no meaning with `AvailableNow`", "leave it out")


def file_stream_has_a_schema(job: SinkJob) -> Iterator[Finding]:
    source = job.spec.source
    if job.spec.mode == "Streaming" and source.format.lower() in FILE_FORMATS_WITH_SCHEMA and source.schema_ddl is None:
        message = f"a stream of {source.format} files needs a schema: files that come later must mean the same"
        yield Finding(
            ("spec", "source", "schema"), message, "write the columns as DDL, such as `year INT, carrier STRING`"
        )


def file_source_has_a_path(job: SinkJob) -> Iterator[Finding]:
    source = job.spec.source
    if source.format.lower() in FILE_FORMATS and source.path is None:
        yield Finding(("spec", "source", "path"), f"is required for the format `{source.format}`")
    for key in source.options:
        if key.lower() == "path":
            yield Finding(("spec", "source", "options", key), "the path is a field of its own", "use spec.source.path")


def file_source_is_no_sinks_target(job: SinkJob) -> Iterator[Finding]:
    """Else each checkpoint would read what the one before it has committed."""
    source = job.spec.source
    if source.format.lower() not in FILE_FORMATS or source.path is None:
        return
    read = {_directory(source.path)}
    if source.path.endswith("/*"):  # every file in it; whose names another pattern takes is not looked into
        read.add(_directory(source.path[:-1]))
    for index, sink in enumerate(job.spec.sinks):
        path = sink.options.get("path")
        if sink.type == "file" and isinstance(path, str) and _directory(path) in read:
            message = "is spec.source.path, too: what this sink commits would be read again as new rows"
            yield Finding(("spec", "sinks", index, "options", "path"), message, "give it a directory of its own")


def _directory(path: str) -> str:
    """One text for the spellings of a directory."""
    scheme, mark, rest = re.sub("^file:(//)?(?=/)", "", path).rpartition("://")
    return scheme.replace("s3a", "s3") + mark + posixpath.normpath(rest)


def source_with_own_schema_has_no_other(job: SinkJob) -> Iterator[Finding]:
    source = job.spec.source
    if source.format.lower() in OWN_SCHEMA_FORMATS:
        for name, value in (("schema", source.schema_ddl), ("path", source.path)):
            if value is not None:
                yield Finding(("spec", "source", name), f"the source `{source.format}` takes no {name}", "leave it out")


def source_can_be_read_in_this_mode(job: SinkJob) -> Iterator[Finding]:
    if job.spec.mode == "Batch" and job.spec.source.format.lower() in STREAM_ONLY_FORMATS:
        message = f"`{job.spec.source.format}` never ends and cannot be read by a `Batch` job"
        yield Finding(("spec", "source", "format"), message, "set `mode: Streaming`")


def source_can_replay_for_the_guarantee(job: SinkJob) -> Iterator[Finding]:
    if job.spec.source.format.lower() != "socket":
        return
    for index, sink in enumerate(job.spec.sinks):
        if sink.guarantee not in (None, "AtLeastOnce"):
            message = f"`{sink.guarantee}` needs a source that can be read again, and `socket` cannot"
            yield Finding(("spec", "sinks", index, "guarantee"), message, "leave it out")


def watermark_column_is_in_the_schema(job: SinkJob) -> Iterator[Finding]:
    source = job.spec.source
    columns = column_names(source.schema_ddl) if source.schema_ddl else None
    if source.watermark is None or columns is None:
        return
    column = source.watermark.column
    if column.lower() not in [name.lower() for name in columns]:
        path = ("spec", "source", "watermark", "column")
        yield Finding(path, f"`{column}` is no column of spec.source.schema", suggestion(column, columns))


def option_names_differ_by_more_than_case(job: SinkJob) -> Iterator[Finding]:
    """Spark does not tell `header` from `Header`."""
    first: dict[str, str] = {}
    for key in job.spec.source.options:
        other = first.setdefault(key.lower(), key)
        if other != key:
            path = ("spec", "source", "options", key)
            yield Finding(path, f"is the same option as `{other}`: Spark ignores case", "keep one of them")


def transform_step_is_one_thing(job: SinkJob) -> Iterator[Finding]:
    for index, step in enumerate(job.spec.transform):
        if (step.sql is None) == (step.python is None):
            what = "has both `sql` and `python`" if step.sql is not None else "has neither `sql` nor `python`"
            yield Finding(("spec", "transform", index), f"a step {what}", "give exactly one of them")


def checkpoint_location_can_be_used(job: SinkJob) -> Iterator[Finding]:
    location = job.spec.checkpoint.location
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", location or "")
    if match is None or match[1] in CHECKPOINT_SCHEMES:
        return
    path = ("spec", "checkpoint", "location")
    expected = f"expected a path, or one of: {', '.join(f'{scheme}://' for scheme in CHECKPOINT_SCHEMES)}"
    if match[1] in ("s3", "s3n"):
        expected = f"write s3a{(location or '')[len(match[1]) :]}"
    yield Finding(path, f"Spark cannot keep a checkpoint at `{match[1]}:`", expected)


SOURCE_CHECKS: tuple[Callable[[SinkJob], Iterator[Finding]], ...] = (
    batch_has_no_trigger,
    batch_appends,
    complete_needs_an_aggregation,
    available_now_has_no_interval,
    file_stream_has_a_schema,
    file_source_has_a_path,
    file_source_is_no_sinks_target,
    source_with_own_schema_has_no_other,
    source_can_be_read_in_this_mode,
    source_can_replay_for_the_guarantee,
    watermark_column_is_in_the_schema,
    option_names_differ_by_more_than_case,
    transform_step_is_one_thing,
    checkpoint_location_can_be_used,
)
