"""How the tests of the Kafka sink look at a cluster: with confluent-kafka's own clients and Kafka's own words."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sinkruntime.api import Answer, CommitRequest, Lineage, Sink
from sinkruntime.sinks.kafka import KafkaSink
from sinkruntime.sinks.kafka.broker import Cluster
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.wire import Transaction
from tests.sinks import harness
from tests.sinks.harness import LEDGER, Row

WAIT_SECONDS = 20.0
PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """A topic of its own, and the address that the sink uses. `direct` is the broker's, for looking."""

    direct: str
    address: str
    topic: str
    admin: AdminClient = field(repr=False)
    partitions: int = 2

    def options(self, **more: Any) -> Options:
        given = {"bootstrapServers": self.address, "topic": self.topic, "transactionTimeout": "10m"} | more
        if given.get("topicField"):
            del given["topic"]
        return Options.model_validate(given)

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> Sink:
        return KafkaSink(self.options(**more), harness.identity(ledger_id, sink))

    def cluster(self) -> Cluster:
        """A client to look with."""
        return Cluster({"bootstrap.servers": self.direct})

    def ongoing(self) -> list[Transaction]:
        """Of writers: the evidence's own is none that anybody stages."""
        with closing(self.cluster()) as client:
            return [one for one in client.ongoing(lambda name: not name.endswith(".evidence")) if self.mine(one.id)]

    def mine(self, name: str) -> bool:
        return name.startswith(self.prefix)

    @property
    def prefix(self) -> str:
        return f"{self.topic}."

    def rows(self) -> Counter[Row]:
        values = [json.loads(message.value() or b"null") for message in self.messages()]
        return Counter((value["id"], value["name"]) for value in values)

    def messages(self, committed: bool = True, topic: str = "") -> list[Message]:
        return read(self.direct, topic or self.topic, committed)


def write_rows(sink: Sink, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Stage rows of any schema as checkpoint 1, and commit them."""
    lineage = Lineage(1, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, schema))
    writer.open()
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    committable = harness.finish(sink, writer, 1)
    committer = sink.create_committer()
    if committer is not None:
        committer.open()
        request = CommitRequest(committable, lineage, 0)
        committer.commit([request])
        committer.close()
        assert request.answer is Answer.COMMITTED


def make_place(direct: str, address: str = "", partitions: int = 2) -> Place:
    """A new topic."""
    admin = AdminClient({"bootstrap.servers": direct})
    topic = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(admin, topic, partitions)
    return Place(direct, address or direct, topic, admin, partitions)


def make_topic(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(WAIT_SECONDS)
    until = time.monotonic() + WAIT_SECONDS
    while topic not in admin.list_topics(timeout=5).topics and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)


def drop_topic(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
    until = time.monotonic() + WAIT_SECONDS
    while topic in admin.list_topics(timeout=5).topics and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)


def read(bootstrap: str, topic: str, committed: bool = True) -> list[Message]:
    """All messages of a topic, in the order of each partition; `committed`: of ended transactions only, up to the
    first open one, as a `read_committed` consumer is given them."""
    return list(stream(bootstrap, topic, committed, WAIT_SECONDS))


def stream(bootstrap: str, topic: str, committed: bool, seconds_max: float) -> Iterator[Message]:
    """The same, one by one, for topics that memory does not hold."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"look-{uuid.uuid4()}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        yield from _until_ends(consumer, list(partitions), seconds_max)
    finally:
        consumer.close()


def _until_ends(consumer: Consumer, partitions: Sequence[int], seconds_max: float) -> Iterator[Message]:
    left = set(partitions)
    until = time.monotonic() + seconds_max
    while left:
        if time.monotonic() > until:
            raise TimeoutError(f"partitions {sorted(left)} were not read to their ends")
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            left.add(int(message.partition() or 0))
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(int(message.partition() or 0))
        else:
            raise KafkaException(error)
