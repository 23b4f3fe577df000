"""The example of the hudi sink, run by the command line: Spark hashes each key to one bucket, in every checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.servers.hudi_reader import HudiReader

pytestmark = [pytest.mark.spark, pytest.mark.integration]

EXAMPLE = Path(__file__).parents[2] / "examples" / "hudi"
COMMAND = (sys.executable, "-m", "sinkruntime.cli.main")
RUN_TIMEOUT_SECONDS = 150


def run(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_the_example_leaves_the_last_state_of_each_record(tmp_path: Path, hudi_reader: HudiReader) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", ".sinkjob"))
    more = [
        {"id": number, "country": "XX", "owner": f"{number}", "balance": 0, "changed": 100 + number, "op": "I"}
        for number in range(1_000, 1_400)
    ]
    again = [{**row, "owner": "changed", "changed": 9_000} for row in more[::2]]
    for name, rows in (("4.json", more), ("5.json", again)):
        (folder / "changes" / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run(folder, "run", "job.yaml", "--master", "local[2]")
    found = {row["id"]: row for row in hudi_reader.rows(str(folder / "data" / "accounts"))}
    rows = hudi_reader.rows(str(folder / "data" / "accounts"))
    assert len(rows) == len(found), "a key stands twice"
    small = {number: (row["owner"], row["balance"]) for number, row in found.items() if number < 1_000}
    assert small == {
        1: ("Ada", Decimal("20.00")),
        2: ("Bo", Decimal("3.00")),
        3: ("Céline", Decimal("7.25")),
        5: ("Eve", Decimal("1.00")),
    }
    assert sorted(number for number in found if number >= 1_000) == [row["id"] for row in more]
    assert {number for number, row in found.items() if row["owner"] == "changed"} == {row["id"] for row in again}
    assert "instant" in run(folder, "commits", "job.yaml")
