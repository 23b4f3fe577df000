"""Our `kafka` sink, exactly once, against Spark's own Kafka sink, which is at-least-once, on one broker.

`transactional.py` runs it. Both sides read the same Parquet files and write the same six columns as JSON, without a
key, uncompressed; what came is counted by a `read_committed` consumer of Spark's connector.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from benchmarks.figures import Figure, Round, in_turn
from benchmarks.jobs import SCHEMA, Bench
from tests.servers import kafka
from tests.sinks.kafka import drop_topic, make_topic

ROWS = 2_000_000
FILES = 4
PARTITIONS = 4


class KafkaWrite:
    """2 M rows in one batch."""

    name = "kafka"
    warm_up = True
    # Exactly-once is to reach 0.8 of the speed.
    figures: Sequence[Figure] = (Figure("kafka-batch", 1 / 0.8, "ours", "native"),)

    def __init__(self, stack: ExitStack, folder: Path, scale: float) -> None:
        data = folder / "kafka"
        data.mkdir()
        self._server = stack.enter_context(kafka.serve(data))
        # It ends before the broker does: a client that has lost its broker says so again and again.
        self._admin = stack.enter_context(AdminClient({"bootstrap.servers": self._server.bootstrap}))
        self._rows = max(FILES, int(ROWS * scale)) // FILES * FILES
        self._runs = 0

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark needs when it starts."""
        return {"spark.jars": ",".join(str(path) for path in kafka.locate_connector())}

    def use(self, bench: Bench) -> None:
        """The session to measure in."""
        self._bench = bench

    def prepare(self) -> None:
        """See `Measurement`."""
        self._source = self._bench.write_source("kafka-source", self._rows, FILES)

    def round(self, index: int) -> Round:
        """See `Measurement`."""
        return {name: self._once(name) for name in in_turn(index, ("native", "ours"))}

    def _once(self, name: str) -> float:
        self._runs += 1
        topic = f"bench-{self._runs}"
        make_topic(self._admin, topic, PARTITIONS)
        taken = self._native(topic) if name == "native" else self._ours(topic)
        found = self._count(topic)
        if found != self._rows:
            raise RuntimeError(f"{topic} has {found} rows, and {self._rows} were written")
        drop_topic(self._admin, topic)
        return taken

    def _native(self, topic: str) -> float:
        begun = time.perf_counter()
        rows = self._bench.session.read.schema(SCHEMA).parquet(str(self._source))
        writer = rows.selectExpr("to_json(struct(*)) AS value").write.format("kafka").option("topic", topic)
        writer.option("kafka.bootstrap.servers", self._server.bootstrap).save()
        return time.perf_counter() - begun

    def _ours(self, topic: str) -> float:
        source = {"format": "parquet", "path": str(self._source), "schema": SCHEMA}
        options = {"bootstrapServers": self._server.bootstrap, "topic": topic}
        sink = {"name": "out", "type": "kafka", "guarantee": "ExactlyOnce", "options": options}
        return self._bench.run(
            self._bench.new_folder("kafka-ours"), {"mode": "Batch", "source": source, "sinks": [sink]}
        )

    def _count(self, topic: str) -> int:
        reader = self._bench.session.read.format("kafka").option("kafka.bootstrap.servers", self._server.bootstrap)
        return reader.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load().count()
