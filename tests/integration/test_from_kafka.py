"""Kafka to Kafka and to PostgreSQL, exactly once: Spark's connector reads, two sinks write what it has read, all is
killed between decision and commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Message, Producer

from tests.killmatrix.tree import Tree
from tests.servers.kafka import KafkaServer, locate_connector
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.programs import ProgramMissingError
from tests.sinks.kafka import Place, make_place, make_topic, read

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

COMMAND = (sys.executable, "-m", "sinkruntime.cli.main")
RUN = (*COMMAND, "run", "job.yaml", "--master", "local[2]", "--available-now")
WAIT_SECONDS_MAX = 120.0
SECRET = "COPY_URL"
ROWS = 300
KEYS = 7
PER_CHECKPOINT = 100


@pytest.fixture
def jars() -> list[str]:
    try:
        return [str(path) for path in locate_connector()]
    except ProgramMissingError as error:
        pytest.skip(f"missing jars: {error}")


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


def fill(bootstrap: str, topic: str) -> None:
    """Numbered rows in two transactions, and a third that is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"fill-{topic}"})
    producer.init_transactions(30)
    for first, last, kept in ((0, ROWS // 2, True), (10_000, 10_100, False), (ROWS // 2, ROWS, True)):
        producer.begin_transaction()
        for number in range(first, last):
            producer.produce(topic, f"value {number}".encode(), f"key {number % KEYS}".encode())
        producer.flush(30)
        (producer.commit_transaction if kept else producer.abort_transaction)(30)


def write_manifest(folder: Path, place: Place, source: str, jars: list[str]) -> None:
    options = {
        "kafka.bootstrap.servers": place.direct,
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(PER_CHECKPOINT),
        "kafka.isolation.level": "read_committed",
    }
    copy = {
        "bootstrapServers": place.address,
        "topic": place.topic,
        "transactionalIdPrefix": place.prefix,
        "key": ["key"],
        "keyFormat": "string",
        "value": ["value"],
        "valueFormat": "binary",
    }
    table: dict[str, Any] = {
        "name": "table",
        "type": "jdbc",
        "guarantee": "ExactlyOnce",
        "options": {"table": "copied"},
    }
    spec: dict[str, Any] = {
        "deps": {"jars": jars},
        "source": {"format": "kafka", "options": options},
        "transform": [{"sql": "SELECT CAST(key AS STRING) AS key, value, `partition`, `offset` FROM input"}],
        "trigger": {"type": "AvailableNow"},
        "sinks": [
            {"name": "copy", "type": "kafka", "guarantee": "ExactlyOnce", "options": copy, "select": ["key", "value"]},
            table | {"optionsFrom": [{"envRef": {"name": SECRET, "key": "url"}}]},
        ],
        "sparkConf": {"spark.sql.codegen.wholeStage": "false"},
    }
    head = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "copy", "namespace": "tests"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))


def kill_between_decision_and_commit(folder: Path, secrets: Mapping[str, str]) -> None:
    """`kill -9` to all processes when the second checkpoint is decided and none of its parts is committed."""
    crash = folder / "crash"
    crash.mkdir()
    places = {"SINKJOB_CRASH_POINT": "S8.after@2", "SINKJOB_CRASH_DIR": str(crash), **secrets}
    tree = Tree.start(RUN, folder, places, folder / "first.log")
    until = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while not (crash / "S8.after.hit").exists():
            assert tree.leader.poll() is None, tree.tail()
            assert time.monotonic() < until, tree.tail()
            time.sleep(0.02)
    finally:
        tree.kill()


def command(folder: Path, secrets: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        arguments, cwd=folder, env=os.environ | dict(secrets), capture_output=True, text=True,
        timeout=WAIT_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_record_arrives_once_in_both_targets(
    place: Place, postgresql: PostgreSQLServer, jars: list[str], tmp_path: Path
) -> None:
    source = f"{place.topic}-source"
    make_topic(place.admin, source, 2)
    fill(place.direct, source)
    write_manifest(tmp_path, place, source, jars)
    database = postgresql.make_database(f"copy-{uuid.uuid4().hex[:8]}")
    secrets = {SECRET: postgresql.url(database)}
    kill_between_decision_and_commit(tmp_path, secrets)
    command(tmp_path, secrets, *RUN)
    written = read(place.direct, source)
    assert len(written) == ROWS
    by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for message in read(place.direct, place.topic):
        by_key[message.key() or b""].append(message.value() or b"")
    assert by_key == {
        f"key {key}".encode(): [f"value {number}".encode() for number in range(key, ROWS, KEYS)] for key in range(KEYS)
    }
    assert place.ongoing() == []
    assert rows_of(postgresql, database, "copied") == sorted(
        (message.partition(), message.offset(), (message.key() or b"").decode(), message.value()) for message in written
    )
    check_commits(
        json.loads(command(tmp_path, secrets, *COMMAND, "commits", "job.yaml", "--output", "json")), source, written
    )


def rows_of(server: PostgreSQLServer, database: str, table: str) -> list[tuple[object, ...]]:
    with closing(server.connect(database)) as connection:
        ask = f'SELECT partition, "offset", key, value FROM {table} ORDER BY partition, "offset"'
        return connection.execute(ask.encode()).fetchall()


def check_commits(told: Any, source: str, written: Sequence[Message]) -> None:
    """Each checkpoint begins where the one before it ended, holds the records in between, and is proved by both
    targets; a checkpoint of an aborted transaction's records alone is empty, and may be proved by none."""
    before: dict[str, int] = {}
    total = 0
    for one in told["checkpoints"]:
        start = json.loads(one["start"])[source] if one.get("start") else {}
        end = json.loads(one["end"])[source]
        assert start == before
        inside = sum(start.get(f"{m.partition()}", 0) <= (m.offset() or 0) < end[f"{m.partition()}"] for m in written)
        assert one["rows"] == {"copy": inside, "table": inside}
        assert not inside or {proof["proved"] for proof in one["evidence"].values()} == {"yes"}
        before, total = end, total + inside
    assert total == ROWS
    assert len(told["checkpoints"]) >= ROWS // PER_CHECKPOINT
    assert told["targets"]["copy"]["evidence"] == told["targets"]["table"]["evidence"] > 0
