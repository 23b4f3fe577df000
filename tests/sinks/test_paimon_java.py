"""The paimon sink beside Paimon's own engine, in Java: it reads the tables, compacts them, lets snapshots expire."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sinkruntime.api import Answer
from tests.servers.paimon import PaimonPeer
from tests.servers.paimon_java import PaimonJava
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.test_paimon import TABLE, Place
from tests.sinks.test_paimon_faults import prepared

# Py4J leaves the pipe and the sockets of its process to the garbage collector.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def place(paimon_peer: PaimonPeer, tmp_path: Path) -> Place:
    return Place(paimon_peer, tmp_path, str(tmp_path))


def test_an_append_table_with_partitions_is_read(place: Place, paimon_java: PaimonJava) -> None:
    sink = prepared(place, partitionBy=["name"])
    for checkpoint in range(1, 35):  # so many that manifests are merged
        commit(sink, stage(sink, checkpoint, ROWS, [(checkpoint, f"a/b=c %{checkpoint % 3}")]), checkpoint - 1)
    expected = ROWS * 34 + [(checkpoint, f"a/b=c %{checkpoint % 3}") for checkpoint in range(1, 35)]
    assert Counter(paimon_java.rows(place.folder, TABLE)) == Counter(expected)


def test_a_table_with_a_key_is_read_compacted_and_written_on(
    place: Place, paimon_java: PaimonJava, tmp_path: Path
) -> None:
    sink = prepared(place, write="upsert", key=["id"], bucket=3)
    rows = [(number % 500, f"{number}") for number in range(2_000)]
    commit(sink, stage(sink, 1, rows[:1_000]))
    commit(sink, stage(sink, 2, rows[1_000:]), 1)
    assert Counter(paimon_java.rows(place.folder, TABLE)) == Counter(dict(rows).items())
    paimon_java.compact(place.folder, TABLE, 3, tmp_path)
    assert place.snapshots()[-1]["commitKind"] == "COMPACT"
    commit(sink, stage(sink, 3, [(7, "new"), (1_000, None)]), 2)
    expected = Counter({**dict(rows), 7: "new", 1_000: None}.items())
    assert Counter(paimon_java.rows(place.folder, TABLE)) == expected
    assert Counter((row["id"], row["name"]) for row in place.rows()) == expected


def test_our_consumer_keeps_the_evidence_when_snapshots_expire(place: Place, paimon_java: PaimonJava) -> None:
    sink = prepared(place)
    for checkpoint in (1, 2, 3):
        commit(sink, stage(sink, checkpoint, ROWS), checkpoint - 1)
    place.peer.append(place.folder, TABLE, [{"id": 7, "name": "theirs"}], times=4)
    paimon_java.expire(place.folder, TABLE)
    assert [found["id"] for found in place.snapshots()] == [3, 4, 5, 6, 7]
    assert sink.evidence().checkpoint == 3
    assert commit(sink, stage(sink, 4, MORE), 3).answers() == {Answer.COMMITTED}
    paimon_java.expire(place.folder, TABLE)
    assert [found["id"] for found in place.snapshots()] == [8]
    assert Counter(paimon_java.rows(place.folder, TABLE)) == Counter(ROWS * 3 + MORE + [(7, "theirs")] * 4)
