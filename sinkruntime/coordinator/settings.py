"""The settings of commits, as the manifest's `spec.commit` has them, and the counters that a coordinator keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

#: What a committer may gauge when it cleans up (`CommitterBase.clean`); all else is not kept.
SINK_GAUGES = frozenset({"prepared_transactions", "prepared_oldest_seconds"})


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """How long an attempt may take, and when it is tried again. Defaults are those of MANIFEST's `commit`."""

    timeout_seconds: float = 60.0  # of the first attempt; doubles per attempt
    timeout_max_seconds: float = 1800.0
    backoff_first_seconds: float = 0.2
    backoff_max_seconds: float = 30.0
    attempts_max: int = 0  # 0: for ever
    chunk_size: int = 64  # committables in one call of a SinkCommitter
    parallel_chunks: int = 4
    hide: Callable[[str], str] = str  # takes out of a sink's message what the ledger must not hold

    def timeout_of(self, attempt: int) -> float:
        """The time limit of attempt 0, 1, 2…"""
        doubled: float = self.timeout_seconds * 2.0 ** min(attempt, 30)
        return min(doubled, self.timeout_max_seconds)

    def backoff_after(self, failures: int, jitter: float) -> float:
        """The wait after so many failures in a row; `jitter` in [0, 1) takes off up to half of it."""
        doubled: float = self.backoff_first_seconds * 2.0 ** min(failures - 1, 30)
        return min(doubled, self.backoff_max_seconds) * (1.0 - jitter / 2.0)


@dataclass(slots=True)
class Metrics:
    """Counters and gauges by (name, sink); whoever exports them reads `values`."""

    values: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, sink: str = "", amount: float = 1.0) -> None:
        """Raise a counter."""
        self.values[name, sink] += amount

    def put(self, name: str, value: float, sink: str = "") -> None:
        """Set a gauge."""
        self.values[name, sink] = value

    def get(self, name: str, sink: str = "") -> float:
        """A value; 0 where it was never set."""
        return self.values.get((name, sink), 0.0)
