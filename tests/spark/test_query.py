"""Whole jobs in a real Spark, with the real driver, coordinator and file ledger."""

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sinkruntime.errors import ConfigurationError, SinkjobError, StartRefused, TargetError
from sinkruntime.spark.columns import JobSink
from tests.spark.conftest import spec
from tests.spark.lines import lines_sink, read
from tests.spark.world import World

pytestmark = pytest.mark.spark

CSV = {"format": "csv", "path": "in", "schema": "id INT, name STRING", "options": {"maxFilesPerTrigger": "1"}}
NOW = {"type": "AvailableNow"}


def add_file(folder: Path, number: int, rows: int = 10) -> None:
    """An input file of its own rows, whole at once."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    text = "".join(f"{number * 1000 + row},n{row % 3}\n" for row in range(rows))
    part = folder / f"{number}.part"
    part.write_text(text)
    os.utime(part, (number, number))  # Spark takes the oldest first
    part.rename(folder / "in" / f"{number:03d}.csv")


def ids(folder: Path) -> Counter[int]:
    """The ids that a reader sees."""
    return Counter(row["id"] for row in read(folder))


def expected(*numbers: int, rows: int = 10) -> Counter[int]:
    """The ids of those input files."""
    return Counter(number * 1000 + row for number in numbers for row in range(rows))


def world(folder: Path, **fields: Any) -> World:
    """A CSV job with one sink."""
    job = spec(**({"source": CSV, "trigger": NOW} | fields))
    return World(folder, job, [JobSink(lines_sink(folder / "t"))])


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)


def test_available_now_reads_all_there_is_and_goes_on_later(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        add_file(tmp_path, number)
    job = world(tmp_path)
    assert job.run(spark)
    assert ids(tmp_path / "t") == expected(0, 1, 2)
    assert [(b.batch_id, b.rows, b.staged_rows, b.skipped) for b in job.batches] == [
        (n, 10, {"lines": 10}, False) for n in range(3)
    ]
    add_file(tmp_path, 3)
    assert job.run(spark)
    assert ids(tmp_path / "t") == expected(0, 1, 2, 3)
    ledger = job.ledger()
    assert (ledger.epoch, ledger.decided) == (2, 4)
    assert ledger.last is not None
    assert json.loads(ledger.last.position.end.text) == {"logOffset": 3}


def test_a_decided_batch_that_spark_never_committed_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path)
    job.run(spark)
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    add_file(tmp_path, 1)
    job.run(spark)
    assert [b.skipped for b in job.batches] == [False, True, False]
    assert ids(tmp_path / "t") == expected(0, 1)


def test_a_checkpoint_that_was_restored_one_batch_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path)
    job.run(spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    add_file(tmp_path, 1)
    job.run(spark)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "backup", tmp_path / "checkpoint")
    with pytest.raises(StartRefused) as caught:
        job.run(spark)
    assert caught.value.reason == "TargetAheadOfSource"


def test_processing_time_stops_between_batches_when_idle(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path, trigger={"type": "ProcessingTime", "interval": "200ms"})
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(job.run(spark)))
    thread.start()
    wait_for(lambda: len(job.batches) == 1)
    add_file(tmp_path, 1)
    wait_for(lambda: len(job.batches) == 2)
    job.stop.set()
    thread.join(60)
    assert results == [False]
    assert ids(tmp_path / "t") == expected(0, 1)
    job.stop.clear()
    add_file(tmp_path, 2)
    job.spec = spec(source=CSV, trigger=NOW)
    assert job.run(spark)
    assert ids(tmp_path / "t") == expected(0, 1, 2)


def test_a_stop_under_load_ends_at_a_checkpoint_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(20):
        add_file(tmp_path, number)
    job = world(tmp_path)
    job.stop_after = 2
    assert not job.run(spark)
    assert ids(tmp_path / "t") == expected(0, 1, 2)
    job.stop.clear()
    job.batches = []
    assert job.run(spark)
    assert ids(tmp_path / "t") == expected(*range(20))
    assert not any(batch.skipped for batch in job.batches)


def test_a_failing_sink_ends_the_query_with_its_own_error(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path)
    job.sinks = [JobSink(lines_sink(tmp_path / "t", fail=(0,)))]
    with pytest.raises(TargetError, match="subtask 0 will not have it"):
        job.run(spark)
    assert job.ledger().decided == 0
    job.sinks = [JobSink(lines_sink(tmp_path / "t"))]
    assert job.run(spark)
    assert ids(tmp_path / "t") == expected(0)


def test_batch_mode_is_decided_once(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    add_file(tmp_path, 1)
    job = world(tmp_path, mode="Batch", source=CSV | {"options": {}}, trigger={})
    assert job.run(spark, "revision-1/0")
    assert job.run(spark, "revision-1/0")
    assert [b.skipped for b in job.batches] == [False, True]
    assert ids(tmp_path / "t") == expected(0, 1)
    assert not (tmp_path / "checkpoint" / "offsets").exists()
    assert job.run(spark, "revision-1/1")
    assert ids(tmp_path / "t") == expected(0, 1, 0, 1)


def test_steps_select_and_two_sinks_share_one_decision(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    (tmp_path / "my_steps_of_this_test.py").write_text("def keep(df):\n    return df.where('id % 2 = 0')\n")
    steps = [
        {"sql": "SELECT *, upper(name) AS big FROM input WHERE id < 8"},
        {"python": "my_steps_of_this_test:keep"},
        {"sql": "SELECT id, big FROM input"},
    ]
    job = world(tmp_path, transform=steps)
    job.sinks = [
        JobSink(lines_sink(tmp_path / "a", "a")),
        JobSink(lines_sink(tmp_path / "b", "b"), 1, ("big",), "id > 2"),
    ]
    assert job.run(spark)
    assert sorted(row["id"] for row in read(tmp_path / "a")) == [0, 2, 4, 6]
    assert sorted(row["big"] for row in read(tmp_path / "b")) == ["N0", "N1"]
    assert job.ledger().decided == 1
    assert job.batches[0].staged_rows == {"a": 4, "b": 2}


def test_complete_mode_gives_the_whole_result_each_time(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    add_file(tmp_path, 1)
    steps = [{"sql": "SELECT name, count(*) AS n FROM input GROUP BY name"}]
    job = world(tmp_path, transform=steps, outputMode="Complete")
    assert job.run(spark)
    assert sorted((row["name"], row["n"]) for row in read(tmp_path / "t")) == [
        ("n0", 4), ("n0", 8), ("n1", 3), ("n1", 6), ("n2", 3), ("n2", 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"source": CSV | {"format": "nope"}}, "spec.source.format", "`nope`"),
        ({"source": CSV | {"path": "absent"}}, "spec.source.path", "absent does not exist"),
        ({"source": CSV | {"schema": "id INTT"}}, "spec.source.schema", "INTT"),
        ({"source": {"format": "csv", "path": "in"}}, "spec.source.schema", "schema"),
        ({"source": CSV | {"watermark": {"column": "ts", "delay": "1m"}}}, "spec.source.watermark.column", "`ts`"),
        ({"source": CSV | {"watermark": {"column": "id", "delay": "1m"}}}, "spec.source.watermark.column", "type int"),
        ({"transform": [{"sql": "SELECT 1 FROM input"}, {"sql": "SELEC x"}]}, "spec.transform[1].sql", "SELEC"),
        ({"transform": [{"sql": "SELECT nme FROM input"}]}, "spec.transform[0].sql", "nme"),
        ({"transform": [{"python": "no_such_module:f"}]}, "spec.transform[0].python", "no_such_module"),
        ({"transform": [{"python": "json:f"}]}, "spec.transform[0].python", "no `f`"),
        ({"transform": [{"python": "json:dumps"}]}, "spec.transform[0].python", "json:dumps raised TypeError"),
        ({"transform": [{"python": "builtins:id"}]}, "spec.transform[0].python", "returned int"),
        ({"transform": [{"sql": "SELECT 1"}]}, "spec.transform", "not a stream"),
    ],
)
def test_a_wrong_manifest_names_the_field(
    spark: SparkSession, tmp_path: Path, fields: dict[str, Any], path: str, text: str
) -> None:
    add_file(tmp_path, 0)
    with pytest.raises(ConfigurationError) as caught:
        world(tmp_path, **fields).query(spark)
    assert caught.value.path == path
    assert text in caught.value.message
    assert "\n" not in caught.value.message


def test_an_output_mode_that_the_query_cannot_have_names_its_field(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path, transform=[{"sql": "SELECT name, count(*) AS n FROM input GROUP BY name"}])
    with pytest.raises(ConfigurationError) as caught:
        job.run(spark)
    assert caught.value.path == "spec.outputMode"


def test_two_sinks_with_other_specs_keep_their_schemas(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path)
    job.sinks = [JobSink(lines_sink(tmp_path, "a")), JobSink(lines_sink(tmp_path, "b"), 1, ("name",))]
    assert {name: schema.names for name, schema in job.query(spark).schemas.items()} == {
        "a": ["id", "name"],
        "b": ["name"],
    }


def test_a_dead_driver_ends_the_query_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    job = world(tmp_path, trigger={"type": "ProcessingTime", "interval": "100ms"})
    errors: list[SinkjobError] = []

    def run() -> None:
        try:
            job.run(spark)
        except SinkjobError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: len(job.batches) == 1)
    newer = world(tmp_path)
    newer.run(spark)  # raises the epoch: the one above is fenced from here on
    add_file(tmp_path, 1)
    thread.join(60)
    assert [error.reason for error in errors] == ["Fenced"]
    assert newer.run(spark)
    assert ids(tmp_path / "t") == expected(0, 1)
