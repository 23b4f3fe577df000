"""Every error of ours that crosses a module border, and the exit codes they end in.

Foreign errors (pydantic, YAML, Spark, client libraries) are translated into these where they enter,
chained to the original; the command line and the operator's status show only these.
Never holds a secret value, and never decides what happens next: it only says what happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the command line ends with, and how the driver tells its parent the same."""

    DONE = 0
    FAILED = 1
    INVALID_MANIFEST = 2
    FENCED_OR_IN_DOUBT = 3


class SinkjobError(Exception):
    """Base of our errors.

    `reason` is a CamelCase name, the same in status, event, metric and test; `message` one sentence that
    says what is wrong and where; `advice` what to do about it ("" when there is nothing to do).
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, reason: str, message: str, advice: str = "") -> None:
        super().__init__(reason, message, advice)
        self.reason = reason
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        text = f"{self.reason}: {self.message}"
        return f"{text}\n{self.advice}" if self.advice else text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a manifest: which field, which line (None when not from text), and what would be right."""

    path: str
    line: int | None
    message: str
    expected: str = ""

    def text(self, source: str = "") -> str:
        """`job.yaml:12: spec.sinks[0].options.tabel: unknown option; did you mean `table`?`"""
        where = [part for part in (source, "" if self.line is None else str(self.line)) if part]
        prefix = ":".join(where)
        body = f"{self.path}: {self.message}" if self.path else self.message
        if self.expected:
            body = f"{body}; {self.expected}"
        return f"{prefix}: {body}" if prefix else body


class ManifestError(SinkjobError):
    """The manifest cannot be run; `problems` has all that was found, in the manifest's order."""

    exit_code = ExitCode.INVALID_MANIFEST

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("InvalidSpec", "\n".join(problem.text(source) for problem in self.problems))

    def __str__(self) -> str:
        return self.message


class StartRefused(SinkjobError):
    """The start check found a disagreement; `reason` is one that `recovery.accept` takes, or a final one."""


class Held(StartRefused):
    """A decided checkpoint was turned down and waits for a person; nothing is lost, and nothing goes on before it."""

    exit_code = ExitCode.FENCED_OR_IN_DOUBT


class Fenced(SinkjobError):
    """A newer driver or coordinator has taken over; this one must end without another effect."""

    exit_code = ExitCode.FENCED_OR_IN_DOUBT

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__("Fenced", message, advice)


class InDoubt(SinkjobError):
    """It cannot be known here whether a decision or a commit took place; the next start finds out."""

    exit_code = ExitCode.FENCED_OR_IN_DOUBT
    kind: ClassVar[str] = "InDoubt"

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(self.kind, message, advice)


class LedgerOutOfReach(InDoubt):
    """The same, because the ledger was not reached for too long: nobody has to speak, the next process goes on."""

    kind = "LedgerUnavailable"


class _AtPath(SinkjobError):
    """An error that belongs to one field of the manifest."""

    def __init__(self, reason: str, message: str, *, path: str = "", advice: str = "") -> None:
        super().__init__(reason, message, advice)
        self.path = path

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.path}: {text}" if self.path else text


class ConfigurationError(_AtPath):
    """The manifest is well-formed, yet cannot work in this environment (no Java, a missing file, a wrong class)."""


UNAVAILABLE_ADVICE = "see that the target runs and is reached from here; what was not decided is run again"


class TargetError(_AtPath):
    """A target or source turned something down for good, or does not fit the rows (schema, permission)."""


class TargetUnavailable(TargetError):
    """It was not reached, or had no room for us just now: nothing was decided, and the same may work later."""

    kind: ClassVar[str] = "TargetUnavailable"

    def __init__(self, message: str, *, path: str = "", advice: str = "") -> None:
        super().__init__(self.kind, message, path=path, advice=advice or UNAVAILABLE_ADVICE)


class WriterFailed(_AtPath):
    """A sink's writer ended in an error that is none of ours: users' code, or a fault of the sink."""

    def __init__(self, message: str, *, path: str = "", advice: str = "") -> None:
        super().__init__("WriterFailed", message, path=path, advice=advice)


def sink_path(index: int, path: str) -> str:
    """A path that a sink named (`options.table`, or none), as one of the manifest: a sink does not know its place."""
    if path and not path.startswith(("options", "deadLetter")):
        return path
    return ".".join(filter(None, [f"spec.sinks[{index}]", path]))


class LedgerError(SinkjobError):
    """Base of what a ledger store answers other than success."""

    kind: ClassVar[str] = "LedgerError"

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(self.kind, message, advice)


class LedgerCorrupt(LedgerError):
    """The stored ledger is truncated, was edited by hand, or fails its checksum. Nothing was changed."""

    kind = "LedgerCorrupt"


class LedgerFormatTooNew(LedgerError):
    """A newer release wrote this ledger. Nothing was changed."""

    kind = "LedgerFormatTooNew"


class LedgerConflict(LedgerError):
    """The compare-and-swap lost: the ledger has moved on. The write definitely did not happen."""

    kind = "LedgerConflict"


class LedgerUnavailable(LedgerError):
    """The store could not be reached and the request definitely had no effect; it may be tried again, after
    `retry_after_seconds` where the store asks for a pause."""

    kind = "LedgerUnavailable"

    def __init__(self, message: str, advice: str = "", *, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message, advice)
        self.retry_after_seconds = retry_after_seconds


class AnswerLost(LedgerError):
    """The request was sent and no answer came: it may or may not have happened. Read before anything else."""

    kind = "AnswerLost"


class LedgerTooLarge(LedgerError):
    """The ledger would not fit where it is stored. Nothing was sent."""

    kind = "LedgerTooLarge"
