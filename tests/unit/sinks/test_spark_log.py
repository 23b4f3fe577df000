"""Spark's log of committed files: numbering, compaction, damage, and other writers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.file import spark_log
from sinkruntime.storage.local import LocalStorage
from sinkruntime.storage.s3 import S3Storage
from sinkruntime.storage.settings import Storage
from tests.sinks import harness


class Place:
    """A directory with a log, and files to put into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(str(root), harness.identity())
        self.log = root / "_spark_metadata"

    def add(self, *names: str, known: int = -1) -> int:
        for name in names:
            (self.root / name).write_text(name)
        return spark_log.add(self.storage, [[name, len(name)] for name in names], known)

    def read(self) -> list[str]:
        """The files that a reader of the log sees: the latest compaction, and all since."""
        batches = {int(name.removesuffix(".compact")): name for name in os.listdir(self.log)}
        compact = [batch for batch, name in batches.items() if name.endswith(".compact")]
        first = max(compact, default=0)
        lines = [line for batch in sorted(batches) if batch >= first for line in self.lines(batches[batch])]
        return [json.loads(line)["path"].rpartition("/")[2] for line in lines]

    def lines(self, name: str) -> list[str]:
        version, *lines = (self.log / name).read_text().split("\n")
        assert version == "v1"
        return lines


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", ["a/part-0.parquet", "c=New York/p", "c=a%2Fb%25/p", "c=Zürich|}/p"])
def test_an_address_in_a_bucket_is_a_uri_that_leads_back_to_the_key(name: str) -> None:
    """Spark reads the log's addresses as URIs, and decodes them."""
    address = S3Storage("s3://bucket/some where", Storage(), harness.identity(), 1).uri(name)
    assert unquote(address.removeprefix("s3a://bucket/")) == f"some where/{name}"
    assert re.fullmatch(r"[A-Za-z0-9/:=._%-]+", address)


def test_is_compaction_batch() -> None:
    assert [batch for batch in range(10) if spark_log.is_compaction_batch(batch, 3)] == [2, 5, 8]


def test_valid_batches_before_compaction() -> None:
    assert list(spark_log.batches_before_compaction(5, 3)) == [2, 3, 4]
    assert list(spark_log.batches_before_compaction(2, 3)) == [0, 1]


def test_derive_compact_interval() -> None:
    assert spark_log.derive_interval(10, 4) == 5
    assert spark_log.derive_interval(10, 11) == 12
    assert spark_log.derive_interval(10, 29) == 10
    assert spark_log.derive_interval(10, 32) == 11
    assert spark_log.derive_interval(10, 22) == 23


def test_every_tenth_batch_holds_all_before_it(place: Place) -> None:
    batches = [place.add(f"f{number}", known=number - 1) for number in range(23)]
    assert batches == list(range(23))
    assert (place.log / "9.compact").exists()
    assert (place.log / "19.compact").exists()
    assert place.read() == [f"f{number}" for number in range(23)]


def test_an_entry_has_what_spark_reads(place: Place) -> None:
    place.add("a b.parquet")
    (line,) = place.lines("0")
    entry = json.loads(line)
    assert entry.pop("modificationTime") > 0
    assert entry.pop("blockSize") > 0
    assert entry == {
        "path": f"file://{place.root}/a%20b.parquet",
        "size": 11,
        "isDir": False,
        "blockReplication": 1,
        "action": "add",
    }


def test_adding_again_what_is_there_adds_nothing(place: Place) -> None:
    place.add("a")
    batch = place.add("b", "c", known=0)
    place.add("another-jobs", known=1)
    assert place.add("b", "c", known=0) == batch
    assert place.read() == ["a", "b", "c", "another-jobs"]


def test_second_writer_takes_the_next_batch(place: Place, tmp_path: Path) -> None:
    class Slower(LocalStorage):
        """Another writer comes between the look and the write."""

        beaten = False

        def replace(self, path: str, data: bytes, expected: object) -> bool:
            if not self.beaten:
                self.beaten = True
                place.add("first")
            return super().replace(path, data, None)

    (tmp_path / "second").write_text("")
    slower = Slower(str(tmp_path), harness.identity())
    assert spark_log.add(slower, [["second", 0]], -1) == 1
    assert place.read() == ["first", "second"]


def test_missing_log_file_in_compaction_fails(place: Place) -> None:
    for number in range(9):
        place.add(f"f{number}", known=number - 1)
    (place.log / "4").unlink()
    with pytest.raises(TargetError, match="_spark_metadata/4 is missing"):
        place.add("f9", known=8)


@pytest.mark.parametrize("text", ["", "v2\n{}", 'v1\n{"path":"fi', "v1\n[]"])
def test_incomplete_log_file_is_rejected(place: Place, text: str) -> None:
    place.add("a")
    (place.log / "0").write_text(text)
    with pytest.raises(TargetError, match="LogDamaged"):
        place.add("b", known=-1)


def test_old_batches_go_once_readers_had_time(place: Place) -> None:
    for number in range(129):
        place.add(f"f{number}", known=number - 1)
    names = set(os.listdir(place.log))
    assert {"0", "9.compact"} <= names
    for name in names:
        os.utime(place.log / name, (1_000, 1_000))
    place.add("f129", known=128)
    left = sorted(int(name.removesuffix(".compact")) for name in os.listdir(place.log))
    assert left[0] == 29
    assert left[-1] == 129
    assert place.read() == [f"f{number}" for number in range(130)]
