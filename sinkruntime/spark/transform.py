"""Applies a job's transform: SQL steps over the view `input`, and the team's own Python functions.

Called once per query by `query.py`; errors name the step. The user's code runs here, in the driver, and builds a plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pyspark.sql import DataFrame

from sinkruntime.errors import ConfigurationError, SinkjobError
from sinkruntime.spark.failure import SPARK_ERRORS, first_line
from sinkruntime.spec.source import TransformStep

INPUT_VIEW = "input"


def apply_steps(df: DataFrame, steps: Sequence[TransformStep]) -> DataFrame:
    """The rows after all steps; raises `ConfigurationError` with the step's path."""
    for index, step in enumerate(steps):
        if step.sql is not None:
            df = _sql(df, step.sql, f"spec.transform[{index}].sql")
        elif step.python is not None:
            df = _python(df, step.python, f"spec.transform[{index}].python")
    return df


def _sql(df: DataFrame, query: str, path: str) -> DataFrame:
    session = df.sparkSession
    df.createOrReplaceTempView(INPUT_VIEW)
    try:
        return session.sql(query)
    except SPARK_ERRORS as error:
        message = f"{first_line(error)}; `{INPUT_VIEW}` has the columns {', '.join(df.columns)}"
        raise ConfigurationError("InvalidSql", message, path=path) from error
    finally:
        session.catalog.dropTempView(INPUT_VIEW)  # what was made of it is resolved already


def _python(df: DataFrame, name: str, path: str) -> DataFrame:
    module, _, function = name.partition(":")
    try:
        target = getattr(importlib.import_module(module), function)
    except ImportError as error:
        advice = "the manifest's directory and spec.deps.pyFiles are searched"
        raise ConfigurationError("TransformNotFound", str(error), path=path, advice=advice) from error
    except AttributeError as error:
        message = f"module {module} has no `{function}`"
        raise ConfigurationError("TransformNotFound", message, path=path) from error
    try:
        result = target(df)
    except SinkjobError:
        raise
    except SPARK_ERRORS as error:
        raise ConfigurationError("TransformFailed", f"{name}: {first_line(error)}", path=path) from error
    except Exception as error:  # users' code may raise anything
        message = f"{name} raised {type(error).__name__}: {error}"
        raise ConfigurationError("TransformFailed", message, path=path) from error
    if not isinstance(result, DataFrame):
        message = f"{name} returned {type(result).__name__}, expected a DataFrame"
        raise ConfigurationError("TransformFailed", message, path=path)
    return result
