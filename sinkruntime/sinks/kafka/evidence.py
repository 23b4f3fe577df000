"""The evidence of the `kafka` sink: an offset of a consumer group of its own, `<prefix><ledger id>.<sink>`.

The group has no consumer. Its committed offset on partition 0 of each topic that a checkpoint wrote to is the number of
that checkpoint; it is moved in a transaction of the id `<group>.evidence`, whose initialisation fences every other
committer: between reading the evidence and moving it nobody else can move it. Kafka drops it with its topic.
Used by the committers and the sink.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sinkruntime.api import SinkIdentity
from sinkruntime.sinks.kafka import wire
from sinkruntime.sinks.kafka.broker import Cluster
from sinkruntime.sinks.kafka.clients import (
    REQUEST_TIMEOUT_SECONDS,
    admin_settings,
    load,
    producer_settings,
    translated,
)
from sinkruntime.sinks.kafka.connection import AnswerLost
from sinkruntime.sinks.kafka.names import base_name
from sinkruntime.sinks.kafka.options import Options

if TYPE_CHECKING:
    from confluent_kafka import Producer

#: The evidence's own transaction is open for milliseconds; one whose committer died is aborted after this.
TRANSACTION_TIMEOUT_SECONDS = 10
INIT_TIMEOUT_SECONDS = 30.0
#: While the end of such a transaction is written, its offset is not told.
UNSTABLE_WAIT_SECONDS = 25.0
PAUSE_SECONDS = 0.02
#: Of an offset's metadata; the broker's own bound (`offset.metadata.max.bytes`) is 4096.
DETAIL_CHARACTERS_MAX = 2_000
TOPICS_MAX = 10
#: The states in which an end is decided, and not yet written everywhere.
_ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True)
class Marker:
    """The last checkpoint of this sink in the cluster, and what it was made of, for people."""

    checkpoint: int = 0
    detail: str = ""


class Fenced(Exception):
    """Another committer has taken the evidence over: nothing was moved."""


class EvidenceGroup:
    """Reads the evidence."""

    def __init__(self, options: Options, identity: SinkIdentity, cluster: Cluster) -> None:
        self.group = base_name(options.transactional_id_prefix, identity)
        self._cluster = cluster

    @property
    def transactional_id(self) -> str:
        """Of the transactions that move the evidence."""
        return f"{self.group}.evidence"

    def read(self) -> Marker:
        """What is committed. Waits while an end is being written. Raises `ConnectionError`, `TargetError`."""
        until = time.monotonic() + UNSTABLE_WAIT_SECONDS
        while True:
            ended = self._ended()  # before the offsets: what was committed until then is in them
            found = self._cluster.offsets(self.group)
            errors = {one.error for one in found if one.error}
            if ended and not errors:
                return _latest([one for one in found if one.partition == 0 and one.offset >= 0])
            if errors - {wire.UNSTABLE_OFFSET}:
                raise ConnectionError(f"the offsets of group {self.group} are not told: errors {sorted(errors)}")
            if time.monotonic() > until:
                raise ConnectionError(f"the offsets of group {self.group} stay unstable")
            time.sleep(PAUSE_SECONDS)

    def _ended(self) -> bool:
        """Whether no end is being written. Of a partition that had no offset before, the group's coordinator does not
        even say that its first one is unstable: it leaves it out."""
        found = self._cluster.describe([self.transactional_id]).get(self.transactional_id)
        return found is None or found.state not in _ENDING


class EvidenceMover:
    """Moves the evidence; one at a time. Its producer is kept while nobody fences it."""

    def __init__(self, options: Options, group: EvidenceGroup) -> None:
        self._options = options
        self._group = group
        self._producer: Producer | None = None
        self._marker = Marker()

    def claim(self) -> Marker:
        """Take the evidence over from everybody else, and read it. Until somebody takes it over in turn, it is
        what is returned here or was moved to since."""
        if self._producer is None:
            load()
            from confluent_kafka import Producer

            settings = {
                **producer_settings(self._options),
                "transactional.id": self._group.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_SECONDS * 1000,
                "message.timeout.ms": TRANSACTION_TIMEOUT_SECONDS * 1000,
            }
            with translated("taking over the evidence"):
                producer = Producer(settings)
                producer.init_transactions(INIT_TIMEOUT_SECONDS)
            self._marker = self._group.read()
            self._producer = producer
        return self._marker

    def move(self, checkpoint: int, topics: Sequence[str], detail: dict[str, Any]) -> None:
        """After `claim`. Raises `Fenced`, `AnswerLost` (it may be moved), `ConnectionError`, `TargetError`."""
        from confluent_kafka import TopicPartition

        producer = self._producer
        assert producer is not None, "the evidence is claimed before it is moved"
        text = json.dumps(detail, separators=(",", ":"))[:DETAIL_CHARACTERS_MAX]
        offsets = [TopicPartition(topic, 0, checkpoint, text) for topic in sorted(topics)[:TOPICS_MAX]]
        self._producer = None  # whatever goes wrong from here on: claim anew
        with _moving():
            producer.begin_transaction()
            producer.send_offsets_to_transaction(offsets, self._membership(), REQUEST_TIMEOUT_SECONDS)
        with _moving(ending=True):
            producer.commit_transaction(REQUEST_TIMEOUT_SECONDS)
        self._producer, self._marker = producer, Marker(checkpoint, text)

    def close(self) -> None:
        self._producer = None

    def _membership(self) -> Any:
        """The group, as librdkafka wants it named; nobody joins it and nothing connects."""
        from confluent_kafka import Consumer

        consumer = Consumer({**admin_settings(self._options), "group.id": self._group.group})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()


@contextmanager
def _moving(ending: bool = False) -> Iterator[None]:
    """Errors of a transaction: fenced; `ending`, without an answer it may be committed; or what they are elsewhere."""
    from confluent_kafka import KafkaError, KafkaException

    fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
    try:
        with translated("moving the evidence"):
            yield
    except (ConnectionError, OSError) as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].code() in fenced:
            raise Fenced("another committer moves the evidence") from error
        if ending:
            raise AnswerLost(str(error)) from error
        raise


def _latest(offsets: Sequence[wire.Offset]) -> Marker:
    if not offsets:
        return Marker()
    last = max(offsets, key=lambda one: one.offset)
    return Marker(last.offset, last.metadata)
