"""The Kafka sink keeps the contract on a real broker."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Answer, Sink
from sinkruntime.sinks.kafka.evidence import EvidenceGroup, EvidenceMover, Marker
from tests.servers.kafka import KafkaServer
from tests.sinks import harness
from tests.sinks.contract import ROWS, SinkContract
from tests.sinks.harness import LEDGER, Row, commit, stage
from tests.sinks.kafka import Place, drop_topic, make_place, make_topic

pytestmark = pytest.mark.integration


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


class TestKafka(SinkContract):
    fences = False
    golden_version = 1
    golden_bytes = (
        b'{"began":1700000000.0,"epoch":0,"id":"sinkjob.l.lake.1.1.ab.0","producer":7,"rows":5,'
        b'"timeoutMs":900000,"topics":["flights"]}'
    )
    golden_value: ClassVar = {
        "id": "sinkjob.l.lake.1.1.ab.0",
        "producer": 7,
        "epoch": 0,
        "rows": 5,
        "topics": ["flights"],
        "began": 1_700_000_000.0,
        "timeoutMs": 900_000,
    }

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink, transactionalIdPrefix=place.prefix)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        return {f"{one.id} {one.producer_id} {one.producer_epoch}" for one in place.ongoing()}

    def lose_staged(self, place: Any) -> None:
        with closing(place.cluster()) as client:
            for one in place.ongoing():
                client.end(one.id, one.producer_id, one.producer_epoch, commit=False)

    def recreate(self, place: Any) -> None:
        drop_topic(place.admin, place.topic)
        make_topic(place.admin, place.topic, place.partitions)

    def test_two_attempts_of_one_subtask_never_collide(self, sink: Sink, place: Any) -> None:
        """As in the contract, but that losers are aborted with the commit: open, they would hold back all readers."""
        lost, kept = stage(sink, 1, ROWS), stage(sink, 1, ROWS)
        assert len(self.list_staged(place)) >= 2
        assert commit(sink, kept).answers() == {Answer.COMMITTED}
        assert self.list_staged(place) == set()
        harness.clean(sink, 1)
        assert self.read_visible(place) == Counter(ROWS)
        assert lost.items != kept.items


def test_the_first_evidence_is_seen_as_soon_as_it_is_moved(place: Place) -> None:
    """While its end is written, Kafka tells nothing of an offset that its group did not have before."""
    with closing(place.cluster()) as cluster:
        for number in range(1, 31):
            options, owner = place.options(), harness.identity(f"{number:032x}")
            group = EvidenceGroup(options, owner, cluster)
            mover = EvidenceMover(options, group)
            assert mover.claim() == Marker()
            mover.move(number, [place.topic], {})
            assert group.read().checkpoint == number
            mover.close()
