"""The iceberg sink at size: a million changes beside DuckDB, and a thousand zombies. Deselected by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers import iceberg_spark
from tests.servers.iceberg_rest import IcebergRest
from tests.sinks import many_changes
from tests.sinks.iceberg_places import Place, rest_place, sql_place
from tests.sinks.test_iceberg_faults import race

RACES = 1_000
EXPORT_SECONDS_MAX = 900
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"partitionBy": ["bucket(4, id)"]},
    {"maintenance": {"rewriteEvery": 5, "mergeManifestsEvery": 5, "manifestsMin": 5}},
]

pytestmark = [pytest.mark.exhaustive, pytest.mark.integration, pytest.mark.timeout(3600)]


def test_a_thousand_zombies_never_commit_a_checkpoint_twice(tmp_path: Path) -> None:
    place = sql_place(tmp_path)
    place.make()
    race(place, RACES)


def test_a_thousand_zombies_by_rest_never_commit_a_checkpoint_twice(iceberg_rest: IcebergRest) -> None:
    place = rest_place(iceberg_rest)
    place.make()
    race(place, RACES)


@pytest.mark.spark
@pytest.mark.usefixtures("iceberg_engine")
@pytest.mark.parametrize("layout", LAYOUTS, ids=["flat", "partitioned", "rewritten"])
def test_a_million_changes_leave_what_duckdb_says(tmp_path: Path, layout: dict[str, Any]) -> None:
    many_changes.make(tmp_path)
    place = sql_place(tmp_path)
    options = {
        **many_changes.UPSERT, **layout, "catalog": place.properties, "table": place.table, "write": "changes",
        "createTable": True,
    }  # fmt: skip
    many_changes.run(tmp_path, {"name": "lake", "type": "iceberg", "options": options})
    expected, missing, extra = many_changes.compare(tmp_path, exported(place, tmp_path / "seen"))
    assert expected > many_changes.KEYS // 2
    assert (missing, extra) == (0, 0)


def exported(place: Place, out: Path) -> Path:
    """What Spark with Iceberg sees, as Parquet."""
    rows = f"SELECT {', '.join(many_changes.COLUMNS)} FROM t"
    question = place.load().metadata_location, f"INSERT OVERWRITE DIRECTORY '{out}' USING parquet {rows}"
    iceberg_spark.ask(question, timeout_seconds=EXPORT_SECONDS_MAX)
    return out
