"""The file sink in a local directory when things go wrong, and how it bounds what it holds."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from sinkruntime.storage.marker import marker_path
from sinkruntime.storage.names import local_path, partition_directory
from sinkruntime.storage.writer import FileWriter
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES, commit_writers_only
from tests.sinks.harness import Row, commit, stage
from tests.sinks.test_file_local import query, visible_files


def make(path: Path, **options: Any) -> FileSink:
    return FileSink(Options.model_validate({"path": str(path), **options}), harness.identity())


def read(path: Path) -> Counter[Row]:
    return Counter(row for file in visible_files(path) for row in query(f"select id, name from '{file}'"))


def staged_files(path: Path) -> list[Path]:
    return [entry for entry in (path / "_sinkjob" / "staging").rglob("*") if entry.is_file()]


NOISE: list[Row] = [(number, os.urandom(500).hex()) for number in range(4_000)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("by design: only root can make a file system of its own")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_with_the_path_and_nothing_is_visible(small_disk: Path) -> None:
    sink = make(small_disk / "out", compression="none")
    with pytest.raises(TargetError, match=r"DiskFull: .*disk/out") as caught:
        fill(sink)
    assert caught.value.path == "options.path"
    assert visible_files(small_disk / "out") == []
    assert staged_files(small_disk / "out") == []
    assert commit(sink, stage(sink, 1, ROWS, attempt=1)).answers() == {Answer.COMMITTED}


@pytest.mark.parametrize("value", ["x" * 256, "é" * 126, "'" * 84, "a\0b"])
def test_a_partition_that_no_directory_can_be_named_after_is_refused_before_the_decision(
    tmp_path: Path, value: str
) -> None:
    sink = make(tmp_path, format="json", partitionBy=["name"])
    with pytest.raises(TargetError, match="NameNotPossible") as caught:
        stage(sink, 1, [(1, value)])
    assert caught.value.path == "options.partitionBy"
    assert staged_files(tmp_path) == []
    longest = "x" * (255 - len("name="))
    assert commit(sink, stage(sink, 1, [(1, longest)], attempt=1)).answers() == {Answer.COMMITTED}


def test_a_path_that_is_too_long_as_a_whole_is_refused_before_the_decision(tmp_path: Path) -> None:
    columns = [f"c{number}" for number in range(17)]
    with pytest.raises(TargetError, match="a path has at most 4095 bytes"):
        local_path(str(tmp_path), partition_directory(tuple(columns), ("x" * 250,) * 17) + "/part-0.json")


@pytest.mark.parametrize("kind", ["parquet", "csv", "orc", "avro", "json"])
def test_a_file_that_may_not_grow_is_said_with_the_path(tmp_path: Path, kind: str) -> None:
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, former[1]))
    try:
        with pytest.raises(TargetError, match="DiskFull"):
            fill(make(tmp_path, format=kind, compression="none"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)
    assert visible_files(tmp_path) == []
    assert staged_files(tmp_path) == []


def fill(sink: FileSink) -> None:
    """One task that writes more than there is room for, and ends as the runtime ends it."""
    writer = harness.open_writer(sink)
    try:
        for _ in range(4):
            writer.write(harness.batch_of(NOISE))
        writer.flush(end_of_input=True)
        writer.prepare_commit(1)
    except TargetError:
        writer.abort_prepare()
        raise
    finally:
        writer.close()


def test_a_crash_between_link_and_unlink_is_already_committed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS)
    (item,) = staged.present()[0][1]["files"]
    (source,) = staged_files(tmp_path)
    os.link(source, tmp_path / item["path"])
    assert {request.answer for request in harness.ask(sink, "probe", staged).writers} == {Answer.ALREADY_COMMITTED}
    made = commit(sink, staged, may_have_landed=True)
    assert made.writers[0].answer is Answer.ALREADY_COMMITTED
    assert staged_files(tmp_path) == []
    assert read(tmp_path) == Counter(ROWS)


@pytest.mark.parametrize("content", [b"mine", None])
def test_another_file_under_the_final_name_is_never_replaced(tmp_path: Path, content: bytes | None) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS)
    (item,) = staged.present()[0][1]["files"]
    final = tmp_path / item["path"]
    mine = content or bytes(item["size"])  # as long as ours, and yet another
    final.write_bytes(mine)
    made = commit(sink, staged)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"NameTaken"}
    assert final.read_bytes() == mine


def test_a_file_taken_away_before_a_lost_answer_was_asked_for_is_in_doubt(tmp_path: Path) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS)
    commit_writers_only(sink, staged)
    visible_files(tmp_path)[0].unlink()
    for made in (harness.ask(sink, "probe", staged), commit(sink, staged, may_have_landed=True)):
        assert made.writers[0].answer is Answer.UNKNOWN
        assert made.writers[0].reason == "InDoubt"


def test_a_file_taken_away_after_its_checkpoint_is_no_matter(tmp_path: Path) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS)
    commit(sink, staged)
    visible_files(tmp_path)[0].unlink()
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.ALREADY_COMMITTED}
    assert read(tmp_path) == Counter()


def test_a_target_that_was_rolled_back_refuses_what_comes_after(tmp_path: Path) -> None:
    sink = make(tmp_path)
    commit(sink, stage(sink, 1, ROWS))
    marker = tmp_path / marker_path(sink.identity)
    former = marker.read_bytes()
    commit(sink, stage(sink, 2, MORE), 1)
    marker.write_bytes(former)
    assert commit(sink, stage(sink, 3, MORE), 2).reasons() == {"TargetBehindLedger"}


def test_a_target_that_went_on_alone_refuses_what_was_not_told_of_it(tmp_path: Path) -> None:
    sink = make(tmp_path)
    commit(sink, stage(sink, 2, ROWS))
    assert commit(sink, stage(sink, 3, MORE), 1).reasons() == {"TargetAheadOfLedger"}
    assert read(tmp_path) == Counter(ROWS)


@pytest.mark.parametrize("text", ["", "{", '{"format": 2}', "[]", '{"format": 1}'])
def test_damaged_evidence_is_never_guessed(tmp_path: Path, text: str) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS)
    (tmp_path / marker_path(sink.identity)).write_text(text)
    with pytest.raises(TargetError, match="EvidenceDamaged"):
        sink.evidence()
    assert commit(sink, staged).reasons() == {"EvidenceDamaged"}
    assert read(tmp_path) == Counter()


def test_many_committers_at_once_commit_once(tmp_path: Path) -> None:
    sink = make(tmp_path)
    staged = stage(sink, 1, ROWS, MORE)
    rounds: list[harness.Round] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        barrier.wait(timeout=20)
        rounds.append(commit(sink, staged, may_have_landed=True))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(rounds) == 6
    assert set[Answer | None]().union(*(made.answers() for made in rounds)) <= YES
    moved = [made.aggregated[0].answer for made in rounds]
    assert moved.count(Answer.COMMITTED) == 1
    assert read(tmp_path) == Counter(ROWS + MORE)


def test_fences_and_commits_at_once_leave_one_winner(tmp_path: Path) -> None:
    sink = make(tmp_path)
    for checkpoint in range(1, 21):
        staged = stage(sink, checkpoint, ROWS)
        early, late = harness.next_order(), harness.next_order()
        made: dict[str, harness.Round] = {}
        threads = [
            threading.Thread(target=lambda: made.update(commit=commit(sink, staged, checkpoint - 1, order=early))),  # noqa: B023
            threading.Thread(target=lambda: made.update(fence=harness.ask(sink, "fence", staged, order=late))),  # noqa: B023
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        if made["fence"].writers[0].answer is Answer.FENCED:
            assert made["commit"].reasons() == {"Fenced"}
            assert commit(sink, staged, checkpoint - 1, may_have_landed=True).answers() == {Answer.COMMITTED}
        else:
            assert made["commit"].answers() == {Answer.COMMITTED}
    assert read(tmp_path) == Counter(ROWS * 20)


def test_files_are_rolled_by_size_and_rows_are_gathered_into_groups(tmp_path: Path) -> None:
    sink = make(tmp_path, targetFileSize="1MiB", compression="none")
    commit(sink, stage(sink, 1, NOISE))
    sizes = [file.stat().st_size for file in visible_files(tmp_path)]
    assert len(sizes) > 1
    assert all(size > 1024**2 for size in sizes[:-1])
    whole = make(tmp_path / "whole")
    commit(whole, stage(whole, 1, NOISE))
    (file,) = visible_files(tmp_path / "whole")
    assert pyarrow.parquet.read_metadata(file).num_row_groups == 1


def test_a_task_holds_few_files_open(tmp_path: Path) -> None:
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string()}
    sink = make(tmp_path, partitionBy=["id"], maxOpenFiles=3)
    context = harness.writer_context(sink, Lineage(1, 1, 0, 1, 0), pa.schema(fields))
    writer = sink.create_writer(context)
    assert isinstance(writer, FileWriter)
    writer.open()
    most = 0
    for turn in range(3):
        for number in range(10):
            writer.write(harness.batch_of([(number, str(turn))]))
            most = max(most, open_below(tmp_path))
    assert most == 3
    staged = harness.Staged(1, 1, ((context.lineage, harness.finish(sink, writer, 1)),))
    commit(sink, staged)
    found = query(f"select id, count(*) from read_parquet('{tmp_path}/*/*.parquet', hive_partitioning=true) group by 1")
    assert sorted(found) == [(number, 3) for number in range(10)]


def open_below(place: Path) -> int:
    """How many files below a place this process has open."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(link) and os.readlink(link).startswith(f"{place}/") for link in links)


def test_other_columns_than_the_target_was_given_are_refused(tmp_path: Path) -> None:
    sink = make(tmp_path, format="csv")
    sink.prepare_target(harness.SCHEMA)
    sink.prepare_target(harness.SCHEMA)
    number = pa.field("id", pa.int64())
    with pytest.raises(TargetError, match="column `name`: the target has string, the rows do not have it"):
        sink.prepare_target(pa.schema([number]))
    with pytest.raises(TargetError, match="column `more`: the target has no such column, it would get int64"):
        sink.prepare_target(pa.schema([*harness.SCHEMA, pa.field("more", pa.int64())]))


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="NotADirectory"):
        make(tmp_path / "file" / "below").prepare_target(harness.SCHEMA)


def test_what_staging_leaves_is_said_by_name_and_checkpoint(tmp_path: Path) -> None:
    sink = make(tmp_path, filePrefix="flights-")
    staged = stage(sink, 12, ROWS, epoch=3)
    commit(sink, staged)
    (file,) = visible_files(tmp_path)
    assert file.name.startswith("flights-")
    assert "-000000000012-3-00000-0-" in file.name
    assert json.loads((tmp_path / marker_path(sink.identity)).read_text())["job"] == "data/flights"
