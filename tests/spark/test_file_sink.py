"""The file sink and a real Spark: who stages, how directories are named, and what Spark reads back."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from sinkruntime.api import Answer, Lineage, StageContext
from sinkruntime.errors import TargetError
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from sinkruntime.storage.names import partition_directory
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import Row, Staged, commit

pytestmark = pytest.mark.spark


def sink_at(path: Path, **options: Any) -> FileSink:
    return FileSink(Options.model_validate({"path": str(path), **options}), harness.identity())


def rows_df(spark: SparkSession, rows: Sequence[Row], tasks: int = 2) -> DataFrame:
    return spark.createDataFrame(rows, "id BIGINT, name STRING").repartition(tasks)


def stage_with_spark(sink: FileSink, df: DataFrame, checkpoint: int = 1, epoch: int = 1, mark: str = "aa") -> Staged:
    stem = f"{checkpoint:012d}-{epoch}-00000-0-{mark}"
    context = StageContext(sink.identity, checkpoint, epoch, stem, harness.ManualClock())
    found = sink.stage(df, context)
    assert found is not None
    items = [
        (Lineage(checkpoint, epoch, index, len(found), 0), harness.through_serializer(sink, committable))
        for index, committable in enumerate(found)
    ]
    return Staged(checkpoint, epoch, tuple(items))


def visible(path: Path, extension: str = "parquet") -> list[str]:
    found = [entry.relative_to(path) for entry in path.rglob(f"*.{extension}")]
    return sorted(str(entry) for entry in found if not any(part[0] in "_." for part in entry.parts))


def staged_left(path: Path) -> list[Path]:
    return [entry for entry in (path / "_sinkjob" / "staging").rglob("*") if entry.is_file()]


def read_parquet(path: Path) -> Counter[Any]:
    with duckdb.connect() as connection:
        names = [str(path / name) for name in visible(path)]
        return Counter(connection.execute("select id, name from read_parquet(?)", [names]).fetchall())


def test_spark_stages_invisibly_and_the_commit_links(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, stagedBy="spark")
    assert sink.can_stage()
    staged = stage_with_spark(sink, rows_df(spark, ROWS))
    assert visible(tmp_path) == []
    assert sum(sink.staged_rows(committable) for _, committable in staged.present()) == len(ROWS)
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert read_parquet(tmp_path) == Counter(ROWS)
    harness.clean(sink, 1)
    assert staged_left(tmp_path) == []
    assert Counter(map(tuple, spark.read.parquet(str(tmp_path)).collect())) == Counter(ROWS)


def test_what_spark_staged_is_recovered_cleaned_and_aborted(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, stagedBy="spark")
    winner = stage_with_spark(sink, rows_df(spark, ROWS), mark="aa")
    stage_with_spark(sink, rows_df(spark, ROWS), mark="bb")
    commit(sink, winner)
    harness.clean(sink, 1)
    assert staged_left(tmp_path) == []
    stage_with_spark(sink, rows_df(spark, MORE), checkpoint=2)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 3], unsettled=[2]))
    assert staged_left(tmp_path)
    harness.recover(sink, harness.garbage(epoch=2, firsts=[1, 2]))
    assert staged_left(tmp_path) == []
    aborted = stage_with_spark(sink, rows_df(spark, MORE), checkpoint=2, epoch=2)
    harness.ask(sink, "fence", aborted, 1)
    harness.ask(sink, "abort", aborted, 1)
    harness.clean(sink, 2, epoch=2)
    assert staged_left(tmp_path) == []
    assert read_parquet(tmp_path) == Counter(ROWS)


def test_a_late_commit_of_fenced_files_fails_and_a_later_one_lands(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, format="orc", stagedBy="spark")
    staged = stage_with_spark(sink, rows_df(spark, ROWS))
    late = harness.next_order()
    harness.ask(sink, "fence", staged)
    assert commit(sink, staged, order=late, may_have_landed=True).reasons() == {"Fenced"}
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert Counter(map(tuple, spark.read.orc(str(tmp_path)).collect())) == Counter(ROWS)


def test_an_empty_batch_stages_nothing(spark: SparkSession, tmp_path: Path) -> None:
    staged = stage_with_spark(sink_at(tmp_path, stagedBy="spark"), rows_df(spark, ROWS).where("id > 1000"))
    assert staged.items == ()
    harness.clean(sink_at(tmp_path), 1)
    assert staged_left(tmp_path) == []


def test_partitions_and_checkpoint_directories_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, partitionBy=["name"], directoryPerCheckpoint=True, stagedBy="spark")
    commit(sink, stage_with_spark(sink, rows_df(spark, ROWS)))
    expected = {f"checkpoint=1/{partition_directory(('name',), (name,))}" for _, name in ROWS}
    assert {name.rpartition("/")[0] for name in visible(tmp_path)} == expected
    again = spark.read.parquet(str(tmp_path)).groupBy("checkpoint").count().collect()
    assert [tuple(row) for row in again] == [(1, len(ROWS))]


#: Each ASCII character that a file's name can hold, and some beyond.
TEXTS = [f"a{chr(code)}b" for code in range(1, 128)] + ["ünïcødé ✈", " lead", "trail ", ".", "..", "a%2Fb", "", None]


def test_directories_are_named_as_spark_names_them(spark: SparkSession, tmp_path: Path) -> None:
    stamp = datetime.datetime(2024, 2, 29, 23, 59, 59, 120_000, datetime.UTC)
    values: list[tuple[Any, ...]] = [(text, 1) for text in TEXTS]
    spark.createDataFrame(values, "text STRING, n INT").coalesce(1).write.partitionBy("text").parquet(
        str(tmp_path / "texts")
    )  # fmt: skip
    assert directories(tmp_path / "texts", 1) == {partition_directory(("text",), (text,)) for text in TEXTS}
    row = (True, -7, decimal.Decimal("12.340"), datetime.date(1, 2, 3), stamp, stamp.replace(microsecond=0), 1)
    columns = ("a b", "i", "d", "day", "at", "second")
    ddl = "`a b` BOOLEAN, i INT, d DECIMAL(10,3), day DATE, at TIMESTAMP, second TIMESTAMP, n INT"
    spark.createDataFrame([row], ddl).write.partitionBy(*columns).parquet(str(tmp_path / "kinds"))
    assert directories(tmp_path / "kinds", len(columns)) == {partition_directory(columns, row[:-1])}


def directories(path: Path, depth: int) -> set[str]:
    found = path.glob("/".join(["*=*"] * depth))
    return {str(entry.relative_to(path)) for entry in found if entry.is_dir()}


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_spark_reads_what_our_writer_wrote(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    sink = sink_at(tmp_path, format=kind)
    commit(sink, harness.stage(sink, 1, ROWS, MORE))
    reader = spark.read.schema("id BIGINT, name STRING").option("escape", '"')
    # Spark's own CSV reader takes an empty string for null.
    expected = [(number, name or None if kind == "csv" else name) for number, name in ROWS + MORE]
    assert Counter(map(tuple, reader.format(kind).load(str(tmp_path)).collect())) == Counter(expected)


def test_the_log_shows_spark_whole_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, log="spark", partitionBy=["name"])
    previous = 0
    for checkpoint in range(1, 24):
        if checkpoint % 5 == 0:  # a checkpoint without files leaves no batch
            commit(sink, harness.stage(sink, checkpoint, []), previous)
            continue
        commit(sink, harness.stage(sink, checkpoint, [(checkpoint, "a/b"), (-checkpoint, None)]), previous)
        previous = checkpoint
    ids = [checkpoint for checkpoint in range(1, 24) if checkpoint % 5]
    half = harness.stage(sink, 24, [(24, "seen by listing only")])
    committer = sink.create_committer()
    committer.open()
    committer.commit(harness.requests_for(sink, half, previous).writers)
    committer.close()
    assert sorted(entry.name for entry in (tmp_path / "_spark_metadata").iterdir()) == sorted(
        [*map(str, [*range(9), *range(10, 19)]), "9.compact"]
    )
    df = spark.read.parquet(str(tmp_path))
    assert sorted(row.id for row in df.collect()) == sorted([*ids, *(-number for number in ids)])
    assert df.where(col("name") == "a/b").count() == len(ids)
    commit(sink, half, previous, may_have_landed=True)
    assert spark.read.parquet(str(tmp_path)).count() == 2 * len(ids) + 1


def test_a_log_that_spark_began_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().select(col("value"))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    before = spark.read.parquet(str(tmp_path / "out")).count()
    sink = sink_at(tmp_path / "out", log="spark", stagedBy="spark")
    df = spark.createDataFrame([(100,), (101,)], "value BIGINT")
    commit(sink, stage_with_spark(sink, df))
    assert spark.read.parquet(str(tmp_path / "out")).count() == before + 2


def test_other_columns_than_sparks_files_have_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).withColumn("name", lit("x")).write.mode("append").parquet(str(tmp_path))
    sink_at(tmp_path).prepare_target(harness.SCHEMA)
    spark.sql("select 1 as id, 'x' as name").write.mode("overwrite").parquet(str(tmp_path))
    with pytest.raises(TargetError, match="column `id`: the target has int32, it would get int64"):
        sink_at(tmp_path).prepare_target(harness.SCHEMA)
