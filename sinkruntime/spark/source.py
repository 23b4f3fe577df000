"""Reads a job's source: `spec.source` becomes a DataFrame, streaming or not.

Called once per query by `query.py`. Its errors name the field of the manifest. It reads no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from sinkruntime.errors import ConfigurationError
from sinkruntime.spark.failure import SPARK_ERRORS, first_line
from sinkruntime.spec.source import Source, Watermark

_ADVICE = {
    "spec.source.format": "use a format of Spark (csv, json, parquet, orc, text, rate, kafka, …), and add the jars of "
    "others to spec.deps.jars",
    "spec.source.path": "a relative path is taken from the manifest's own directory",
    "spec.source.schema": "write the columns as DDL, such as `year INT, carrier STRING`",
}


def read_source(
    session: SparkSession, source: Source, extra: Mapping[str, str], base: Path, *, streaming: bool
) -> DataFrame:
    """The source's rows; `extra` are the resolved options of `optionsFrom`, `base` is where relative paths start.

    Raises `ConfigurationError` with the field's path.
    """
    options = {**source.options, **extra}
    schema = _schema(source)
    path = None if source.path is None else resolve(source.path, base)
    try:
        if streaming:
            stream = session.readStream.format(source.format).options(**options)
            df = (stream if schema is None else stream.schema(schema)).load(path)
        else:
            reader = session.read.format(source.format).options(**options)
            df = (reader if schema is None else reader.schema(schema)).load(path)
    except SPARK_ERRORS as error:
        raise _refused(source, path, error) from error
    return df if source.watermark is None else _with_watermark(df, source.watermark)


def resolve(path: str, base: Path) -> str:
    """A path of the manifest as Spark takes it: URIs and absolute paths as they are."""
    return path if urlsplit(path).scheme or Path(path).is_absolute() else str(base / path)


def _schema(source: Source) -> StructType | None:
    if source.schema_ddl is None:
        return None
    where = "spec.source.schema"
    try:
        schema = StructType.fromDDL(source.schema_ddl)
    except SPARK_ERRORS as error:
        raise ConfigurationError("InvalidSchema", first_line(error), path=where, advice=_ADVICE[where]) from error
    if isinstance(schema, StructType):
        return schema
    message = f"`{source.schema_ddl}` is one type, expected columns"
    raise ConfigurationError("InvalidSchema", message, path=where, advice=_ADVICE[where])


def _refused(source: Source, path: str | None, error: BaseException) -> ConfigurationError:
    condition = str(error.getCondition() or "") if isinstance(error, PySparkException) else ""
    text = first_line(error)
    where = "spec.source"
    if "DATA_SOURCE_NOT_FOUND" in condition + text:
        where, text = "spec.source.format", f"Spark knows no source `{source.format}`"
    elif condition.startswith("PATH_NOT_FOUND") or "does not exist" in text:
        where, text = "spec.source.path", f"{path} does not exist"
    elif "schema" in text.lower():
        where = "spec.source.schema"
    elif "path" in text.lower():
        where = "spec.source.path"
    return ConfigurationError("SourceUnreadable", text, path=where, advice=_ADVICE.get(where, ""))


def _with_watermark(df: DataFrame, watermark: Watermark) -> DataFrame:
    where = "spec.source.watermark.column"
    kinds = {field.name: field.dataType for field in df.schema.fields}
    kind = kinds.get(watermark.column)
    if kind is None:
        message = f"there is no column `{watermark.column}`; the source has {', '.join(kinds)}"
        raise ConfigurationError("InvalidWatermark", message, path=where)
    if not isinstance(kind, TimestampType | TimestampNTZType):
        message = f"`{watermark.column}` is of type {kind.simpleString()}, expected timestamp"
        raise ConfigurationError("InvalidWatermark", message, path=where)
    try:
        return df.withWatermark(watermark.column, f"{watermark.delay.milliseconds} milliseconds")
    except SPARK_ERRORS as error:
        raise ConfigurationError("InvalidWatermark", first_line(error), path=where) from error
