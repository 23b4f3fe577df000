"""The last word of a pod's process, where Kubernetes keeps it: why it ended, for the operator and for people.

Written once, just before the process ends: JSON `{"reason", "message", "advice", "path"}` in the container's
termination message. Holds no secret, and never fails: whoever ends has nothing to do about it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from sinkruntime.cli.secrecy import hide
from sinkruntime.errors import ExitCode, ManifestError, SinkjobError

log = logging.getLogger(__name__)

#: Kubernetes cuts a termination message there (https://kubernetes.io/docs/tasks/debug/debug-application/
#: determine-reason-pod-failure/): cut JSON could not be read.
BYTES_MAX = 4096
#: So much of a long text is taken off at a time.
CUT_CHARACTERS = 64

#: Ends that are none of an error: everything that there was is decided, or somebody asked for it.
COMPLETED, STOPPED = "Completed", "Stopped"


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the process ended. `path` is the manifest's field, "" where none is to blame."""

    reason: str
    message: str
    advice: str = ""
    path: str = ""
    code: ExitCode = ExitCode.DONE

    @classmethod
    def by(cls, error: Exception) -> Ended:
        """What an error says; one that is none of ours is a fault of ours."""
        if isinstance(error, ManifestError):
            first = error.problems[0]
            advice = first.expected
            return cls(error.reason, error.message, advice, first.path, error.exit_code)
        if isinstance(error, SinkjobError):
            path = str(getattr(error, "path", ""))
            return cls(error.reason, error.message, error.advice, path, error.exit_code)
        message = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return cls("Unexpected", message, "most likely a fault of sinkjob; the log has more", code=ExitCode.FAILED)

    def text(self) -> str:
        """The termination message: always whole JSON."""
        facts = {"reason": self.reason, "message": self.message, "advice": self.advice, "path": self.path}
        facts = {name: hide(value) for name, value in facts.items()}
        while len(text := json.dumps(facts, ensure_ascii=False)) and len(text.encode()) > BYTES_MAX:
            longest = max(facts, key=lambda name: len(facts[name]))
            facts[longest] = facts[longest].removesuffix(" …")[:-CUT_CHARACTERS] + " …"
        return text


def leave(ended: Ended, path: Path) -> None:
    """Write it, and say it in the log."""
    level = logging.INFO if ended.code is ExitCode.DONE else logging.ERROR
    where = f"{ended.path}: " if ended.path else ""
    log.log(level, "ended: %s: %s%s", ended.reason, where, ended.message, extra={"sinkjob": {"reason": ended.reason}})
    try:
        path.write_text(ended.text(), encoding="utf-8")
    except OSError as error:
        log.warning("the termination message cannot be written to %s: %s", path, error.strerror)
