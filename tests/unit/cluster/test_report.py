"""The last word of a pod's process: whole JSON, bounded, without a secret."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkruntime.cli.secrecy import conceal
from sinkruntime.cluster.report import BYTES_MAX, Ended, leave
from sinkruntime.errors import ExitCode, Fenced, ManifestError, Problem, TargetError
from sinkruntime.spec.options_from import Secrets


@pytest.fixture(autouse=True)
def _hidden() -> Iterator[None]:
    conceal([Secrets({"password": "hushhush"})])
    yield
    conceal([])


def test_an_error_of_ours_is_told_with_reason_advice_and_path() -> None:
    error = TargetError("TableMissing", "there is none", path="spec.sinks[0].options.table", advice="make it")
    ended = Ended.by(error)
    assert (ended.code, json.loads(ended.text())) == (
        ExitCode.FAILED,
        {
            "reason": "TableMissing",
            "message": "there is none",
            "advice": "make it",
            "path": "spec.sinks[0].options.table",
        },
    )
    assert Ended.by(Fenced("newer")).code is ExitCode.FENCED_OR_IN_DOUBT


def test_a_manifests_first_problem_gives_path_and_advice_and_all_are_told() -> None:
    problems = [Problem("spec.a", None, "wrong", "write b"), Problem("spec.c", None, "wrong too")]
    ended = Ended.by(ManifestError(problems, "job.json"))
    assert (ended.code, ended.path, ended.advice) == (ExitCode.INVALID_MANIFEST, "spec.a", "write b")
    assert "spec.c: wrong too" in ended.message


def test_a_foreign_error_is_a_fault_of_ours_in_one_line() -> None:
    ended = Ended.by(KeyError("one\ntwo"))
    assert (ended.reason, ended.code) == ("Unexpected", ExitCode.FAILED)
    assert "KeyError" in ended.message


@pytest.mark.parametrize("character", ["x", "ö", "\U0001f600", '"', "\n"])
def test_a_long_word_is_cut_and_stays_json(character: str) -> None:
    text = Ended("Long", character * 9000, character * 9000).text()
    assert BYTES_MAX - 600 < len(text.encode()) <= BYTES_MAX
    said = json.loads(text)
    assert said["reason"] == "Long"
    assert said["message"].endswith(" …")


def test_no_secret_is_left_nor_the_begin_of_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    leave(Ended("Told", "the password hushhush is wrong", "hushhush"), path)
    assert "hush" not in path.read_text()


def test_a_place_that_cannot_be_written_to_fails_nothing(tmp_path: Path) -> None:
    leave(Ended("Told", "x"), tmp_path / "nowhere" / "log")
