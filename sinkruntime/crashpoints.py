"""Named points at which a test can stop a process, to kill it there.

Driver, executors and coordinator call `reached("S5")` around each labelled step of the protocol. With
`SINKJOB_CRASH_POINT` unset, as in production, that is one comparison with None. Set to `S5.before@3`, the third
process to reach it (counted over all processes of the run) announces itself in `SINKJOB_CRASH_DIR` and waits
there to be killed; everything else goes on. It never ends a process by itself.

S1 batch start · S2 writer open · S3 write rows · S4 flush and close staging · S5 prepare in the target ·
S6 committable to the driver · S7 payloads written · S8 decision · S9 combine · S10 commit of a committable ·
S11 outcome recorded · S12 checkpoint marked committed · S13 cleanup · S14 Spark's own commit log.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Side = Literal["before", "after"]

#: A process that nobody kills ends its wait after this, by an error: a harness has failed.
WAIT_SECONDS = 300.0

STEPS = tuple(f"S{number}" for number in range(1, 15))


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where to stop: the `count`-th time that any process of the run reaches `side` of `step`."""

    step: str
    side: str
    count: int
    directory: Path

    @classmethod
    def parse(cls, text: str, directory: str) -> CrashPoint:
        """Read `STEP.SIDE` or `STEP.SIDE@COUNT`; raises ValueError."""
        place, _, count = text.partition("@")
        step, _, side = place.partition(".")
        if step not in STEPS or side not in ("before", "after") or not directory:
            raise ValueError(
                f"SINKJOB_CRASH_POINT={text!r}: expected S1..S14, .before or .after, and a SINKJOB_CRASH_DIR"
            )
        return cls(step, side, int(count or 1), Path(directory))


def _from_environment() -> CrashPoint | None:
    text = os.environ.get("SINKJOB_CRASH_POINT")
    return CrashPoint.parse(text, os.environ.get("SINKJOB_CRASH_DIR", "")) if text else None


_point = _from_environment()


def reached(step: str, side: Side) -> None:
    """Called at `side` of `step`. Returns at once, unless this is the point to be killed at."""
    if _point is not None and (step, side) == (_point.step, _point.side):
        _announce(_point)


def _announce(point: CrashPoint) -> None:
    """Count this visit; if it is the one, say so in a file named after the process, and wait for the kill."""
    counter = os.open(point.directory / f"{point.step}.{point.side}.count", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(counter, b".")
    visits = os.fstat(counter).st_size
    os.close(counter)
    if visits != point.count:
        return
    hit = point.directory / f"{point.step}.{point.side}.hit"
    hit.with_suffix(".tmp").write_text(str(os.getpid()))
    hit.with_suffix(".tmp").rename(hit)
    time.sleep(WAIT_SECONDS)
    raise TimeoutError(f"stopped at {point.step}.{point.side}, and nobody killed this process")
