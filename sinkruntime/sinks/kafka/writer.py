"""The writer: a transaction per task and checkpoint, flushed and left open; or, without transactions, plain records.

Runs in an executor. The transaction begins with the first row, so an empty task has none. After `prepare_commit` the
broker holds all rows, invisible to `read_committed` consumers, and the producer is dropped as it is: it neither
commits nor aborts, and librdkafka's end of a producer does not either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.dead_letters import reject_nothing
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.clients import PRODUCER_BATCH_BYTES, error_of, load, producer_settings, translated
from sinkruntime.sinks.kafka.encode import Encoder, Records
from sinkruntime.sinks.kafka.names import POOL, base_name
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.screen import Screen
from sinkruntime.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from confluent_kafka import Producer

INIT_TIMEOUT_SECONDS = 30.0
ABORT_TIMEOUT_SECONDS = 10.0
#: librdkafka that is asked for a transaction before it has a connection looks again only half a second later; it has
#: one after this (measured with 2.16).
CONNECTING_SECONDS = 0.06
#: The producer says its id and epoch in its statistics, so often.
STATISTICS_SECONDS = 0.1
IDENTITY_WAIT_SECONDS = 30.0
#: One wait for room in the producer's queue, or for what is queued.
POLL_SECONDS = 0.5
#: Without transactions nothing bounds how long the broker may be away but this.
PLAIN_TIMEOUT_SECONDS = 300.0
#: Rows that are encoded at once.
CHUNK_ROWS = 8_192
TOPICS_IN_COMMITTABLE_MAX = 10


class KafkaWriter(SinkWriter):
    """Produces one task's rows."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._screen: Screen | None = None
        self._producer: Producer | None = None
        self._id = ""  # that a transaction would have
        self._transaction = ""  # the id of the one that is open
        self._opened_seconds = 0.0
        self._identity: tuple[int, int] | None = None
        self._failed: Exception | None = None
        self._dropped = False  # what failed was only given up by the client
        self._began_seconds = 0.0
        self._began_wall_seconds = 0.0
        self._rows = 0
        self._topics: set[str] = set()
        self._prepared = False

    def open(self) -> None:
        load()
        from confluent_kafka import Producer

        topics = Topics(self._options, asks_limits=self._context.reject is not reject_nothing)
        encoder = Encoder(self._options, self._context.schema)
        self._screen = Screen(self._options, encoder, topics, self._context.reject)
        settings = {**producer_settings(self._options), "on_delivery": self._on_delivery}
        if most := topics.batch_bytes_max():
            settings["batch.size"] = min(int(settings.get("batch.size", PRODUCER_BATCH_BYTES)), most)
        if self._options.transactions:
            lineage = self._context.lineage
            base = base_name(self._options.transactional_id_prefix, self._context.identity)
            self._id = POOL.take(base, lineage.epoch, lineage.checkpoint)
            timeout_ms = self._options.transaction_timeout.milliseconds
            settings |= {
                "transactional.id": self._id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "statistics.interval.ms": int(STATISTICS_SECONDS * 1000),
                "stats_cb": self._on_statistics,
            }
        else:
            settings["message.timeout.ms"] = int(PLAIN_TIMEOUT_SECONDS * 1000)
        with translated("opening the producer"):
            self._producer = Producer(settings)  # it connects while the first rows are made
        self._opened_seconds = time.monotonic()

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._screen is not None, "the runtime opens a writer before it writes"
        assert self._producer is not None
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            for records in self._screen.records(self._producer, batch.slice(start, CHUNK_ROWS)):
                if not self._rows:
                    self._begin(self._producer)
                self._rows += len(records.values)
                self._produce(self._producer, records)

    def _begin(self, producer: Producer) -> None:
        """Open the transaction, at the first row."""
        if self._options.transactions:
            with translated("opening the transaction"):
                producer.list_topics(self._options.topic, timeout=INIT_TIMEOUT_SECONDS)
                time.sleep(max(0.0, self._opened_seconds + CONNECTING_SECONDS - time.monotonic()))
                producer.init_transactions(INIT_TIMEOUT_SECONDS)
                producer.begin_transaction()
            self._transaction = self._id
        self._began_seconds = self._context.clock.monotonic()
        self._began_wall_seconds = self._context.clock.wall()

    def _produce(self, producer: Producer, records: Records) -> None:
        values = records.values
        keys = records.keys or [None] * len(values)
        if records.topics is None and records.headers is None:
            topic = self._options.topic
            assert topic is not None, "a sink without topicField has a topic"
            self._topics.add(topic)
            produce = producer.produce
            for key, value in zip(keys, values, strict=True):
                try:
                    produce(topic, value, key)
                except Exception as error:  # noqa: BLE001  (waited out, or translated)
                    self._again(producer, error, topic, {"value": value, "key": key})
        else:
            self._produce_each(producer, records, keys)
        producer.poll(0)
        self._raise_failed()

    def _produce_each(self, producer: Producer, records: Records, keys: list[bytes | None]) -> None:
        """Rows with topics or headers of their own."""
        count = len(records.values)
        topics = records.topics or [str(self._options.topic)] * count
        headers = records.headers or [None] * count
        self._topics.update(topics)
        for topic, key, value, of_row in zip(topics, keys, records.values, headers, strict=True):
            record: dict[str, Any] = {"value": value, "key": key}
            if of_row:
                record["headers"] = of_row
            try:
                producer.produce(topic, **record)
            except Exception as error:  # noqa: BLE001  (waited out, or translated)
                self._again(producer, error, topic, record)

    def _again(self, producer: Producer, error: Exception, topic: str, record: Mapping[str, Any]) -> None:
        """The queue is full: wait for room, for as long as the transaction lives. Order is kept: nothing overtakes."""
        until = time.monotonic() + self._patience_seconds
        while isinstance(error, BufferError):
            if time.monotonic() > until:
                raise ConnectionError("the brokers take no more records") from error
            producer.poll(POLL_SECONDS)
            self._raise_failed()
            try:
                producer.produce(topic, **record)
                return
            except Exception as caught:  # noqa: BLE001  (looked at by the loop, and translated below)
                error = caught
        with translated("producing"):
            raise error

    def flush(self, end_of_input: bool) -> None:
        if self._producer is None or not self._rows or not end_of_input:
            return
        until = time.monotonic() + self._patience_seconds
        while self._producer.flush(POLL_SECONDS):
            self._raise_failed()
            if time.monotonic() > until:
                raise ConnectionError("the brokers do not acknowledge the records")
        self._raise_failed()

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        if self._producer is None or not self._rows:
            return None
        self.flush(end_of_input=True)
        self._context.count("records_sent", self._rows)
        if not self._options.transactions:
            return None
        producer_id, producer_epoch = self._who_it_is(self._producer)
        self._prepared = True
        return {
            "id": self._transaction,
            "producer": producer_id,
            "epoch": producer_epoch,
            "rows": self._rows,
            "topics": sorted(self._topics)[:TOPICS_IN_COMMITTABLE_MAX],
            "began": round(self._began_wall_seconds, 3),
            "timeoutMs": self._options.transaction_timeout.milliseconds,
        }

    def remaining_life_seconds(self) -> float | None:
        if not self._transaction:
            return None
        return self._options.timeout_seconds - (self._context.clock.monotonic() - self._began_seconds)

    def abort_prepare(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None and self._transaction:
            with translated("aborting the transaction"):
                producer.abort_transaction(ABORT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Drop the producer. One that has not prepared has nothing that is needed: what is queued goes with it."""
        producer, self._producer = self._producer, None
        if producer is not None and not self._prepared:
            producer.purge()

    # --- callbacks, which librdkafka makes while it is polled

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error_of(error, f"a record of topic {message.topic()} was not written")
            self._dropped = error.name() in ("_PURGE_QUEUE", "_PURGE_INFLIGHT")

    def _on_statistics(self, text: str) -> None:
        if self._identity is None:
            told = json.loads(text).get("eos", {})
            if told.get("producer_id", -1) >= 0 and told.get("producer_epoch", -1) >= 0:
                self._identity = told["producer_id"], told["producer_epoch"]

    def _who_it_is(self, producer: Producer) -> tuple[int, int]:
        """The producer's id and epoch. They stay for the life of a producer that meets no error."""
        until = time.monotonic() + IDENTITY_WAIT_SECONDS
        while self._identity is None:
            producer.poll(STATISTICS_SECONDS / 4)
            self._raise_failed()
            if time.monotonic() > until:
                raise TargetError("NoProducerIdentity", "the producer does not say its id and epoch", path="options")
        return self._identity

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise (self._what_ended_it() if self._dropped else None) or self._failed

    def _what_ended_it(self) -> Exception | None:
        """Records are dropped when something else has ended their transaction. librdkafka says what it was to the next
        who asks for anything; another transaction is what it grants to nobody meanwhile."""
        from confluent_kafka import KafkaException

        if self._producer is None or not self._transaction:
            return None
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            known = error.args[0].name() != "_STATE"
            return error_of(error.args[0], "writing the records") if known else None
        return None

    @property
    def _patience_seconds(self) -> float:
        return self._options.timeout_seconds if self._options.transactions else PLAIN_TIMEOUT_SECONDS
