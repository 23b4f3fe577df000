"""Spark with Delta Lake reads what the sink wrote, skips files by statistics, and takes its evidence for its own."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinkruntime.sinks.delta.table import app_id
from tests.servers import delta_spark
from tests.servers.programs import ProgramMissingError
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import SCHEMA, commit, stage
from tests.sinks.test_delta import Place
from tests.sinks.test_delta_tables import write
from tests.sinks.test_delta_upsert import cdc_sink, stage_changes

pytestmark = [pytest.mark.spark, pytest.mark.integration]

DAY = datetime.date(2024, 2, 29)
AT = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, datetime.UTC)
WIDE = pa.table(
    {
        "p": ["a b/c=%'é", None, "x"],
        "v": [1, 2, 3],
        "s": ["naïve", "", None],
        "d": [DAY, None, DAY],
        "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
        "local": pa.array([AT.replace(tzinfo=None), None, None], pa.timestamp("us")),
        "m": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")], pa.decimal128(20, 2)),
        "f": [float("nan"), 0.5, None],
        "l": [[1, 2], [], None],
        "st": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
    }
)


def place_in(folder: Path) -> Place:
    return Place(folder, str(folder), {})


def test_spark_reads_back_what_was_written_and_its_own_writes_fit(tmp_path: Path) -> None:
    try:
        delta_spark.locate()
    except ProgramMissingError as error:
        pytest.skip(f"missing engine: {error}")
    plain, wide, keyed = (place_in(tmp_path / name) for name in ("plain", "wide", "keyed"))
    sink = plain.sink()
    sink.prepare_target(SCHEMA)
    commit(sink, stage(sink, 1, ROWS))
    commit(sink, stage(sink, 2, MORE), 1)
    write(wide.sink(partitionBy=["p"]), 1, WIDE)
    changes = cdc_sink(keyed)
    commit(changes, stage_changes(changes, 1, [(1, "a", 1, "I"), (2, "b", 1, "I")]))
    commit(changes, stage_changes(changes, 2, [(1, "new", 2, "U"), (2, None, 2, "D"), (3, "c", 2, "I")]), 1)
    mine = app_id(sink.identity)
    answers = delta_spark.ask(
        f"SELECT id, name FROM delta.`{plain.directory}`",
        *(f"SELECT v FROM delta.`{wide.directory}` WHERE {condition}" for condition in CONDITIONS),
        f"SELECT p, v, s, d, m, l, st, unix_micros(at) AS at, CAST(local AS STRING) AS local, CAST(f AS STRING) AS f "
        f"FROM delta.`{wide.directory}` ORDER BY v",
        f"SELECT id, name FROM delta.`{keyed.directory}`",
        delta_spark.append(plain.directory, mine, 2),  # Spark takes it for written already
        delta_spark.append(plain.directory, "theirs", 2),
        delta_spark.append(plain.directory, mine, 3),
    )
    assert Counter((row["id"], row.get("name")) for row in answers[0]) == Counter(ROWS + MORE)
    for (condition, expected), answer in zip(CONDITIONS.items(), answers[1:], strict=False):
        assert [row["v"] for row in answer] == expected, condition
    rest = answers[1 + len(CONDITIONS) :]
    check_wide(rest[0])
    assert sorted((row["id"], row["name"]) for row in rest[1]) == [(1, "new"), (3, "c")]
    assert Counter(row[0] for row in plain.rows())[-1] == 2
    assert DeltaTable(plain.path).transaction_version(mine) == 3
    evidence = sink.evidence()
    assert evidence is not None
    assert evidence.checkpoint == 3
    assert commit(sink, stage(sink, 4, [(4, "four")]), 3).reasons() == set()


#: Conditions that make Spark look at the statistics and partition values, and the rows that meet them.
CONDITIONS: dict[str, list[int]] = {
    'p = "a b/c=%\'é"': [1],
    "p IS NULL": [2],
    "s = 'naïve'": [1],
    "d = DATE'2024-02-29' AND v < 3": [1],
    "at = TIMESTAMP'2024-02-29 12:00:00.123456Z' AND v = 3": [3],
    "local >= TIMESTAMP_NTZ'2024-02-29 12:00:00.123456'": [1],
    "m < 0": [3],
    "f > 1": [1],  # NaN is greater than any number
    "f = 0.5": [2],
}


def check_wide(rows: list[dict[str, Any]]) -> None:
    assert [row.get("p") for row in rows] == ["a b/c=%'é", None, "x"]
    assert [row.get("s") for row in rows] == ["naïve", "", None]
    assert [row.get("d") for row in rows] == ["2024-02-29", None, "2024-02-29"]
    assert [row.get("m") for row in rows] == [1.5, None, -0.01]
    micros = round(AT.replace(microsecond=0).timestamp()) * 1_000_000 + AT.microsecond
    assert [row.get("at") for row in rows] == [micros, None, micros]
    assert [row.get("local") for row in rows] == ["2024-02-29 12:00:00.123456", None, None]
    assert [row.get("f") for row in rows] == ["NaN", "0.5", None]
    assert [row.get("l") for row in rows] == [[1, 2], [], None]
    assert [row.get("st") for row in rows] == [{"a": 1, "b": "x"}, None, {}]
