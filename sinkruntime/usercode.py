"""Finds users' classes and functions by their names in the manifest, and tells them which checkpoint they work on.

Used by the sinks that run users' code. Importing runs that code: call it only where the job runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sinkruntime.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class CheckpointContext:
    """Which rows users' code is given. The same rows come again under the same `key` when they are repeated.

    `checkpoint` is the number that the rows are decided under: kept over restarts until they are decided.
    `epoch` is the number of the driver run, `subtask` that of the task of `subtasks` (0 of 1: the whole batch).
    """

    ledger_id: str
    sink: str
    checkpoint: int
    epoch: int
    subtask: int = 0
    subtasks: int = 1

    @property
    def key(self) -> str:
        """What to store with the rows, in the same transaction, to tell a repetition."""
        whole = f"{self.ledger_id}/{self.sink}/{self.checkpoint}"
        return whole if self.subtasks == 1 else f"{whole}/{self.subtask}-{self.subtasks}"

    def already_committed(self, checkpoint: int) -> bool:
        """Whether a checkpoint is decided, and so will never be run again: each one before this one is."""
        return checkpoint < self.checkpoint


def load_user_code(name: str, path: str) -> Callable[..., Any]:
    """The class or function; raises `ConfigurationError` at `path` (`options.class`)."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        advice = "the manifest's directory and spec.deps.pyFiles are searched"
        raise ConfigurationError("UserCodeNotFound", f"{name}: {error}", path=path, advice=advice) from error
    except AttributeError as error:
        raise ConfigurationError("UserCodeNotFound", f"module {module} has no `{attribute}`", path=path) from error
    if not callable(found):
        raise ConfigurationError("UserCodeNotFound", f"{name} is a {type(found).__name__}, not callable", path=path)
    return found  # type: ignore[no-any-return]
