"""One job with three sinks: PostgreSQL by staging tables, PostgreSQL by prepared transactions, Kafka. One goes down.

First somebody holds a lock that the commits of one sink need: the others go on until the back-pressure stops all. Then
the server of one sink is not reached. What the other sinks have finished must stay as it is, to the row's version.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.killmatrix.bench import Bench
from tests.killmatrix.jdbc_staging import leftovers_of, rows_of
from tests.killmatrix.job import Job, Run, RunEnded
from tests.killmatrix.kafka import row_of
from tests.killmatrix.ledger import LedgerView
from tests.killmatrix.rows import Input, Rows
from tests.servers.kafka import KafkaServer
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks.kafka import Place, make_place, read

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

MAX_PENDING = 3  # as `Job` has it
SINKS = ("staging", "xa", "kafka")
DONE = ("committed", "cleaned")
#: How a run may end by itself while a sink is down: with an error, or in doubt.
ENDS = (0, 1, 3)
REACH_SECONDS_MAX = 180.0
PAUSE_SECONDS = 0.02
#: So long nothing may move while the back-pressure holds.
STILL_SECONDS = 1.0

#: A row of a table with the transaction that wrote it and its place, or a message's place: another version of it would
#: have another one.
Version = tuple[Any, ...]


class ThreeSinks(Bench):
    """Its sinks; each server is reached through a proxy of its own."""

    disturbs = True
    server: PostgreSQLServer
    database: str
    place: Place
    proxies: Mapping[str, Proxy]

    def environment(self) -> Mapping[str, str]:
        return {f"{name}_URL": self.server.url(self.database, self.proxies[name].listen) for name in SINKS[:2]}

    def sinks(self) -> list[dict[str, Any]]:
        def table(name: str) -> dict[str, Any]:
            options = {"table": f"{name}_rows", "mode": name, "lockTimeout": "1s"}
            secret = [{"envRef": {"name": f"{name}_URL", "key": "url"}}]
            return {"name": name, "type": "jdbc", "options": options, "optionsFrom": secret}

        topic = {
            "bootstrapServers": self.place.address,
            "topic": self.place.topic,
            "transactionalIdPrefix": self.place.prefix,
            "key": ["origin"],
            "transactionTimeout": "10m",
            "producer": {"reconnect.backoff.max.ms": 500, "socket.timeout.ms": 5_000},
        }
        return [table("staging"), table("xa"), {"name": "kafka", "type": "kafka", "options": topic}]

    def read(self, sink: str) -> Rows:
        if sink == "kafka":
            return Rows(row_of(message) for message in read(self.place.direct, self.place.topic))
        return rows_of(self.server, self.database, f"{sink}_rows")

    def versions(self, sink: str) -> set[Version]:
        """What a reader sees, version by version."""
        if sink == "kafka":
            return {(one.partition(), one.offset(), one.value()) for one in read(self.place.direct, self.place.topic)}
        with closing(self.server.connect(self.database)) as connection:
            ask = f"SELECT ctid::text, xmin::text, id, origin FROM {sink}_rows"
            return set(connection.execute(ask.encode()).fetchall())

    def leftovers(self, ledger_id: str) -> list[str]:
        return [*leftovers_of(self.server, self.database), *(one.id for one in self.place.ongoing())]

    @contextmanager
    def evidence_locked(self, sink: str) -> Iterator[None]:
        """Somebody holds the row that a commit of this sink must move."""
        with psycopg.connect(self.server.url(self.database)) as connection:
            connection.execute("SELECT 1 FROM _sinkjob_evidence WHERE sink = %s FOR UPDATE", [sink])
            yield


class Fed(Input):
    """Grows until it is closed."""

    closed = False

    def add(self, files: int) -> None:
        if not self.closed:
            super().add(files)


@dataclass(slots=True)
class Watched:
    """The job's runs, one after another, and what its ledger was seen to say."""

    job: Job
    run: Run | None = None
    starts: int = 0
    most_pending: int = 0
    retired: int = 0  # the last checkpoint that all sinks have finished, and the ledger forgotten
    done: set[tuple[int, str]] = field(default_factory=set)

    def until(self, holds: Callable[[LedgerView], bool], seconds_max: float = REACH_SECONDS_MAX) -> LedgerView:
        """Look on until it holds. A run that ends by itself is started again, as the operator would."""
        until = time.monotonic() + seconds_max
        while True:
            view = self._tick()
            if holds(view):
                return view
            assert time.monotonic() < until, f"{view}, {self._tail()}"
            time.sleep(PAUSE_SECONDS)

    def during(self, seconds: float) -> None:
        """Look on for so long."""
        until = time.monotonic() + seconds
        self.until(lambda view: time.monotonic() > until, seconds + REACH_SECONDS_MAX)

    def end(self) -> int:
        """Ask the run to end at a checkpoint; its exit code."""
        assert self.run is not None
        os.kill(self.run.tree.leader.pid, signal.SIGTERM)
        return self.run.end(REACH_SECONDS_MAX)

    def _tick(self) -> LedgerView:
        if self.run is None:
            self.run = self.job.start({})
            self.starts += 1
        code = 0
        try:
            self.run.tick()
        except RunEnded as ended:
            code = ended.code
            self.run = None
        assert code in ENDS, self._tail()
        self._note()
        view = self.job.ledger.read()
        self.retired = max(self.retired, min(view.pending, default=view.decided + 1) - 1)
        return view

    def _note(self) -> None:
        path = self.job.ledger.path
        ledger = json.loads(path.read_text().partition("\n")[2])["ledger"] if path.exists() else {}
        records = ledger.get("records", [])
        self.most_pending = max(self.most_pending, sum(one.get("state", "decided") == "decided" for one in records))
        for record in records:
            for sink, part in record["parts"].items():
                if part.get("state") in DONE:
                    self.done.add((record["number"], sink))
                else:
                    assert (record["number"], sink) not in self.done, f"{record['number']} of {sink} is done again"

    def last_done(self, sink: str) -> int:
        """The last checkpoint that was seen committed in this sink, or finished in all of them between two looks."""
        return max([self.retired, *(number for number, name in self.done if name == sink)])

    def _tail(self) -> str:
        return self.run.tree.tail() if self.run else self.job.log.read_text()[-4000:]


