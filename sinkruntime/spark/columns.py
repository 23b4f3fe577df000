"""Which columns a pass computes, and how each sink finds its own in them: `select` and `where` without a second pass.

A sink that is alone in its pass gets plain `where` and `select` of Spark. Where several share one, Spark computes
what they select, and a boolean column per `where`; the task cuts each batch. Used by `passes.py`; runs no Spark job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType

from sinkruntime.api import Sink
from sinkruntime.dead_letters import DEAD_LETTER_SCHEMA, DeadLetters
from sinkruntime.errors import ConfigurationError
from sinkruntime.spark.failure import SPARK_ERRORS, first_line
from sinkruntime.spark.task import Feed


@dataclass(frozen=True, slots=True)
class JobSink:
    """A sink as the job uses it; `index` is its place in `spec.sinks`, for errors."""

    sink: Sink
    index: int = 0
    select: tuple[str, ...] | None = None
    where: str | None = None
    tolerant: bool = False  # `onFailure: Warn`
    dead_letters: DeadLetters | None = None
    takes_refused: bool = False  # it is another one's dead-letter sink: it gets what is refused, and nothing else

    @property
    def name(self) -> str:
        """The sink's name."""
        return self.sink.identity.sink


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one pass, as SQL; None: the DataFrame as it is. `where` is a filter for a single sink."""

    feeds: tuple[Feed, ...]
    columns: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    where: str | None = None

    def apply(self, df: DataFrame) -> DataFrame:
        """The DataFrame that the tasks are given."""
        if self.where is not None:
            df = df.where(F.expr(self.where))
        if self.columns is None:
            return df
        return df.select([F.expr(sql).alias(name) for sql, name in zip(self.columns, self.names, strict=True)])


def arrow_schema(df: DataFrame) -> pa.Schema:
    """The Arrow schema of the batches that Spark makes of `df`; raises `ConfigurationError` where Arrow has no type."""
    schema = df.schema
    try:
        return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True)
    except SPARK_ERRORS as error:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        message = f"{first_line(error)} (columns: {columns})"
        advice = "cast the column to another type in a transform"
        raise ConfigurationError("UnsupportedType", message, path="spec.transform", advice=advice) from error


def lay_out(df: DataFrame, sinks: Sequence[JobSink]) -> Layout:
    """The layout of a pass for these sinks; raises `ConfigurationError` for a wrong `select` or `where`."""
    layout = _lay_out(df, [sink for sink in sinks if not sink.takes_refused])
    late = [
        Feed(sink.sink, DEAD_LETTER_SCHEMA, index=sink.index, takes_refused=True)
        for sink in sinks
        if sink.takes_refused
    ]
    return replace(layout, feeds=(*layout.feeds, *late))


def _lay_out(df: DataFrame, sinks: Sequence[JobSink]) -> Layout:
    selected = [_select(df, sink) for sink in sinks]
    for sink in sinks:
        _check_where(df, sink)
    if len(sinks) == 1:
        return _alone(df, sinks[0], selected[0])
    if all(sink.select is None and sink.where is None for sink in sinks):
        schema = arrow_schema(df)
        return Layout(
            tuple(Feed(sink.sink, schema, index=sink.index, dead_letters=sink.dead_letters) for sink in sinks)
        )
    columns: dict[str, int] = {}
    feeds = []
    for sink, (expressions, schema) in zip(sinks, selected, strict=True):
        places = tuple(columns.setdefault(sql, len(columns)) for sql in expressions)
        where = None if sink.where is None else columns.setdefault(f"({sink.where})", len(columns))
        feeds.append(Feed(sink.sink, schema, places, where, sink.index, sink.dead_letters))
    return Layout(tuple(feeds), tuple(columns), tuple(f"c{index}" for index in range(len(columns))))


def _alone(df: DataFrame, sink: JobSink, selected: tuple[tuple[str, ...], pa.Schema]) -> Layout:
    expressions, schema = selected
    feed = Feed(sink.sink, schema, index=sink.index, dead_letters=sink.dead_letters)
    if sink.select is None:
        return Layout((feed,), where=sink.where)
    return Layout((feed,), expressions, tuple(schema.names), sink.where)


def _select(df: DataFrame, sink: JobSink) -> tuple[tuple[str, ...], pa.Schema]:
    """The SQL of each of the sink's columns, and their schema."""
    names = set(df.columns)
    wanted = df.columns if sink.select is None else sink.select
    expressions = tuple(quoted(item) if item in names else item for item in wanted)
    if sink.select is not None:
        for place, (item, sql) in enumerate(zip(wanted, expressions, strict=True)):
            _check_item(df, item, sql, f"spec.sinks[{sink.index}].select[{place}]")
    schema = arrow_schema(df.select([F.expr(sql) for sql in expressions]))
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        path = "spec.transform" if sink.select is None else f"spec.sinks[{sink.index}].select"
        message = f"two columns are named {', '.join(twice)}"
        raise ConfigurationError("InvalidSelect", message, path=path, advice="give each column a name of its own (AS)")
    return expressions, schema


def _check_item(df: DataFrame, item: str, sql: str, path: str) -> None:
    try:
        selected = df.select(F.expr(sql))
    except SPARK_ERRORS as error:
        message = f"`{item}`: {first_line(error)}; the rows have the columns {', '.join(df.columns)}"
        raise ConfigurationError("InvalidSelect", message, path=path) from error
    steps = _steps(selected)
    if steps.count("Generate") > _steps(df).count("Generate") or steps[0] == "Aggregate":  # `explode`, `count(*)`
        message = f"`{item}` makes other rows; those of the sinks that share them would change, too"
        raise ConfigurationError("InvalidSelect", message, path=path, advice="do it in spec.transform")


def _steps(df: DataFrame) -> list[str]:
    """What Spark does to get these rows, the last first, as far as one comes from one."""
    found = []
    plan = df._jdf.queryExecution().analyzed()
    while True:
        found.append(plan.nodeName())
        if plan.children().size() != 1:
            return found
        plan = plan.children().head()


def _check_where(df: DataFrame, sink: JobSink) -> None:
    if sink.where is None:
        return
    path = f"spec.sinks[{sink.index}].where"
    try:
        kind = df.where(F.expr(sink.where)).select(F.expr(sink.where)).schema.fields[0].dataType
    except SPARK_ERRORS as error:
        raise ConfigurationError("InvalidWhere", f"`{sink.where}`: {first_line(error)}", path=path) from error
    if not isinstance(kind, BooleanType):
        message = f"`{sink.where}` is of type {kind.simpleString()}, expected a condition"
        raise ConfigurationError("InvalidWhere", message, path=path)


def quoted(name: str) -> str:
    """A column's name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """A column by its exact name."""
    return F.col(quoted(name))
