"""The delta sink at size: a million changes beside DuckDB, and a thousand zombies. Deselected by default."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.servers import delta_spark
from tests.servers.s3 import S3Server
from tests.sinks import many_changes
from tests.sinks.test_delta import Place, rows_of, s3_place
from tests.sinks.test_delta_faults import WRITES, race

RACES = 1_000
EXPORT_SECONDS_MAX = 600

pytestmark = [pytest.mark.exhaustive, pytest.mark.integration, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("more", WRITES, ids=lambda more: more["write"])
def test_a_thousand_zombies_never_commit_a_checkpoint_twice(tmp_path: Path, more: dict[str, Any]) -> None:
    place = Place(tmp_path / "table", str(tmp_path / "table"), {})
    race(place, RACES, **more)
    kept = [RACES] if more["write"] == "complete" else range(1, RACES + 1)
    assert rows_of(place) == Counter((number, "row") for number in kept)


def test_a_thousand_zombies_on_s3_never_commit_a_checkpoint_twice(s3_server: S3Server) -> None:
    place = s3_place(s3_server, s3_server.endpoint)
    race(place, RACES)
    assert rows_of(place) == Counter((number, "row") for number in range(1, RACES + 1))


@pytest.mark.spark
@pytest.mark.parametrize("partition_by", [[], ["part"]], ids=["flat", "partitioned"])
def test_a_million_changes_leave_what_duckdb_says(tmp_path: Path, partition_by: list[str]) -> None:
    many_changes.make(tmp_path)
    options = {**many_changes.UPSERT, "path": "table", "write": "upsert", "partitionBy": partition_by}
    many_changes.run(tmp_path, {"name": "lake", "type": "delta", "options": options})
    rows = f"SELECT {', '.join(many_changes.COLUMNS)} FROM delta.`{tmp_path / 'table'}`"
    question = f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'seen'}' USING parquet {rows}"
    delta_spark.ask(question, timeout_seconds=EXPORT_SECONDS_MAX)
    expected, missing, extra = many_changes.compare(tmp_path, tmp_path / "seen")
    assert expected > many_changes.KEYS // 2
    assert (missing, extra) == (0, 0)
