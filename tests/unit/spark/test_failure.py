"""Errors on their way from a task to the driver, without Spark between."""

import pytest
from py4j.protocol import Py4JJavaError

from sinkruntime.errors import (
    ConfigurationError,
    Fenced,
    SinkjobError,
    TargetError,
    TargetUnavailable,
    WriterFailed,
    sink_path,
)
from sinkruntime.spark.failure import CAUSES_MAX, MESSAGE_CHARACTERS_MAX, TaskFailure, first_line, translate, with_cause


def through_spark(failure: TaskFailure) -> Exception:
    """A task's exception as Spark's own text holds it."""
    text = f"Job aborted due to stage failure\n  File x\nsinkruntime.spark.failure.TaskFailure: {failure}\n\n\tat org.x"
    return RuntimeError(text)


def test_a_target_error_comes_back_as_it_was() -> None:
    error = TargetError("TableMissing", 'there is no "t"\nat all', path="options.table", advice="make it")
    back = translate(through_spark(TaskFailure.wrap("lake", 2, error)), "x")
    assert isinstance(back, TargetError)
    assert (back.reason, back.message) == ("TableMissing", 'sink lake: there is no "t"\nat all')
    assert (back.path, back.advice) == ("spec.sinks[2].options.table", "make it")


def test_another_error_of_ours_keeps_its_reason() -> None:
    back = translate(through_spark(TaskFailure.wrap("lake", 0, ConfigurationError("NoDisk", "full"))), "x")
    assert isinstance(back, ConfigurationError)
    back = translate(through_spark(TaskFailure.wrap("lake", 0, SinkjobError("Odd", "odd"))), "x")
    assert (type(back), back.reason) == (SinkjobError, "Odd")


def test_a_foreign_error_names_type_and_sink_and_its_place() -> None:
    back = translate(through_spark(TaskFailure.wrap("lake", 1, KeyError("k"))), "x")
    assert isinstance(back, WriterFailed)
    assert (back.reason, back.message, back.path) == ("WriterFailed", "sink lake: KeyError: 'k'", "spec.sinks[1]")


def test_a_target_that_may_come_back_is_told_by_name_and_not_as_a_fault_of_the_writer() -> None:
    back = translate(through_spark(TaskFailure.wrap("lake", 1, ConnectionError("h:5432: refused"))), "x")
    assert isinstance(back, TargetUnavailable)
    assert (back.reason, back.message) == ("TargetUnavailable", "sink lake: h:5432: refused")
    assert back.path == "spec.sinks[1]"
    assert "run again" in back.advice


@pytest.mark.parametrize(
    ("path", "whole"),
    [("options.table", "spec.sinks[3].options.table"), ("", "spec.sinks[3]"), ("spec.transform", "spec.transform")],
)
def test_a_path_that_a_sink_names_becomes_one_of_the_manifest(path: str, whole: str) -> None:
    assert sink_path(3, path) == whole


def test_ours_pass_through() -> None:
    error = Fenced("newer")
    assert translate(error, "x") is error


def test_the_rest_is_bounded_and_says_what_was_being_done() -> None:
    back = translate(ValueError("x" * 10_000), "running a batch")
    assert back.message.startswith("while running a batch: ValueError: xxx")
    assert len(back.message) < MESSAGE_CHARACTERS_MAX + 100


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[A] what. SQLSTATE: 42703\n\n== SQL ==\nSELECT", "[A] what"),
        ("[A] two\nlines; line 1 pos 3;\n'Project ['x]\n+- y", "[A] two lines; line 1 pos 3"),
        ("broken\n\tat org.apache.spark.X", "broken"),
    ],
)
def test_spark_texts_lose_plans_and_traces(text: str, line: str) -> None:
    assert first_line(RuntimeError(text)) == line


class Thrown:
    """A Java exception as Py4J gives it."""

    _target_id = "o1"
    _gateway_client = None

    def __init__(self, text: str, cause: "Thrown | None" = None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:  # noqa: N802  (Java's name)
        return self.text

    def getCause(self) -> "Thrown | None":  # noqa: N802
        return self.cause


def test_the_innermost_cause_is_told_after_what_the_outer_ones_say() -> None:
    thrown = Thrown("SparkException: cannot be made", Thrown("middle", Thrown("IOException: timed out\nmore")))
    assert with_cause(Py4JJavaError("x", thrown)) == "SparkException: cannot be made: IOException: timed out more"
    assert with_cause(Py4JJavaError("x", Thrown("alone"))) == "alone"
    assert with_cause(ValueError("no Java")) == "no Java"


def test_causes_in_a_circle_come_to_an_end() -> None:
    first = Thrown("a")
    first.cause = Thrown("b", first)
    assert with_cause(Py4JJavaError("x", first)) == "a" + (": b" if CAUSES_MAX % 2 else "")
