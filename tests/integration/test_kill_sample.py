"""A seeded sample of the kill matrix, as CI runs it; `make kill-matrix` runs all of it.

`SINKJOB_KILL_SINK`, `SINKJOB_KILLS`, `SINKJOB_KILL_SEED` choose another one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.killmatrix.__main__ import run_matrix

SINK = os.environ.get("SINKJOB_KILL_SINK", "file")
KILLS = int(os.environ.get("SINKJOB_KILLS", "10"))
SEED = int(os.environ.get("SINKJOB_KILL_SEED", "1"))


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_a_job_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    result = run_matrix(SINK, KILLS, SEED, tmp_path)
    assert result.problems == []
    assert result.line(SINK) == f"{SINK}: {KILLS} kills, missing 0, extra 0, leftovers 0"
