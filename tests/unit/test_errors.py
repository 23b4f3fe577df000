"""What an error says, and which exit code it ends in."""

import pytest

from sinkruntime import errors
from sinkruntime.errors import ExitCode, Problem


@pytest.mark.parametrize(
    ("error", "code", "reason", "text"),
    [
        (
            errors.StartRefused("LedgerLost", "the ledger is gone", "restore it, or accept LedgerLost"),
            ExitCode.FAILED,
            "LedgerLost",
            "LedgerLost: the ledger is gone\nrestore it, or accept LedgerLost",
        ),
        (errors.Fenced("epoch 4 has begun"), ExitCode.FENCED_OR_IN_DOUBT, "Fenced", "Fenced: epoch 4 has begun"),
        (errors.InDoubt("no answer"), ExitCode.FENCED_OR_IN_DOUBT, "InDoubt", "InDoubt: no answer"),
        (
            errors.ConfigurationError("NoJava", "java was not found", path="spec.source", advice="install it"),
            ExitCode.FAILED,
            "NoJava",
            "spec.source: NoJava: java was not found\ninstall it",
        ),
        (errors.TargetError("NoTable", "no table"), ExitCode.FAILED, "NoTable", "NoTable: no table"),
        (errors.LedgerCorrupt("line 3"), ExitCode.FAILED, "LedgerCorrupt", "LedgerCorrupt: line 3"),
        (errors.LedgerFormatTooNew("2"), ExitCode.FAILED, "LedgerFormatTooNew", "LedgerFormatTooNew: 2"),
        (errors.LedgerConflict("x"), ExitCode.FAILED, "LedgerConflict", "LedgerConflict: x"),
        (errors.LedgerUnavailable("x"), ExitCode.FAILED, "LedgerUnavailable", "LedgerUnavailable: x"),
        (errors.AnswerLost("x"), ExitCode.FAILED, "AnswerLost", "AnswerLost: x"),
        (errors.ManifestError([Problem("a", 2, "b")]), ExitCode.INVALID_MANIFEST, "InvalidSpec", "2: a: b"),
    ],
)
def test_an_error_has_a_reason_a_text_and_an_exit_code(
    error: errors.SinkjobError, code: ExitCode, reason: str, text: str
) -> None:
    assert (error.exit_code, error.reason, str(error)) == (code, reason, text)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (
            Problem("spec.a", 12, "unknown field", "did you mean `b`?"),
            "j.yaml:12: spec.a: unknown field; did you mean `b`?",
        ),
        (Problem("spec.a", None, "is required"), "j.yaml: spec.a: is required"),
        (Problem("", 3, "not valid YAML"), "j.yaml:3: not valid YAML"),
    ],
)
def test_a_problem_says_where_and_what_would_be_right(problem: Problem, text: str) -> None:
    assert problem.text("j.yaml") == text
