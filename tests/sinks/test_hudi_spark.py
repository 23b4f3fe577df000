"""Hudi on Spark reads what we have written, only what is committed, and writes to the same tables in between."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from tests.servers.hudi_reader import HudiReader
from tests.sinks import harness
from tests.sinks.harness import commit

pytestmark = [pytest.mark.integration, pytest.mark.spark]

FIELDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "label": pa.string(),
    "day": pa.date32(),
    "small": pa.int16(),
    "price": pa.decimal128(12, 3),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "ratio": pa.float64(),
    "half": pa.float32(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
    "tags": pa.list_(pa.string()),
    "counts": pa.map_(pa.string(), pa.int32()),
    "nested": pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
}
SCHEMA = pa.schema(FIELDS)
AT = datetime.datetime(2026, 11, 21, 10, 30, 0, 123456, tzinfo=datetime.UTC)


def row(number: int, label: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "label": label,
        "day": datetime.date(2026, 11, number % 28 + 1),
        "small": number % 100,
        "price": decimal.Decimal(number) / 8,
        "at": AT,
        "local": AT.replace(tzinfo=None),
        "ratio": number / 3,
        "half": 0.5,
        "flag": number % 2 == 0,
        "raw": b"\x00\xff",
        "tags": ["a", None, ""],
        "counts": [("k", number), ("n", None)],
        "nested": {"x": number, "y": {"z": label}},
        **more,
    }


LABELS = (None, "plain", "ünï 😀", "x/y=z %41", 'q"u:o*t?e', "שלום")


def sink_at(path: Path, **more: Any) -> HudiSink:
    options = Options.model_validate({"path": str(path), "table": "flights", **more})
    return HudiSink(options, harness.identity())


def stage(sink: HudiSink, checkpoint: int, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> harness.Staged:
    lineage = Lineage(checkpoint, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, schema))
    writer.open()
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return harness.Staged(checkpoint, 1, ((lineage, harness.finish(sink, writer, checkpoint)),))


def test_every_type_and_partition_value_is_read_as_it_was_written(tmp_path: Path, hudi_spark: HudiReader) -> None:
    for style in (False, True):
        path = tmp_path / f"table-{style}"
        sink = sink_at(path, recordKey=["id"], partitionBy=["label", "day"], hiveStyle=style)
        sink.prepare_target(SCHEMA)
        assert hudi_spark.rows(str(path)) == []
        first = [row(number, label) for number, label in enumerate(LABELS)]
        nulls = [{"id": 100, "label": "plain", "day": AT.date()}]
        assert commit(sink, stage(sink, 1, first + nulls)).answers() == {Answer.COMMITTED}
        stage(sink, 2, [row(200, "plain")])
        found = sorted(hudi_spark.rows(str(path)), key=lambda row: row["id"])
        own = [{name: value for name, value in row.items() if not name.startswith("_hoodie")} for row in found]
        expected = pa.Table.from_pylist(first + nulls, schema=SCHEMA).to_pylist()
        assert own == expected
        (instant,) = {row["_hoodie_commit_time"] for row in found}
        assert {row["_hoodie_record_key"] for row in found} == {f"id:{row['id']}" for row in found}
        for row_ in found:
            file = path / row_["_hoodie_partition_path"] / row_["_hoodie_file_name"]
            assert file.is_file()
            assert file.stem.endswith(f"_{instant}")


def test_a_table_of_hudis_own_writer_is_appended_to_and_read_by_both(tmp_path: Path, hudi_spark: HudiReader) -> None:
    path = tmp_path / "theirs"
    theirs = {
        "hoodie.table.name": "flights",
        "hoodie.write.table.version": "6",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.metadata.enable": "false",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "label",
        "hoodie.datasource.write.operation": "insert",
    }
    select = "SELECT CAST(id AS BIGINT) id, label FROM VALUES (1, 'a'), (2, 'b') t(id, label)"
    assert len(hudi_spark.rows(str(path), {**theirs, "sinkjob.write": select})) == 2
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("label", pa.string())]
    schema = pa.schema(fields)
    sink = sink_at(path, recordKey=["id"], partitionBy=["label"], urlEncode=False)
    with pytest.raises(TargetError, match="the table requires a value"):
        sink.prepare_target(schema)
    required = pa.schema([fields[0], fields[1].with_nullable(False)])
    sink.prepare_target(required)
    assert commit(sink, stage(sink, 1, [{"id": 3, "label": "a"}], required)).answers() == {Answer.COMMITTED}
    again = "SELECT CAST(id AS BIGINT) id, label FROM VALUES (4, 'a') t(id, label)"
    rows = hudi_spark.rows(str(path), {**theirs, "sinkjob.write": again})
    assert sorted((row["id"], row["label"]) for row in rows) == [(1, "a"), (2, "b"), (3, "a"), (4, "a")]
    assert commit(sink, stage(sink, 2, [{"id": 5, "label": "b"}], required), 1).answers() == {Answer.COMMITTED}
    assert {row["id"] for row in hudi_spark.rows(str(path))} == {1, 2, 3, 4, 5}


def test_what_hudi_archives_is_no_evidence_any_more_and_is_never_guessed(
    tmp_path: Path, hudi_spark: HudiReader
) -> None:
    """Hudi's archiver takes our commits out of the timeline, in the order of their instants; their rows stay."""
    path = tmp_path / "ours"
    theirs = {
        "hoodie.table.name": "flights",
        "hoodie.write.table.version": "6",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.metadata.enable": "false",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
        "hoodie.datasource.write.operation": "insert",
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "sinkjob.write": "SELECT CAST(100 AS BIGINT) id, 'theirs' label",
    }
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("label")])
    sink = sink_at(path, recordKey=["id"])
    sink.prepare_target(schema)
    for number in range(1, 5):
        row_ = [{"id": number, "label": "a"}]
        assert commit(sink, stage(sink, number, row_, schema), number - 1).answers() == {Answer.COMMITTED}
    before = len(list(path.glob(".hoodie/*.commit")))
    hudi_spark.rows(str(path), theirs)
    assert len(list(path.glob(".hoodie/*.commit"))) < before
    assert sink.evidence().checkpoint == 4
    sink.prepare_target(schema)
    assert commit(sink, stage(sink, 5, [{"id": 5, "label": "a"}], schema), 4).answers() == {Answer.COMMITTED}
    for _ in range(3):
        rows = hudi_spark.rows(str(path), theirs)
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 5, 100, 100, 100, 100]
    assert sink.evidence().checkpoint == 0
    assert commit(sink, stage(sink, 6, [{"id": 6, "label": "a"}], schema), 5).reasons() == {"TargetBehindLedger"}
