"""The checkpoint location as a real Spark writes it: compaction, and storage that is reached through the JVM."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinkruntime.errors import ConfigurationError
from sinkruntime.protocol.ledger import Position
from sinkruntime.spark.checkpoint_files import CheckpointFiles
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.storage import CheckpointStorage, HadoopStorage, LocalStorage, open_storage
from tests.spark.conftest import spec
from tests.spark.lines import lines_sink, read
from tests.spark.world import World

pytestmark = pytest.mark.spark

SOURCE = {"format": "text", "path": "in", "options": {"maxFilesPerTrigger": "1"}}


@pytest.fixture
def frequent_compaction(spark: SparkSession) -> SparkSession:
    """Spark compacts the log of a file source at every third batch, and removes at once what is compacted."""
    conf = {
        "spark.sql.streaming.fileSource.log.compactInterval": "3",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
        "spark.sql.streaming.minBatchesToRetain": "2",
    }
    session = spark.newSession()
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def add_files(folder: Path, first: int, last: int) -> None:
    """A file per number, oldest first."""
    (folder / "in").mkdir(exist_ok=True)
    for number in range(first, last):
        path = folder / "in" / f"{number}.txt"
        path.write_text(f"line {number}\n")
        os.utime(path, (number + 1, number + 1))


def test_positions_hold_across_compaction(frequent_compaction: SparkSession, tmp_path: Path) -> None:
    job = World(tmp_path, spec(source=SOURCE, trigger={"type": "AvailableNow"}), [JobSink(lines_sink(tmp_path / "t"))])
    ends = []
    for first, last in [(0, 2), (2, 3), (3, 4), (4, 7), (7, 8), (8, 13)]:
        add_files(tmp_path, first, last)
        assert job.run(frequent_compaction), "its start check takes what compaction has left"
        seen = job.ledger().last
        assert seen is not None
        ends.append(seen.position.end.digest)
    assert len(set(ends)) == 6
    names = {path.name for path in (tmp_path / "checkpoint/sources/0").iterdir()}
    assert "11.compact" in names
    assert "1" not in names, "compacted and removed"
    assert sorted(row["value"] for row in read(tmp_path / "t")) == sorted(f"line {number}" for number in range(13))
    assert not any(batch.skipped for batch in job.batches)


@pytest.fixture(params=["local", "jvm"])
def storage(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> CheckpointStorage:
    """Both kinds, on the same disk."""
    if request.param == "jvm":
        return HadoopStorage(spark, f"file:{tmp_path}/location")
    return LocalStorage(tmp_path / "location")


def test_both_storages_create_read_list_and_replace_alike(storage: CheckpointStorage) -> None:
    assert storage.read("a/b") is None
    assert storage.names("a") == []
    assert storage.create("a/b", "one ü\n")
    assert not storage.create("a/b", "two")
    assert storage.read("a/b") == "one ü\n"
    storage.replace("a/b", "three")
    assert storage.read("a/b") == "three"
    assert storage.names("a") == ["b"]


def test_both_storages_see_the_same_position(spark: SparkSession, tmp_path: Path) -> None:
    job = World(tmp_path, spec(source=SOURCE, trigger={"type": "AvailableNow"}), [JobSink(lines_sink(tmp_path / "t"))])
    add_files(tmp_path, 0, 2)
    job.run(spark)
    location = f"{tmp_path}/checkpoint"
    local = CheckpointFiles(open_storage(spark, location)).view()
    assert CheckpointFiles(HadoopStorage(spark, "file:" + location)).view() == local
    assert isinstance(local.planned, Position)
    assert (local.planned.batch_id, local.finished) == (1, 1)


def test_a_location_of_an_unknown_scheme_names_the_field(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="No FileSystem for scheme") as caught:
        open_storage(spark, "nope://bucket/checkpoint").names("")
    assert caught.value.path == "spec.checkpoint.location"
