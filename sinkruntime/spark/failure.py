"""Errors on their way between Spark's processes: from a task to the driver, and from Spark into our own types.

A task's exception reaches the driver only as text inside Spark's, so `TaskFailure` writes itself as one line of JSON
that `translate` finds again. Never decides what happens next.
"""

from __future__ import annotations

import json
import re

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from sinkruntime.errors import ConfigurationError, SinkjobError, TargetError, TargetUnavailable, WriterFailed, sink_path

#: What a call of Spark raises: its own errors, and those of Java that it has no Python type for.
SPARK_ERRORS = (PySparkException, Py4JJavaError)

_MARK = "sinkjob-task-failure "
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})")

#: The last resort for Spark's own texts, which carry whole plans and stack traces.
MESSAGE_CHARACTERS_MAX = 2000
#: Java may make a circle of causes.
CAUSES_MAX = 20


class TaskFailure(Exception):
    """A writer's exception, named with its sink, in the one form that survives the way through Spark."""

    @classmethod
    def wrap(cls, sink: str, index: int, error: Exception) -> TaskFailure:
        """Errors of ours keep reason, message and advice; of others type and text are kept. `index` is the sink's place
        in `spec.sinks`."""
        if isinstance(error, SinkjobError):
            facts = {"reason": error.reason, "message": error.message, "advice": error.advice}
            facts["kind"] = type(error).__name__
        elif isinstance(error, ConnectionError):  # what sinks raise where another try may help
            facts = {"message": str(error), "kind": TargetUnavailable.__name__}
        else:
            facts = {"message": f"{type(error).__name__}: {error}", "kind": WriterFailed.__name__}
        facts["path"] = sink_path(index, getattr(error, "path", ""))
        return cls(_MARK + json.dumps({"sink": sink, **facts}))


def translate(error: BaseException, doing: str) -> SinkjobError:
    """One of ours for whatever Spark raised; `doing` says what was being done (`running a batch`)."""
    if isinstance(error, SinkjobError):
        return error
    text = str(error)
    found = _LINE.search(text)
    if found:
        return _restore(json.loads(found.group(1)))
    if isinstance(error, Py4JNetworkError) or (isinstance(error, Py4JError) and "not answering" in text):
        return SinkjobError("SparkLost", f"Spark's process ended while {doing}", "look at its output above")
    if isinstance(error, SPARK_ERRORS):
        return SinkjobError("QueryFailed", f"while {doing}: {first_line(error)}")
    return SinkjobError("QueryFailed", f"while {doing}: {type(error).__name__}: {_bounded(text)}")


def first_line(error: BaseException) -> str:
    """What a Spark error says, without its plan and its stack trace."""
    text = _said(error).strip()
    paragraph = text.split("\n\n")[0]
    said = re.split(r"\n(?=\tat |== |Driver stacktrace|JVM stacktrace)|;\n'", paragraph)[0]
    return _bounded(" ".join(re.sub(r"SQLSTATE: \w+", "", said).split()).rstrip("."))


def with_cause(error: BaseException) -> str:
    """As `first_line`, and after it what the innermost of Java's causes says: the outer ones may say nothing."""
    said = first_line(error)
    if not isinstance(error, Py4JJavaError):
        return said
    innermost = error.java_exception
    for _ in range(CAUSES_MAX):
        cause = innermost.getCause()
        if cause is None:
            break
        innermost = cause
    reason = _bounded(" ".join(str(innermost.toString()).split("\n\n")[0].split()))
    return said if reason.rstrip(".") in said else f"{said}: {reason}"


def _said(error: BaseException) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString())
    message = error.getMessage() if isinstance(error, PySparkException) else None
    return message or str(error)


def _restore(facts: dict[str, str]) -> SinkjobError:
    message = f"sink {facts['sink']}: {facts['message']}"
    advice, path, kind = facts.get("advice", ""), facts["path"], facts["kind"]
    if kind == WriterFailed.__name__:
        return WriterFailed(message, path=path)
    if kind == TargetUnavailable.__name__:
        return TargetUnavailable(message, path=path, advice=advice)
    if kind == ConfigurationError.__name__:
        return ConfigurationError(facts["reason"], message, path=path, advice=advice)
    if kind == TargetError.__name__:
        return TargetError(facts["reason"], message, path=path, advice=advice)
    return SinkjobError(facts["reason"], message, advice)


def _bounded(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX] + " …"
