"""`--sink kafka`: two topics on a broker that is killed now and then, behind what cuts its connections.

Connections are cut by chance, and answers to EndTxn are lost on purpose. Read back past all that by a
`read_committed` consumer. A key is the number of an input file, whose rows one task writes in order: within a key, they
must come in that order. Files of a bulk matrix have several row groups, which may be several tasks'.
"""

from __future__ import annotations

import datetime
import json
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from sinkruntime.sinks.kafka.broker import Cluster
from tests.killmatrix.cuts import Outages
from tests.killmatrix.rows import COLUMNS, DDL, EPOCH, Row, Rows
from tests.servers import kafka, toxiproxy
from tests.servers.lost_answers import LostAnswers
from tests.sinks.kafka import make_topic, read, stream

PARTITIONS = 3
TOPICS = {"lake": "kill-lake", "lines": "kill-lines"}

#: What the last run has left is ended by then; the evidence's own transactions live for 10 s.
SETTLED_SECONDS_MAX = 20.0
EXPORT_SECONDS_MAX = 900.0
#: Of a request: its length, then which it is.
END_TXN = (26).to_bytes(2, "big")
LENGTH_BYTES = 4
#: Rows of a bulk matrix that are there twice (`bulk.MAKE`): which task writes which of them cannot be told.
TWICE_EVERY = 500
WRONG_TOLD_MAX = 10

KINDS = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
TYPES = {name: KINDS.get(kind, kind) for name, kind in (column.split() for column in DDL.split(", "))}


class LostEnds(LostAnswers):
    """Loses answers to EndTxn, of the committers and of the evidence's producer."""

    def _found(self, data: bytes) -> str | None:
        return "EndTxn" if data[LENGTH_BYTES:].startswith(END_TXN) else None


class KafkaBench(Outages):
    """`lake` is committed by the coordinator (the default), `lines` by the driver."""

    server: kafka.KafkaServer
    kills_one_in = 6
    lost_one_in = 6

    def prepare(self) -> None:
        servers = self.folder / "servers"
        for name in ("kafka", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        self.server = self.stack.enter_context(kafka.serve(servers / "kafka"))
        self.answers = LostEnds(("127.0.0.1", self.server.inner_port), seed=self.chance.randrange(2**32))
        self.stack.enter_context(self.answers.serving())
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        advertised = f"127.0.0.1:{self.server.proxy_port}"
        self.proxy = self.stack.enter_context(toxics.proxy(self.answers.address, advertised))
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        for topic in TOPICS.values():
            make_topic(admin, topic, PARTITIONS)
        self._wrong_order: list[str] = []

    def sinks(self) -> list[dict[str, Any]]:
        common = {
            "bootstrapServers": self.proxy.listen,
            "key": ["origin"],
            "transactionTimeout": "15m",
            "producer": {"reconnect.backoff.max.ms": 500, "socket.timeout.ms": 10_000},
        }
        lake = {**common, "topic": TOPICS["lake"], "compression": "lz4"}
        lines = {**common, "topic": TOPICS["lines"], "keyFormat": "string"}
        sinks: list[dict[str, Any]] = [
            {"name": "lake", "type": "kafka", "guarantee": "ExactlyOnce", "options": lake},
            {"name": "lines", "type": "kafka", "options": lines, "commit": {"runOn": "Driver"}},
        ]
        return sinks[:1] if self.bulk else sinks

    def read(self, sink: str) -> Rows:
        rows: Rows = Rows()
        by_key: dict[int, list[int]] = {}
        for message in read(self.server.bootstrap, TOPICS[sink]):
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
        with closing(Cluster({"bootstrap.servers": self.server.bootstrap})) as cluster:
            while (found := cluster.ongoing(lambda name: True)) and time.monotonic() < until:
                time.sleep(0.2)
        for one in found:
            yield f"open transaction {one.id}"
        yield from self._wrong_order

    def export(self, sink: str, out: Path) -> None:
        lines, orders = out / "rows.json", Orders(self.folder / "input")
        with lines.open("wb") as file:
            for message in stream(self.server.bootstrap, TOPICS[sink], True, EXPORT_SECONDS_MAX):
                value = message.value() or b""
                file.write(value + b"\n")
                orders.look(json.loads(message.key() or b"")["origin"], int(value[len('{"id":') : value.index(b",")]))
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            read = f"read_json(?, format = 'newline_delimited', columns = {TYPES})"
            connection.execute(f"COPY (SELECT * FROM {read}) TO '{out / 'all.parquet'}' (FORMAT parquet)", [str(lines)])
        lines.unlink()
        self._wrong_order = orders.wrong


class Orders:
    """Whether the rows of each key come as each row group of their file has them."""

    def __init__(self, folder: Path) -> None:
        self.wrong: list[str] = []
        self._folder = folder
        self._places: dict[int, tuple[int, array[int], array[int]]] = {}
        self._last: dict[tuple[int, int], int] = {}

    def look(self, key: int, id: int) -> None:
        """At the next row of a key."""
        if id % TWICE_EVERY == 0:
            return
        if key not in self._places:
            self._places[key] = _places(self._folder / f"in-{key:06d}.parquet")
        first, groups, positions = self._places[key]
        group, position = (key, groups[id - first]), positions[id - first]
        if position <= self._last.get(group, -1) and len(self.wrong) < WRONG_TOLD_MAX:
            self.wrong.append(f"key {key}: row {id} comes too late")
        self._last[group] = position


def _places(path: Path) -> tuple[int, array[int], array[int]]:
    """The least id of a file, and by each id's distance from it: its row group, and its place there."""
    with pq.ParquetFile(path) as file:
        columns = [file.read_row_group(n, ["id"]).column("id") for n in range(file.num_row_groups)]
    ids = [[int(id) for id in column.to_pylist() if id is not None] for column in columns]
    first, last = min(min(some) for some in ids), max(max(some) for some in ids)
    groups, positions = (array("i", bytes(4 * (last - first + 1))) for _ in range(2))
    for group, some in enumerate(ids):
        for position, id in enumerate(some):
            groups[id - first], positions[id - first] = group, position
    return first, groups, positions


def row_of(message: Message) -> Row:
    """The row that a message's JSON value holds."""
    values = json.loads(message.value() or b"{}")
    at = values["at"]
    if at is not None:
        values["at"] = (datetime.datetime.fromisoformat(at) - EPOCH) // datetime.timedelta(microseconds=1)
    id, origin, name, note, amount, flag, micros, label = (values[column] for column in COLUMNS)
    return id, origin, name, note, amount, flag, micros, label


BENCH = KafkaBench
