"""Where log records of a command go: standard error, as text or as one JSON object a line.

The entry point calls `configure` once. Records of the protocol carry their facts in the attribute `sinkjob`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import TextIO

from sinkruntime.cli.output import time_text
from sinkruntime.cli.secrecy import hide

LEVELS = ("debug", "info", "warning", "error")

#: Libraries that log every packet or socket at debug, and every callback at info.
_NOISY = ("py4j", "botocore", "urllib3", "boto3", "s3transfer")


class TextFormatter(logging.Formatter):
    """A line of text a record, then its traceback if any."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return hide(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, the facts of the protocol, the traceback if any."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        facts = getattr(record, "sinkjob", {})
        line = {
            "time": time_text(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._facts,
            **(facts if isinstance(facts, dict) else {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return hide(json.dumps(line, ensure_ascii=False, default=str))


class _ErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at that moment: the live display puts its own there while it is on."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AttributeError("it is always standard error")


def configure(level: str, form: str, facts: Mapping[str, object] | None = None) -> None:
    """Send the records of `level` and above to standard error; replaces what an earlier call set up.

    `facts` are in each JSON line: what this process is.
    """
    handler = _ErrorHandler()
    handler.setFormatter(JsonFormatter(facts or {}) if form == "json" else TextFormatter())
    root = logging.getLogger()
    for former in [known for known in root.handlers if isinstance(known, _ErrorHandler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    noisy = logging.INFO if root.level < logging.INFO else max(logging.WARNING, root.level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(noisy)
