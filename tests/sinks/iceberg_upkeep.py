"""What the tests of the Iceberg sink's maintenance share: tables to maintain, kills, what others do. Holds no test."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.table.snapshots import Operation

from sinkruntime.api import Answer
from sinkruntime.sinks.iceberg import expiry, files, rewrite, snapshot, upkeep
from tests.sinks import harness
from tests.sinks.harness import commit, stage
from tests.sinks.iceberg_places import Place

REWRITE = {"rewriteEvery": 1}
MERGE = {"mergeManifestsEvery": 1, "manifestsMin": 5}
EXPIRE = {"expireEvery": 1, "expireAge": "1ms"}
ORPHANS = {"orphansEvery": 1}
OLD_SECONDS = 100 * 3600.0


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards is done."""


def append(place: Place, first: int, last: int) -> Counter[harness.Row]:
    """Checkpoints of a row each; all rows that must be visible then."""
    sink = place.sink()
    for number in range(first, last + 1):
        assert commit(sink, stage(sink, number, [(number, "x")]), number - 1).answers() == {Answer.COMMITTED}
    return Counter((number, "x") for number in range(1, last + 1))


def maintain(place: Place, checkpoint: int = 1, **told: Any) -> None:
    place.sink(maintenance=told).post_commit(checkpoint, ())


def live_files(place: Place, content: int = 0) -> list[str]:
    found = [entry.data_file for entry in upkeep.live(place.load(), "main")]
    return [item.file_path for item in found if int(item.content) == content]


def age(folder: str) -> None:
    """All files there were written long ago."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            before = os.stat(path).st_mtime - OLD_SECONDS
            os.utime(path, (before, before))


def upkeep_files(place: Place) -> set[str]:
    return {path for path in place.data_files() if "/upkeep/" in path}


def at_send(monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[[], None]], None]) -> None:
    """`act` stands in for every request of maintenance; what it is given sends it."""
    original = snapshot.send

    def send(*arguments: Any) -> None:
        act(lambda: original(*arguments))

    for module in (snapshot, expiry):
        monkeypatch.setattr(module, "send", send)


def die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cleaned up any more."""
    for kind in (rewrite.Made, snapshot.Draft):
        monkeypatch.setattr(kind, "discard", lambda *_: None)
    raise Killed


def delete_position(place: Place, data_file: str, position: int) -> None:
    """Another engine's position delete of one row."""
    table = place.load()
    path = f"{table.location()}/data/{uuid.uuid4().hex}-deletes.parquet"
    ids = [("file_path", pa.string(), b"2147483546"), ("pos", pa.int64(), b"2147483545")]
    schema = pa.schema([pa.field(name, kind, False, {b"PARQUET:field_id": number}) for name, kind, number in ids])
    rows = pa.table({"file_path": [data_file], "pos": [position]}, schema=schema)
    pyarrow.parquet.write_table(rows, place.local(path))
    item = {"name": os.path.basename(path), "size": os.path.getsize(place.local(path)), "rows": 1, "content": 1}
    made = files.DataFiles(table.metadata).make(item, os.path.dirname(path), 0)
    snapshot.Draft(table, "main", "theirs").commit(snapshot.Content(added=[made]), Operation.OVERWRITE)