@pytest.fixture
def bench(
    postgresql: PostgreSQLServer, kafka_server: KafkaServer, toxiproxy: Toxiproxy, tmp_path: Path
) -> Iterator[ThreeSinks]:
    made = ThreeSinks(tmp_path, random.Random(1))
    made.server, made.database = postgresql, postgresql.make_database(f"three-{uuid.uuid4().hex[:8]}")
    with (
        toxiproxy.proxy(postgresql.address) as staging,
        toxiproxy.proxy(postgresql.address) as xa,
        kafka_server.proxied(toxiproxy) as kafka,
    ):
        made.place = make_place(kafka_server.bootstrap, kafka.listen)
        made.proxies = {"staging": staging, "xa": xa, "kafka": kafka}
        yield made


def hold_back(watched: Watched, bench: ThreeSinks) -> None:
    """The commits of `staging` wait for somebody's lock: the others go on until the back-pressure stops all."""
    with bench.evidence_locked("staging"):
        watched.until(lambda view: len(view.pending) == MAX_PENDING)
        full = watched.until(lambda view: watched.last_done("xa") == watched.last_done("kafka") == view.decided)
        watched.during(STILL_SECONDS)
        assert watched.job.ledger.read().decided == full.decided
        assert watched.last_done("staging") == full.decided - MAX_PENDING
    watched.until(lambda view: view.decided > full.decided and watched.last_done("staging") >= full.decided)


def go_down(watched: Watched, bench: ThreeSinks, down: str, seconds: float) -> None:
    """The server of one sink is not reached for so long: what the others have finished stays what it is."""
    others = [sink for sink in SINKS if sink != down]
    before = {sink: bench.versions(sink) for sink in others}
    bench.proxies[down].disable()
    watched.during(seconds)
    stuck = watched.last_done(down)
    meanwhile = {sink: bench.versions(sink) for sink in others}
    bench.proxies[down].enable()
    watched.until(lambda view: watched.last_done(down) > stuck + 1)
    after = {sink: bench.versions(sink) for sink in others}
    for sink in others:
        assert before[sink] <= meanwhile[sink] <= after[sink], f"{sink} has done something again"


def check_end(watched: Watched, bench: ThreeSinks, rows: Fed) -> None:
    rows.closed = True
    watched.until(lambda view: not (watched.run is None or view.pending or watched.job.undecided(rows.rows, view)))
    assert watched.end() == 0
    assert watched.most_pending == MAX_PENDING
    for sink in SINKS:
        assert bench.read(sink) == rows.rows, sink
    assert bench.leftovers("") == []


@pytest.mark.parametrize(
    ("downs", "seconds"),
    [(("staging",), 10.0), pytest.param(SINKS, 120.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])],
)
def test_one_sink_that_is_down_holds_back_all_and_spoils_none(
    bench: ThreeSinks, downs: tuple[str, ...], seconds: float, tmp_path: Path
) -> None:
    rows = Fed(tmp_path / "input", random.Random(1))
    watched = Watched(Job(tmp_path, bench, rows))
    try:
        watched.until(lambda view: view.decided >= 2)
        hold_back(watched, bench)
        for down in downs:
            go_down(watched, bench, down, seconds)
        check_end(watched, bench, rows)
    finally:
        if watched.run is not None:
            watched.run.tree.kill()
