"""Spark with Iceberg's own runtime reads what the sink wrote: partitions, nested columns, equality deletes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.servers import iceberg_spark
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.iceberg_places import sql_place
from tests.sinks.test_iceberg_changes import CHANGES, OPTIONS, change, expected
from tests.sinks.test_iceberg_changes import put as put_changes
from tests.sinks.test_iceberg_partitions import TRANSFORMS, WIDE, put, wide_rows

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.mark.usefixtures("iceberg_engine")
def test_spark_reads_back_what_was_written(tmp_path: Path) -> None:
    questions: list[tuple[str, str]] = []

    (tmp_path / "plain").mkdir()
    plain = sql_place(tmp_path / "plain")
    plain.make()
    sink = plain.sink()
    commit(sink, stage(sink, 1, []), 0)
    harness.ask(sink, "fence", stage(sink, 2, MORE))
    commit(sink, stage(sink, 2, ROWS))
    questions.append((plain.load().metadata_location, "SELECT id, name FROM t"))

    keyed = sql_place(tmp_path, table="lake.keyed", more=OPTIONS | {"partitionBy": ["bucket(2, id)"]})
    sink = keyed.sink()
    sink.prepare_target(CHANGES)
    batches = [
        [change(number, f"n{number}") for number in range(20)],
        [change(number, "new") for number in range(5)] + [change(7, None, op="D"), change(8, None)],
        [change(7, "back"), change(1, None, op="D")],
    ]
    for number, batch in enumerate(batches, start=1):
        commit(sink, put_changes(sink, number, batch), number - 1)
    questions.append((keyed.load().metadata_location, "SELECT id, region, name FROM t"))

    told = {"rewriteEvery": 6, "mergeManifestsEvery": 7, "manifestsMin": 2, "expireEvery": 7, "expireAge": "1ms"}
    kept = sql_place(tmp_path, table="lake.kept", more=OPTIONS | {"maintenance": told})
    sink = kept.sink()
    sink.prepare_target(CHANGES)
    later = [[change(number, "first"), change(7, str(number))] for number in range(6)]
    later += [[change(7, None, op="D"), change(1, "last")], [change(2, None, op="D")]]
    for number, batch in enumerate(later, start=1):
        commit(sink, put_changes(sink, number, batch), number - 1)
        sink.post_commit(number, ())
    questions.append((kept.load().metadata_location, "SELECT id, region, name FROM t"))

    rows = wide_rows(20)
    for number, transform in enumerate(TRANSFORMS):
        place = sql_place(tmp_path, table=f"lake.t{number}", more={"createTable": True, "partitionBy": [transform]})
        sink = place.sink()
        sink.prepare_target(WIDE)
        commit(sink, put(sink, 1, rows))
        where = f"SELECT id, name, at, day, price, place.country c FROM t WHERE name = 'näme 3' AND {pruned(transform)}"
        questions.append((place.load().metadata_location, where))

    answers = iceberg_spark.ask(*questions)
    assert Counter((row.get("id"), row.get("name")) for row in answers[0]) == Counter(ROWS)
    assert sorted(((row["id"], row["region"], row.get("name")) for row in answers[1]), key=repr) == expected(batches)
    assert sorted(((row["id"], row["region"], row.get("name")) for row in answers[2]), key=repr) == expected(later)
    for transform, answer in zip(TRANSFORMS, answers[3:], strict=True):
        wanted = [row for row in rows if row["name"] == "näme 3"]
        assert sorted(row["id"] for row in answer) == sorted(row["id"] for row in wanted), transform
        assert {row["c"] for row in answer} == {row["place"]["country"] for row in wanted}
        assert {row["day"] for row in answer} == {str(row["day"]) for row in wanted}
        assert {row["price"] for row in answer} == {float(row["price"]) for row in wanted}


def pruned(transform: str) -> str:
    """A condition that holds for all rows with an id, and makes the reader look at the partition's values."""
    column = transform.partition("(")[2].rstrip(")").rpartition(",")[2].strip() or "name"
    return f"{column} IS NOT NULL"
