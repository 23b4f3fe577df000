"""Kafka to Kafka, exactly once: Spark's connector reads, transactions write, a kill between decision and commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from tests.killmatrix.tree import Tree
from tests.servers.kafka import KafkaServer, locate_connector
from tests.servers.programs import ProgramMissingError
from tests.sinks.kafka import Place, make_place, make_topic, read

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

COMMAND = (sys.executable, "-m", "sinkruntime.cli.main")
RUN = (*COMMAND, "run", "job.yaml", "--master", "local[2]", "--available-now")
WAIT_SECONDS_MAX = 120.0
ROWS = 300
KEYS = 7


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
        "maxOffsetsPerTrigger": "100",
        "kafka.isolation.level": "read_committed",
    }
    sink = {
        "bootstrapServers": place.address,
        "topic": place.topic,
        "transactionalIdPrefix": place.prefix,
        "key": ["key"],
        "keyFormat": "string",
        "value": ["value"],
        "valueFormat": "binary",
    }
    spec: dict[str, Any] = {
        "deps": {"jars": jars},
        "source": {"format": "kafka", "options": options},
        "transform": [{"sql": "SELECT CAST(key AS STRING) AS key, value FROM input"}],
        "trigger": {"type": "AvailableNow"},
        "sinks": [{"name": "copy", "type": "kafka", "guarantee": "ExactlyOnce", "options": sink}],
        "sparkConf": {"spark.sql.codegen.wholeStage": "false"},
    }
    head = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "copy", "namespace": "tests"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))


def kill_between_decision_and_commit(folder: Path) -> None:
    """`kill -9` to all processes when the second checkpoint is decided and none of its transactions is ended."""
    crash = folder / "crash"
    crash.mkdir()
    places = {"SINKJOB_CRASH_POINT": "S8.after@2", "SINKJOB_CRASH_DIR": str(crash)}
    tree = Tree.start(RUN, folder, places, folder / "first.log")
    until = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while not (crash / "S8.after.hit").exists():
            assert tree.leader.poll() is None, tree.tail()
            assert time.monotonic() < until, tree.tail()
            time.sleep(0.02)
    finally:
        tree.kill()


def command(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        arguments, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_record_arrives_once_in_its_keys_order(place: Place, jars: list[str], tmp_path: Path) -> None:
    source = f"{place.topic}-source"
    make_topic(place.admin, source, 2)
    fill(place.direct, source)
    write_manifest(tmp_path, place, source, jars)
    kill_between_decision_and_commit(tmp_path)
    command(tmp_path, *RUN)
    by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for message in read(place.direct, place.topic):
        by_key[message.key() or b""].append(message.value() or b"")
    assert by_key == {
        f"key {key}".encode(): [f"value {number}".encode() for number in range(key, ROWS, KEYS)] for key in range(KEYS)
    }
    assert place.ongoing() == []
    told = json.loads(command(tmp_path, *COMMAND, "commits", "job.yaml", "--output", "json"))
    text = json.dumps(told)
    assert source in text  # the source's own offsets
    assert f"group {place.prefix}" in text  # and the target's own word
