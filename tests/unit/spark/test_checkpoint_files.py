"""Positions from Spark's files: what a batch's digest covers, compacted or not, and what damage is told apart."""

import json
from pathlib import Path

import pytest

from sinkruntime.errors import ConfigurationError, SinkjobError
from sinkruntime.protocol.ledger import Position
from sinkruntime.protocol.position import NOWHERE
from sinkruntime.spark.checkpoint_files import CheckpointFiles
from sinkruntime.spark.storage import LocalStorage, local_path


def write(path: Path, *lines: object) -> None:
    """A file as Spark writes it: a version, then JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *(line if isinstance(line, str) else json.dumps(line) for line in lines)]))


def plan(root: Path, batch: int, *sources: object, watermark_ms: int = 0) -> None:
    """Write `offsets/<batch>`."""
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {}}
    write(root / "offsets" / str(batch), metadata, *sources)


def log_entry(index: int, *names: str) -> list[dict[str, object]]:
    """The lines of entry `index` of a file source's log."""
    return [{"path": f"file:///{name}", "timestamp": 5, "batchId": index} for name in names]


def location(root: Path) -> CheckpointFiles:
    """Three batches of one file each."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"q1"}')
    for number in range(3):
        write(root / "sources/0" / str(number), *log_entry(number, f"f{number}"))
        plan(root, number, {"logOffset": number}, watermark_ms=number * 1000)
    return CheckpointFiles(LocalStorage(root))


def fresh(root: Path) -> CheckpointFiles:
    """Nothing remembered."""
    return CheckpointFiles(LocalStorage(root))


def test_a_batch_starts_where_the_one_before_ended(tmp_path: Path) -> None:
    files = location(tmp_path)
    positions = [files.position(batch) for batch in range(3)]
    assert positions[0].start == NOWHERE
    assert [p.start for p in positions[1:]] == [p.end for p in positions[:-1]]
    assert positions[2].query_id == "q1"
    assert positions[2].end.text == '{"logOffset": 2}'
    assert fresh(tmp_path).position(2) == positions[2], "what was read before does not matter"


def test_the_same_index_with_other_files_is_another_position(tmp_path: Path) -> None:
    before = location(tmp_path).position(2)
    write(tmp_path / "sources/0/2", *log_entry(2, "other"))
    after = fresh(tmp_path).position(2)
    assert after.end.text == before.end.text
    assert not after.same_rows(before)
    assert after.start == before.start


def test_compaction_changes_no_position(tmp_path: Path) -> None:
    before = [location(tmp_path).position(batch) for batch in range(3)]
    entries = [entry for number in range(3) for entry in log_entry(number, f"f{number}")]
    write(tmp_path / "sources/0/2.compact", *entries)
    for number in range(3):
        (tmp_path / "sources/0" / str(number)).unlink()
    assert [fresh(tmp_path).position(batch) for batch in range(3)] == before


def test_a_batch_of_two_entries_covers_both(tmp_path: Path) -> None:
    """A driver that died between the source's log and `offsets/1` leaves entry 1 for the next batch."""
    location(tmp_path)
    plan(tmp_path, 1, {"logOffset": 2})
    (tmp_path / "offsets/2").unlink()
    before = fresh(tmp_path).position(1)
    write(tmp_path / "sources/0/1", *log_entry(1, "other"))
    assert not fresh(tmp_path).position(1).same_rows(before)


def test_a_batch_without_new_files_has_a_position_too(tmp_path: Path) -> None:
    location(tmp_path)
    plan(tmp_path, 3, {"logOffset": 2}, watermark_ms=9000)
    plan(tmp_path, 4, {"logOffset": 2}, watermark_ms=9000)
    files = fresh(tmp_path)
    assert files.position(3).end == files.position(4).start
    assert files.watermark_ms(3) == 9000
    assert files.watermark_ms(0) is None


def test_other_sources_offsets_speak_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q1"}')
    plan(tmp_path, 0, {"topic": {"0": 5}}, "-")
    plan(tmp_path, 1, {"topic": {"0": 9}}, 7)
    assert fresh(tmp_path).position(1).end.text == '{"topic": {"0": 9}}\n7'


def test_two_sources_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q1"}')
    plan(tmp_path, 0, {"logOffset": 0}, {"logOffset": 0})
    write(tmp_path / "sources/0/0", *log_entry(0, "a"))
    write(tmp_path / "sources/1/0", *log_entry(0, "b"))
    before = fresh(tmp_path).position(0)
    write(tmp_path / "sources/0/0", *log_entry(0, "b"))
    write(tmp_path / "sources/1/0", *log_entry(0, "a"))
    assert not fresh(tmp_path).position(0).same_rows(before)


def test_the_view_has_what_the_start_check_asks_for(tmp_path: Path) -> None:
    files = location(tmp_path)
    write(tmp_path / "commits/0", "{}")
    write(tmp_path / "commits/1", "{}")
    (tmp_path / "commits/.2.crc").write_text("")
    assert files.mark("ledger-1", "ns/job") == "ledger-1"
    view = files.view()
    assert (view.marker, view.query_id, view.finished) == ("ledger-1", "q1", 1)
    assert isinstance(view.planned, Position)
    assert view.planned.batch_id == 2


def test_an_empty_location_is_no_disagreement(tmp_path: Path) -> None:
    view = fresh(tmp_path / "absent").view()
    assert (view.marker, view.query_id, view.planned, view.finished) == ("", "", None, -1)
    assert not fresh(tmp_path / "absent").stateful()
    assert not (tmp_path / "absent").exists()


def test_the_first_marker_stays_until_it_is_taken_over(tmp_path: Path) -> None:
    files = fresh(tmp_path)
    assert files.mark("one", "a/b") == "one"
    assert files.mark("two", "c/d") == "one"
    assert files.owner() == ("one", "a/b")
    files.take_over("two", "c/d")
    assert files.owner() == ("two", "c/d")
    assert [p.name for p in (tmp_path / "_sinkjob").iterdir()] == ["ledger_id"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("offsets/2", ""),
        ("offsets/2", "v2\n{}\n{}"),
        ("offsets/2", 'v1\nnot json\n{"logOffset":2}'),
        ("offsets/1", None),
        ("sources/0/2", None),
        ("sources/0/2", 'v1\n{"path": "torn'),
        ("metadata", "{}"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str | None) -> None:
    location(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SinkjobError, match=name) as caught:
        fresh(tmp_path).position(2)
    assert caught.value.reason == "CheckpointDamaged"
    assert "NewCheckpoint" in caught.value.advice


def test_a_location_that_cannot_be_used_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError) as caught:
        fresh(tmp_path / "file").mark("one", "a/b")
    assert caught.value.path == "spec.checkpoint.location"


@pytest.mark.parametrize(
    ("location_text", "path"),
    [("/a/b", "/a/b"), ("file:///a/b%20c", "/a/b c"), ("file:/a/b", "/a/b"), ("s3a://b/c", None), ("hdfs://h/c", None)],
)
def test_which_locations_are_on_this_machine(location_text: str, path: str | None) -> None:
    assert local_path(location_text) == (None if path is None else Path(path))
