"""The `hive` sink and a real metastore 3.1, whose tables Spark reads by its own client."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer
from tests.servers.hive_metastore import Metastore
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import commit, stage
from tests.sinks.hive_place import Place
from tests.sinks.spark_hive import rows_by_spark
from tests.sinks.test_hive_tables import write

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DAY = datetime.date(2026, 1, 2)
INSTANT = datetime.datetime(2026, 7, 1, 12, 30, 15, 123456, datetime.UTC)


@pytest.fixture
def database(hive_metastore_3: Metastore) -> str:
    return hive_metastore_3.make_database()


@pytest.mark.parametrize("external", [True, False])
def test_a_metastore_3_knows_what_the_sink_needs(hive_metastore_3: Metastore, database: str, external: bool) -> None:
    settings: dict[str, Any] = {"partitionBy": ["id"], "successFile": True}
    if external:
        settings["location"] = str(hive_metastore_3.external / database)
    place = Place(hive_metastore_3, database, settings, hive_metastore_3.uri)
    sink = place.sink()
    sink.prepare_target(harness.SCHEMA)
    assert place.table().tableType == ("EXTERNAL_TABLE" if external else "MANAGED_TABLE")
    first, second = stage(sink, 1, ROWS), stage(sink, 2, MORE, [(1, "again")])
    assert commit(sink, first).answers() == {Answer.COMMITTED}
    identity = sink.evidence().target
    assert commit(sink, first, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, second, 1).answers() <= YES
    assert place.rows() == Counter([*ROWS, *MORE, (1, "again")])
    assert sink.evidence().checkpoint == 2
    staged = stage(sink, 3, MORE)
    place.create(place.drop())
    assert commit(sink, staged).reasons() & {"TargetReplaced", "CommittableLost"}
    sink.prepare_target(harness.SCHEMA)
    assert sink.evidence().target not in ("", identity)


def test_spark_reads_what_the_sink_has_written(hive_metastore_3: Metastore, database: str, tmp_path: Path) -> None:
    fields: dict[str, pa.DataType] = {
        "id": pa.int64(),
        "At": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "nested": pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.timestamp("us", tz="UTC")))]),
        "Carrier": pa.string(),
    }
    carriers = ["A A", "x=y/z%", None, "ünï"]
    same = {"At": INSTANT, "day": DAY, "price": Decimal("1.5"), "nested": {"a": [1, None], "m": [("k", INSTANT)]}}
    rows = [{"id": number, "Carrier": carrier, **same} for number, carrier in enumerate(carriers)]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))
    # In Parquet the instant is kept; in ORC the wall clock, which a JVM in New York (UTC-4) takes for its own.
    expected = {"parquet": "2026-07-01 12:30:15.123456", "orc": "2026-07-01 16:30:15.123456"}
    for kind in expected:
        settings = {"partitionBy": ["Carrier", "day"], "format": kind}
        place = Place(hive_metastore_3, database, settings, hive_metastore_3.uri, kind)
        assert write(place, batch).answers() == {Answer.COMMITTED}
    found = rows_by_spark(hive_metastore_3.uri, tmp_path, *(f"{database}.{kind}" for kind in expected))
    for at, table in zip(expected.values(), found, strict=True):
        assert {row["id"]: row["carrier"] for row in table} == dict(enumerate(carriers))
        for row in table:
            assert (row["day"], row["price"], row["at"]) == ("2026-01-02", 1.5, at)
            assert row["nested"] == {"a": [1, None], "m": {"k": at}}
