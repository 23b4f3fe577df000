"""`--sink kafka`: two topics on a broker that is reached through a proxy, and is itself killed now and then.

Read back past the proxy by a `read_committed` consumer. A key is the number of an input file, whose rows one task
writes in order: within a key, they must come in that order.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from sinkruntime.sinks.kafka.broker import Cluster
from tests.killmatrix.bench import Bench
from tests.killmatrix.rows import COLUMNS, EPOCH, Row, Rows
from tests.servers import kafka, toxiproxy
from tests.sinks.kafka import make_topic, read

PARTITIONS = 3
TOPICS = {"lake": "kill-lake", "lines": "kill-lines"}

#: A disturbance begins after so long at most, and lasts so long at most.
QUIET_SECONDS_MAX = 3.0
DISTURBED_SECONDS_MAX = 1.0
#: One disturbance in so many is a `kill -9` of the broker.
BROKER_KILLS_ONE_IN = 12
#: What the last run has left is ended by then; the evidence's own transactions live for 10 s.
SETTLED_SECONDS_MAX = 20.0

#: Connections that are reset, that hang until they are cut, and answers that are lost after the request has arrived.
TOXICS: tuple[tuple[str, Literal["upstream", "downstream"], dict[str, int]], ...] = (
    ("reset_peer", "downstream", {"timeout": 0}),
    ("reset_peer", "upstream", {"timeout": 20}),
    ("timeout", "downstream", {"timeout": 0}),
    ("limit_data", "downstream", {"bytes": 0}),
)


class KafkaBench(Bench):
    """`lake` is committed by the coordinator (the default), `lines` by the driver."""

    disturbs = True

    def prepare(self) -> None:
        servers = self.folder / "servers"
        for name in ("kafka", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        self._server = self.stack.enter_context(kafka.serve(servers / "kafka"))
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        self._proxy = self.stack.enter_context(self._server.proxied(toxics))
        admin = AdminClient({"bootstrap.servers": self._server.bootstrap})
        for topic in TOPICS.values():
            make_topic(admin, topic, PARTITIONS)
        self._toxic: str | None = None
        self._next = 0.0

    def sinks(self) -> list[dict[str, Any]]:
        common = {
            "bootstrapServers": self._proxy.listen,
            "key": ["origin"],
            "transactionTimeout": "10m",
            "producer": {"reconnect.backoff.max.ms": 500, "socket.timeout.ms": 10_000},
        }
        lake = {**common, "topic": TOPICS["lake"], "compression": "lz4"}
        lines = {**common, "topic": TOPICS["lines"], "keyFormat": "string"}
        return [
            {"name": "lake", "type": "kafka", "guarantee": "ExactlyOnce", "options": lake},
            {"name": "lines", "type": "kafka", "options": lines, "commit": {"runOn": "Driver"}},
        ]

    def read(self, sink: str) -> Rows:
        rows: Rows = Rows()
        by_key: dict[int, list[int]] = {}
        for message in read(self._server.bootstrap, TOPICS[sink]):
            row = row_of(message)
            rows[row] += 1
            by_key.setdefault(row[1], []).append(row[0])
        for origin, ids in by_key.items():
            self._check_order(origin, ids)
        return rows

    def _check_order(self, origin: int, ids: list[int]) -> None:
        """The file's rows come in its order; repeats of some of them, which other files hold, may come between."""
        lines = (self.folder / "input" / f"in-{origin:06d}.json").read_text(encoding="utf-8").split("\n")
        written = [row["id"] for row in map(json.loads, filter(None, lines)) if row["origin"] == origin]
        if Counter(written) - Counter(ids):
            return  # its own task has not committed yet
        left = iter(ids)
        wrong = next((id for id in written if id not in left), None)
        assert wrong is None, f"key {origin}: row {wrong} is not where its file has it"

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        until = time.monotonic() + SETTLED_SECONDS_MAX
        with closing(Cluster({"bootstrap.servers": self._server.bootstrap})) as cluster:
            while (found := cluster.ongoing(lambda name: True)) and time.monotonic() < until:
                time.sleep(0.2)
        for one in found:
            yield f"open transaction {one.id}"

    def disturb(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        if self._toxic is not None:
            self.calm()
            self._next = now + self.chance.random() * QUIET_SECONDS_MAX
            return
        self.disturbances += 1
        if self.chance.randrange(BROKER_KILLS_ONE_IN) == 0:
            self._server.kill()
            self._server.start()
            return
        kind, stream, attributes = self.chance.choice(TOXICS)
        self._toxic = self._proxy.add_toxic(kind, stream, **attributes)
        self._next = now + self.chance.random() * DISTURBED_SECONDS_MAX

    def calm(self) -> None:
        if self._toxic is not None:
            self._proxy.remove_toxic(self._toxic)
            self._toxic = None


def row_of(message: Message) -> Row:
    """The row that a message's JSON value holds."""
    values = json.loads(message.value() or b"{}")
    at = values["at"]
    if at is not None:
        values["at"] = (datetime.datetime.fromisoformat(at) - EPOCH) // datetime.timedelta(microseconds=1)
    id, origin, name, note, amount, flag, micros, label = (values[column] for column in COLUMNS)
    return id, origin, name, note, amount, flag, micros, label


BENCH = KafkaBench
