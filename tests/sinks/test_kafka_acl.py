"""The Kafka sink as a user who may do only what the sink's page asks for, and as one who may do less.

What a broker has an ACL for is forbidden to all whom none allows. The tests' other clients are its administrator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.errors import TargetError
from tests.servers.kafka import PASSWORD, USER, KafkaServer
from tests.sinks import harness
from tests.sinks.contract import ROWS
from tests.sinks.harness import commit, stage
from tests.sinks.kafka import Place, make_place

pytestmark = pytest.mark.integration

WAIT_SECONDS = 20.0
PAUSE_SECONDS = 0.02
#: As docs/sinks/kafka.md has them.
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "topic": ("READ", "WRITE", "DESCRIBE"),
    "transactional_id": ("WRITE", "DESCRIBE"),
    "group": ("READ",),
    "broker": ("CREATE",),  # of the whole cluster: something that the sink does not need
}


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap, kafka_server.sasl_bootstrap)


def make_sink(place: Place, **more: Any) -> Sink:
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    producer = {**security, "sasl.username": USER, "sasl.password": PASSWORD, **more.pop("producer", {})}
    return place.sink(transactionalIdPrefix=place.prefix, producer=producer, **more)


@contextmanager
def granted(place: Place, **changes: tuple[str, ...]) -> Iterator[None]:
    """Inside, the user has the documented rights with these `changes`, and no others."""
    names = {"topic": place.topic, "transactional_id": place.prefix, "group": place.prefix, "broker": "kafka-cluster"}
    bindings = [
        AclBinding(
            ResourceType[kind.upper()],
            names[kind],
            ResourcePatternType.PREFIXED if kind in ("transactional_id", "group") else ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, operations in (DOCUMENTED | changes).items()
        for operation in operations
    ]
    for made in place.admin.create_acls(bindings).values():
        made.result(WAIT_SECONDS)
    _wait_for(place, bindings)
    try:
        yield
    finally:
        for gone in place.admin.delete_acls(_filters(bindings)).values():
            gone.result(WAIT_SECONDS)


def _wait_for(place: Place, bindings: list[AclBinding]) -> None:
    """The controller has made them; the broker lets everybody in until it has heard of them."""
    until = time.monotonic() + WAIT_SECONDS
    for asked in _filters(bindings):
        while not place.admin.describe_acls(asked).result(WAIT_SECONDS):
            assert time.monotonic() < until, "the broker never hears of the rights"
            time.sleep(PAUSE_SECONDS)


def _filters(bindings: list[AclBinding]) -> list[AclBindingFilter]:
    return [
        AclBindingFilter(
            a.restype, a.name, a.resource_pattern_type, a.principal, a.host, a.operation, a.permission_type
        )
        for a in bindings
    ]


def test_the_rights_that_are_asked_for_are_enough(place: Place) -> None:
    with granted(place):
        sink = make_sink(place)
        sink.prepare_target(harness.SCHEMA)
        assert sink.inspect()["transactionMaxTimeoutSeconds"] is None, "it may not see the brokers' settings"
        lost = stage(sink, 1, ROWS)
        assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
        assert lost.items
        assert place.ongoing() == [], "what attempts have left open is seen and ended"
        assert sink.prove(1, 1)
        assert place.rows() == Counter(ROWS)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"topic": ("DESCRIBE",)}, "grant Read, Write and Describe on the topic"),
        ({"transactional_id": ("DESCRIBE",)}, "grant Write and Describe on transactional ids"),
    ],
)
def test_a_writer_that_may_not_write_says_what_to_grant(place: Place, changes: Any, advice: str) -> None:
    with granted(place, **changes), pytest.raises(TargetError) as caught:
        stage(make_sink(place), 1, ROWS)
    assert caught.value.reason == "PermissionDenied"
    assert advice in caught.value.advice
    assert PASSWORD not in str(caught.value)


def test_a_topic_that_may_not_be_seen_is_told_as_such(place: Place) -> None:
    with granted(place, topic=("ALTER_CONFIGS",)), pytest.raises(TargetError) as caught:
        make_sink(place).prepare_target(harness.SCHEMA)
    assert caught.value.reason == "TopicMissing"
    assert "or the user may not describe it" in caught.value.message


@pytest.mark.parametrize("lacking", [{"group": ("DESCRIBE",)}, {"topic": ("WRITE", "DESCRIBE")}])
def test_evidence_that_may_not_be_moved_holds_the_checkpoint_until_it_may(place: Place, lacking: Any) -> None:
    """Its rows are visible by then: nothing later commits before the evidence says so."""
    sink = make_sink(place)
    with granted(place, **lacking):
        staged = stage(sink, 1, ROWS)
        made = commit(sink, staged)
        assert {request.answer for request in made.writers} == {Answer.COMMITTED}
        (whole,) = made.aggregated
        assert (whole.answer, whole.reason) == (Answer.REFUSED, "PermissionDenied")
    with granted(place):
        assert commit(sink, staged, may_have_landed=True).answers() <= {Answer.COMMITTED, Answer.ALREADY_COMMITTED}
        assert place.rows() == Counter(ROWS)
        assert "checkpoint 1" in str(sink.prove(1, 1))


def test_evidence_that_may_not_be_read_is_told_with_the_prefix_to_grant(place: Place) -> None:
    sink = make_sink(place)
    with granted(place, group=("ALTER_CONFIGS",)), pytest.raises(TargetError) as caught:
        sink.evidence()
    assert caught.value.reason == "PermissionDenied"
    assert "grant Read on groups" in caught.value.advice


def test_dead_letters_need_no_right_to_see_the_topics_settings(place: Place) -> None:
    """What the producer itself does not take is known without them."""
    sink = make_sink(place)
    refused: list[str] = []
    with granted(place):
        context = harness.writer_context(sink, Lineage(1, 1, 0, 1, 0))
        writer = sink.create_writer(replace(context, reject=lambda rows, reason, message: refused.append(reason)))
        writer.open()
        writer.write(harness.batch_of([(1, "a"), (2, "x" * 1_100_000), (3, "b")]))
        committable = harness.finish(sink, writer, 1)
    assert refused == ["RecordTooLarge"]
    assert committable is not None
    assert committable["rows"] == 2
