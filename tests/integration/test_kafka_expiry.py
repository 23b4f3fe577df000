"""Job and committer are down for longer than the brokers keep a decided checkpoint's transaction: its rows are lost.

That is told with checkpoint, rows and their place in the source; nothing is written past it before a person says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.warm import warm
from tests.killmatrix.tree import Tree
from tests.servers.kafka import KafkaServer
from tests.sinks.kafka import Place, make_place

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

RUN = ("run", "job.yaml", "--master", "local[2]")
WAIT_SECONDS_MAX = 150.0
ROWS = 10  # of each file


def write_input(folder: Path, number: int) -> None:
    (folder / "input").mkdir(exist_ok=True)
    rows = [{"id": number * ROWS + at, "name": f"file {number}"} for at in range(ROWS)]
    path = folder / "input" / f"{number}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the oldest first


def write_manifest(folder: Path, place: Place, **more: Any) -> None:
    options = {"bootstrapServers": place.address, "topic": place.topic, "transactionalIdPrefix": place.prefix}
    options |= {"transactionTimeout": "20s"}
    read = {"format": "json", "path": "input", "schema": "id BIGINT, name STRING"}
    spec = {
        "source": {**read, "options": {"maxFilesPerTrigger": "1"}},
        "trigger": {"type": "AvailableNow"},
        "commit": {"timeout": "3s"},
        "sinks": [{"name": "events", "type": "kafka", "options": options}],
        **more,
    }
    head = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "late", "namespace": "tests"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))


def kill_between_decision_and_commit(folder: Path) -> None:
    crash = folder / "crash"
    crash.mkdir()
    places = {"SINKJOB_CRASH_POINT": "S8.after@2", "SINKJOB_CRASH_DIR": str(crash)}
    tree = Tree.start((sys.executable, "-m", "sinkruntime.cli.main", *RUN), folder, places, folder / "first.log")
    until = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while not (crash / "S8.after.hit").exists():
            assert tree.leader.poll() is None, tree.tail()
            assert time.monotonic() < until, tree.tail()
            time.sleep(0.02)
    finally:
        tree.kill()


def ids(place: Place) -> list[int]:
    return sorted(json.loads(message.value() or b"")["id"] for message in place.messages())


@pytest.mark.timeout(600)
def test_rows_whose_transaction_expired_are_given_up_by_a_person_only(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    place = make_place(kafka_server.bootstrap)
    for number in range(3):
        write_input(tmp_path, number)
    write_manifest(tmp_path, place)
    kill_between_decision_and_commit(tmp_path)
    until = time.monotonic() + WAIT_SECONDS_MAX
    while place.ongoing() and time.monotonic() < until:
        time.sleep(0.2)
    with warm(tmp_path / "warm.log") as runner:
        held = runner.run(tmp_path, *RUN)
        assert held.code == 3, held.output
        assert "CommittableLost" in held.output
        assert f"{ROWS} rows of subtask 0 of checkpoint 2" in held.output
        assert ids(place) == list(range(ROWS)), "nothing is written past what is held"
        told = json.loads(runner.run(tmp_path, "explain", "job.yaml", "--checkpoint", "2", "--output", "json").output)
        assert (told["state"], told["rows"]) == ("held", {"events": ROWS})
        assert (told["start"], told["end"]) == ('{"logOffset":0}', '{"logOffset":1}'), "to run them again by hand"
        write_manifest(tmp_path, place, recovery={"nonce": 1, "accept": ["CommittableLost"]})
        done = runner.run(tmp_path, *RUN)
        assert done.code == 0, done.output
    assert ids(place) == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
