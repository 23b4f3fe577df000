"""A job with state, in a process of its own that may be killed: rows per window of ten seconds, by event time.

Run as `python -m tests.spark.stateful_job FOLDER`; reads `FOLDER/in`, writes by the `lines` sink to `FOLDER/t`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.session import SessionSettings, open_session
from sinkruntime.spec.models import SinkJobSpec
from tests.spark.lines import lines_sink
from tests.spark.world import World

REPOSITORY = Path(__file__).parents[2]
WINDOW_SECONDS = 10
DELAY_SECONDS = 5
SPEC = {
    "source": {
        "format": "csv",
        "path": "in",
        "schema": "ts TIMESTAMP, k STRING",
        "options": {"maxFilesPerTrigger": "1"},
        "watermark": {"column": "ts", "delay": f"{DELAY_SECONDS}s"},
    },
    "transform": [
        {
            "sql": "SELECT CAST(window.start AS STRING) AS start, k, count(*) AS n FROM input "
            f"GROUP BY window(ts, '{WINDOW_SECONDS} seconds'), k"
        }
    ],
    "trigger": {"type": "AvailableNow"},
    "sparkConf": {"spark.sql.shuffle.partitions": "2"},
    "sinks": [{"name": "lines", "type": "x"}],
}


def job(folder: Path) -> World:
    """The job, to be run or looked at."""
    return World(folder, SinkJobSpec.model_validate(SPEC), [JobSink(lines_sink(folder / "t"))])


def expected(seconds: Sequence[tuple[int, str]]) -> Counter[tuple[str, str, int]]:
    """What in-order rows must give: each window that the watermark has passed, once."""
    counts = Counter((second // WINDOW_SECONDS * WINDOW_SECONDS, key) for second, key in seconds)
    watermark = max(second for second, _ in seconds) - DELAY_SECONDS
    return Counter(
        (f"2026-11-21 00:{start // 60:02d}:{start % 60:02d}", key, n)
        for (start, key), n in counts.items()
        if start + WINDOW_SECONDS <= watermark
    )


def seen(rows: Sequence[dict[str, Any]]) -> Counter[tuple[str, str, int]]:
    """What a reader sees."""
    return Counter((row["start"], row["k"], row["n"]) for row in rows)


def main() -> None:
    """Run it to its end."""
    folder = Path(sys.argv[1])
    world = job(folder)
    session = open_session(SessionSettings("stateful", world.spec, REPOSITORY, master="local[2]"))
    world.run(session)
    session.stop()


if __name__ == "__main__":
    main()
