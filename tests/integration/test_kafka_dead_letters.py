"""A whole job whose Kafka topic does not take every row: the others are written, these are in another topic.

One decision covers both, so in = written + dead. Beyond `maxRows`, and without `deadLetter`, nothing is decided.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Message

from tests.integration.warm import warm
from tests.servers.kafka import KafkaServer
from tests.sinks.kafka import Place, make_place, make_topic, read

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT_BYTES = 10_000
ROWS = 200
LARGE_EVERY, NOWHERE_EVERY = 40, 50
DEAD = sorted({*range(0, ROWS, LARGE_EVERY), *range(0, ROWS, NOWHERE_EVERY)})


def write_input(folder: Path, name: str, first: int) -> None:
    (folder / "input").mkdir(exist_ok=True)
    lines = []
    for at in range(ROWS):
        text = "x" * LIMIT_BYTES if at % LARGE_EVERY == 0 else "short"
        lines.append(json.dumps({"id": first + at, "text": text, "named": at % NOWHERE_EVERY != 0}) + "\n")
    (folder / "input" / name).write_text("".join(lines))


def write_manifest(folder: Path, place: Place, **dead_letter: Any) -> None:
    common = {"bootstrapServers": place.address, "transactionalIdPrefix": place.prefix}
    events = {
        "name": "events",
        "type": "kafka",
        "guarantee": "ExactlyOnce",
        "select": ["id", "text", f"IF(named, '{place.topic}', NULL) AS topic"],
        "options": {**common, "topicField": "topic", "producer": {"batch.size": LIMIT_BYTES}},
    }
    rejects = {"name": "rejects", "type": "kafka", "options": {**common, "topic": f"{place.topic}-dead"}}
    sinks = [{**events, "deadLetter": {"sink": "rejects", **dead_letter}}, rejects] if dead_letter else [events]
    spec = {
        "source": {"format": "json", "path": "input", "schema": "id BIGINT, text STRING, named BOOLEAN"},
        "trigger": {"type": "AvailableNow"},
        "commit": {"retry": {"initialBackoff": "50ms", "maxBackoff": "200ms"}},
        "sinks": sinks,
    }
    head = {"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "dead", "namespace": "tests"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**head, "spec": spec}, sort_keys=False))


def values(place: Place, topic: str) -> list[dict[str, Any]]:
    messages: list[Message] = read(place.direct, topic)
    return sorted((json.loads(one.value() or b"") for one in messages), key=lambda value: value.get("id", 0))


def test_rows_that_a_topic_does_not_take_are_dead_letters_of_the_same_decision(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    place = make_place(kafka_server.bootstrap)
    topic = f"{place.topic}-narrow"
    make_topic(place.admin, topic, 2, {"max.message.bytes": str(LIMIT_BYTES)})
    make_topic(place.admin, f"{topic}-dead", 1)
    place = Place(place.direct, place.address, topic, place.admin)
    run = ("run", "job.yaml", "--master", "local[2]")
    with warm(tmp_path / "warm.log") as runner:
        write_input(tmp_path, "1.json", 0)
        write_manifest(tmp_path, place, maxRows=len(DEAD))
        done = runner.run(tmp_path, *run)
        assert done.code == 0, done.output
        assert [value["id"] for value in values(place, topic)] == [n for n in range(ROWS) if n not in DEAD]
        letters = values(place, f"{topic}-dead")
        assert sorted(json.loads(letter["row"])["id"] for letter in letters) == DEAD
        assert {(letter["sink"], letter["checkpoint"]) for letter in letters} == {("events", 1)}
        assert {letter["reason"] for letter in letters} == {"RecordTooLarge", "TopicMissing"}
        told = json.loads(runner.run(tmp_path, "explain", "job.yaml", "--checkpoint", "1", "--output", "json").output)
        assert told["rows"] == {"events": ROWS - len(DEAD), "rejects": len(DEAD)}

        write_input(tmp_path, "2.json", ROWS)
        write_manifest(tmp_path, place, maxRows=len(DEAD) - 1)
        stopped = runner.run(tmp_path, *run)
        assert stopped.code == 1, stopped.output
        assert "TooManyRefused" in stopped.output
        assert "spec.sinks[0].deadLetter.maxRows" in stopped.output
    assert len(values(place, topic)) == ROWS - len(DEAD), "nothing of the failed batch is visible"
    assert len(values(place, f"{topic}-dead")) == len(DEAD)
