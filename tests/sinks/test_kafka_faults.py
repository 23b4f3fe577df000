"""What can go wrong between a prepared transaction and its end, on a real broker: Kafka's own hazards first.

An epoch that stays the same, a successor that aborts what it finds, a timeout, a broker that is killed, an answer
that is lost, committers that have been asleep.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.broker import Ended
from sinkruntime.sinks.kafka.evidence import EvidenceGroup, EvidenceMover, Fenced, Marker
from sinkruntime.sinks.kafka.names import SLOTS
from tests.servers.kafka import MAX_TIMEOUT_SECONDS, KafkaServer
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import BATCH_ROWS, Row, commit, stage
from tests.sinks.kafka import Place, make_place

pytestmark = pytest.mark.integration

WAIT_SECONDS = 30.0


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


@pytest.fixture
def sink(place: Place) -> Sink:
    return make_sink(place)


@pytest.fixture
def proxied(kafka_server: KafkaServer, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """A place whose sink goes through a proxy."""
    with kafka_server.proxied(toxiproxy) as proxy:
        yield make_place(kafka_server.bootstrap, proxy.listen), proxy


def make_sink(place: Place, **more: Any) -> Sink:
    return place.sink(transactionalIdPrefix=place.prefix, **more)


def end(place: Place, committable: Any, *, to_commit: bool) -> Ended:
    """A raw EndTxn, as an old committer's that was on its way."""
    with closing(place.cluster()) as client:
        return client.end(committable["id"], committable["producer"], committable["epoch"], commit=to_commit)


def only(staged: harness.Staged) -> Any:
    ((_, committable),) = staged.present()
    return committable


def producer_of(place: Place, transactional_id: str, **more: Any) -> Producer:
    producer = Producer({"bootstrap.servers": place.direct, "transactional.id": transactional_id, **more})
    producer.init_transactions(WAIT_SECONDS)
    return producer


def test_a_late_end_of_one_transaction_never_ends_the_next_one_of_its_id(sink: Sink, place: Place) -> None:
    """The epoch stays over a commit by EndTxn v1: without a new initialisation the old EndTxn would commit the next."""
    first = only(stage(sink, 1, ROWS))
    commit(sink, harness.Staged(1, 1, stage(sink, 1, []).items))
    assert end(place, first, to_commit=True) is Ended.DONE
    again = only(stage(sink, 1 + SLOTS, MORE))
    assert again["id"] == first["id"]
    assert (again["producer"], again["epoch"]) != (first["producer"], first["epoch"])
    assert end(place, first, to_commit=True) is Ended.REFUSED
    assert end(place, first, to_commit=False) is Ended.REFUSED
    assert place.rows() == Counter(ROWS)
    assert end(place, again, to_commit=True) is Ended.DONE
    assert place.rows() == Counter(ROWS + MORE)


def test_the_hazard_is_real_an_epoch_stays_where_nobody_initialises(place: Place) -> None:
    """What the test before this one guards against, done by hand."""
    producer = producer_of(place, f"{place.prefix}by-hand")
    for value in (b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}'):
        producer.begin_transaction()
        producer.produce(place.topic, value)
        producer.flush(WAIT_SECONDS)
        with closing(place.cluster()) as client:
            one = client.describe([f"{place.prefix}by-hand"])[f"{place.prefix}by-hand"]
        if value.startswith(b'{"id":1'):
            before = {"id": one.id, "producer": one.producer_id, "epoch": one.producer_epoch}
            producer.commit_transaction(WAIT_SECONDS)
    assert end(place, before, to_commit=True) is Ended.DONE  # it was meant for the first, and ends the second
    assert place.rows() == Counter([(1, "a"), (2, "b")])


def test_no_writer_initialises_an_id_whose_checkpoint_may_be_pending(sink: Sink, place: Place) -> None:
    """As many checkpoints as can be pending, and a second attempt of each: all commit."""
    pending = [stage(sink, number, [(number, "kept")]) for number in range(1, SLOTS + 1)]
    again = [stage(sink, number, [(number, "again")]) for number in (1, SLOTS)]
    ids = [only(staged)["id"] for staged in pending + again]
    assert len(set(ids)) == len(ids)
    for previous, staged in enumerate(pending):
        assert commit(sink, staged, previous).answers() <= YES
    assert place.rows() == Counter((number, "kept") for number in range(1, SLOTS + 1))
    assert only(stage(sink, SLOTS + 1, MORE))["id"] in ids


def test_a_successor_that_initialises_the_id_loses_the_rows_and_that_is_told(sink: Sink, place: Place) -> None:
    staged = stage(sink, 1, ROWS)
    producer_of(place, only(staged)["id"])
    made = commit(sink, staged)
    assert made.answers() == {Answer.REFUSED}
    assert made.reasons() == {"CommittableLost"}
    assert "5 rows of subtask 0 of checkpoint 1" in made.writers[0].message
    assert place.rows() == Counter()


def test_a_transaction_of_a_killed_writer_is_committed_by_another_process(sink: Sink, place: Place) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_stage_and_wait, args=(sink, theirs))
    process.start()
    assert ours.poll(WAIT_SECONDS)
    staged = ours.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    process.close()
    assert place.rows() == Counter()
    assert harness.in_another_process(sink, staged, 0)["answers"] <= YES
    assert place.rows() == Counter(ROWS)


def _stage_and_wait(sink: Sink, pipe: Any) -> None:
    pipe.send(stage(sink, 1, ROWS))
    time.sleep(WAIT_SECONDS)


def test_a_lost_writers_transaction_holds_readers_back_until_recovery_and_no_longer(kafka_server: KafkaServer) -> None:
    """Killed before it has prepared: nobody knows its producer, and what comes after it in the partition waits."""
    place = make_place(kafka_server.bootstrap, partitions=1)
    sink = make_sink(place)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_write_and_wait, args=(sink, theirs))
    process.start()
    assert ours.poll(WAIT_SECONDS)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    process.close()
    (hanging,) = place.ongoing()
    assert commit(sink, stage(sink, 1, ROWS, epoch=2)).answers() <= YES
    pending = stage(sink, 2, MORE, epoch=2)
    assert place.rows() == Counter(), "readers wait for the end of what hangs"
    harness.recover(sink, harness.garbage(3, [1, 1, 3], unsettled=[2]))
    assert place.rows() == Counter(ROWS)
    assert [one.id for one in place.ongoing()] == [only(pending)["id"]] != [hanging.id]
    assert commit(sink, pending, 1).answers() <= YES
    assert place.rows() == Counter(ROWS + MORE)


def _write_and_wait(sink: Sink, pipe: Any) -> None:
    writer = harness.open_writer(sink, 1)
    writer.write(harness.batch_of(MORE))
    writer.flush(end_of_input=True)
    pipe.send("open")
    time.sleep(WAIT_SECONDS)


def test_an_expired_transaction_is_a_loss_that_is_told_with_its_checkpoint(place: Place) -> None:
    sink = make_sink(place, transactionTimeout="1s")
    staged = stage(sink, 7, ROWS)
    until = time.monotonic() + WAIT_SECONDS
    while place.ongoing() and time.monotonic() < until:
        time.sleep(0.1)
    for landed in (False, True):  # surely aborted, also when an attempt was made
        made = commit(sink, staged, may_have_landed=landed)
        assert made.reasons() == {"CommittableLost"}
        assert "checkpoint 7" in made.writers[0].message
        assert "timeout 1000 ms" in made.writers[0].message
    assert place.rows() == Counter()
    assert sink.evidence() is not None
    assert harness.ask(sink, "probe", staged).answers(Answer.ABSENT) == {Answer.ABSENT}
    assert harness.ask(sink, "fence", staged).answers(Answer.FENCED) == {Answer.FENCED}  # so it can be abandoned


def test_remaining_life_shrinks_from_the_timeout(place: Place) -> None:
    sink = make_sink(place, transactionTimeout="2m")
    writer = sink.create_writer(context := harness.writer_context(sink, Lineage(1, 1, 0, 1, 0)))
    writer.open()
    assert writer.remaining_life_seconds() is None
    writer.write(harness.batch_of(ROWS))
    assert isinstance(context.clock, harness.ManualClock)
    context.clock.now_seconds += 30
    assert writer.prepare_commit(1)
    assert writer.remaining_life_seconds() == pytest.approx(90)
    writer.close()
    assert sink.staged_life_seconds() == 120


def test_a_timeout_beyond_the_brokers_is_refused_at_start(place: Place) -> None:
    sink = make_sink(place, transactionTimeout="1h")
    for check in (sink.inspect, lambda: sink.prepare_target(harness.SCHEMA)):
        with pytest.raises(TargetError, match=f"transaction.max.timeout.ms is {MAX_TIMEOUT_SECONDS}000 ms") as caught:
            check()
        assert caught.value.reason == "TransactionTimeoutTooLong"
        assert caught.value.path == "options.transactionTimeout"
    with pytest.raises(TargetError) as late:  # where nobody may ask the broker for its settings, the writer finds out
        stage(sink, 1, ROWS)
    assert late.value.reason == "TransactionTimeoutTooLong"
    assert make_sink(place).inspect()["transactionMaxTimeoutSeconds"] == MAX_TIMEOUT_SECONDS


def test_open_transactions_are_told_with_their_age_and_owner(sink: Sink, place: Place) -> None:
    committable = only(stage(sink, 1, ROWS))
    (told,) = sink.inspect()["prepared"]
    owner = f"{committable['id']} (producer {committable['producer']}, epoch {committable['epoch']}): open for "
    assert told.startswith(owner)
    assert told.endswith(" s of 600 s")
    assert place.sink("another ledger", transactionalIdPrefix=place.prefix).inspect()["prepared"] == []


def test_a_commit_that_comes_late_in_the_transactions_life_is_warned_of(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint, age_seconds, warned in ((1, 290, 0), (2, 310, 1)):  # of ten minutes
        staged = stage(sink, checkpoint, ROWS)
        only(staged)["began"] = time.time() - age_seconds
        assert commit(sink, staged, checkpoint - 1).answers() <= YES
        said = [record.getMessage() for record in caplog.records if record.name.startswith("sinkruntime.sinks.kafka")]
        assert len([text for text in said if "raise transactionTimeout" in text]) == warned
    assert "checkpoint 2 of sink lake was committed 310 s after" in caplog.text
    assert "after 600 s" in caplog.text


@pytest.mark.slow
def test_a_killed_broker_comes_back_with_the_open_transaction(kafka_server: KafkaServer) -> None:
    """One that is prepared, and one whose writer is at work and does not notice but by waiting; and the evidence."""
    place = make_place(kafka_server.bootstrap)
    sink = make_sink(place)
    assert commit(sink, stage(sink, 1, ROWS)).answers() <= YES
    staged = stage(sink, 2, MORE)
    writer = harness.open_writer(sink, 3)
    writer.write(harness.batch_of([(100, "before")]))
    kafka_server.kill()
    try:
        made = commit(sink, staged, 1)
        assert made.answers() == {Answer.RETRY_LATER}
        writer.write(harness.batch_of([(101, "meanwhile")]))
    finally:
        kafka_server.start()
    until = time.monotonic() + WAIT_SECONDS
    while not (made := commit(sink, staged, 1, may_have_landed=True)).answers() <= YES and time.monotonic() < until:
        time.sleep(0.1)
    assert made.answers() <= YES
    assert place.rows() == Counter(ROWS + MORE)
    last = harness.Staged(3, 1, ((Lineage(3, 1, 0, 1, 0), harness.finish(sink, writer, 3)),))
    assert commit(sink, last, 2).answers() <= YES
    assert place.rows() == Counter([*ROWS, *MORE, (100, "before"), (101, "meanwhile")])
    assert place.ongoing() == []


def test_an_answer_that_is_lost_is_unknown_and_the_probe_finds_it(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = make_sink(place)
    staged = stage(sink, 1, ROWS)
    committer = sink.create_committer()
    assert committer is not None
    committer.open()
    made = harness.requests_for(sink, staged)
    committer.probe(made.writers)  # connections are open
    cluster = committer.cluster  # type: ignore[attr-defined]
    end_one = cluster.end

    def lose_the_answer(*arguments: Any, **more: Any) -> Any:
        toxic = proxy.add_toxic("limit_data", "downstream", bytes=0)
        try:
            return end_one(*arguments, **more)
        finally:
            proxy.remove_toxic(toxic)

    cluster.end = lose_the_answer
    made = harness.requests_for(sink, staged)
    committer.commit(made.writers)
    assert {request.answer for request in made.writers} == {Answer.UNKNOWN}
    assert made.reasons() == {"AnswerLost"}
    cluster.end = end_one
    again = harness.requests_for(sink, staged, may_have_landed=True)
    committer.probe(again.writers)
    assert {request.answer for request in again.writers} == {Answer.ALREADY_COMMITTED}
    committer.close()
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert place.rows() == Counter(ROWS)


def test_a_broker_out_of_reach_is_another_try_and_nothing_is_lost(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = make_sink(place, producer={"socket.connection.setup.timeout.ms": "1000"})
    staged = stage(sink, 1, ROWS)
    committer = sink.create_committer()
    assert committer is not None
    committer.open()
    made = harness.requests_for(sink, staged)
    committer.probe(made.writers)
    proxy.disable()
    committer.group.read = Marker  # type: ignore[attr-defined]
    for request in made.writers:
        request.answer = None
    committer.commit(made.writers)
    assert {request.answer for request in made.writers} == {Answer.RETRY_LATER}
    proxy.enable()
    committer.commit(made.writers)
    assert {request.answer for request in made.writers} == {Answer.COMMITTED}
    committer.close()
    assert place.rows() == Counter(ROWS)


def test_two_committers_race_and_the_evidence_moves_once(sink: Sink, place: Place) -> None:
    with closing(place.cluster()) as cluster:
        group = EvidenceGroup(sink.options, sink.identity, cluster)
        old, new = EvidenceMover(sink.options, group), EvidenceMover(sink.options, group)
        old.claim()
        new.claim()
        new.move(3, [place.topic], {})
        with pytest.raises(Fenced):
            old.move(2, [place.topic], {})
        assert group.read().checkpoint == 3
        assert old.claim().checkpoint == 3


def test_a_committer_that_slept_aborts_nothing_of_a_later_checkpoint_in_its_slot(sink: Sink, place: Place) -> None:
    """It had looked for losers of checkpoint 1 and slept; since then checkpoint 17 has taken the slot."""
    first = stage(sink, 1, ROWS)
    sleeper = sink.create_aggregated_committer()
    assert sleeper is not None
    sleeper.open()
    sleeper.probe(harness.requests_for(sink, first).aggregated)
    sleeper._mover.claim()  # type: ignore[attr-defined]  # it remembers that nothing is committed
    commit(sink, first)
    stage(sink, 1 + SLOTS, MORE)
    later = stage(sink, 1 + SLOTS, MORE)
    assert len(place.ongoing()) == 2
    request = harness.requests_for(sink, first, may_have_landed=True).aggregated
    sleeper.commit(request)
    sleeper.close()
    assert request[0].answer is Answer.ALREADY_COMMITTED
    assert len(place.ongoing()) == 2
    assert commit(sink, later, 1).answers() <= YES
    assert place.rows() == Counter(ROWS + MORE)


def test_a_failed_record_surfaces_in_the_writer_and_is_not_lost(place: Place) -> None:
    sink = make_sink(place, producer={"message.max.bytes": "1000"})
    with pytest.raises(TargetError) as caught:
        stage(sink, 1, [(1, "x" * 5_000)])
    assert caught.value.reason == "RecordTooLarge"
    assert place.rows() == Counter()


def test_a_record_that_the_topic_refuses_surfaces_in_the_writer(place: Place) -> None:
    """The broker says it, long after the record was queued."""
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, place.topic, incremental_configs=[entry])
    place.admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)
    with pytest.raises(TargetError) as caught:
        stage(make_sink(place), 1, [(1, "x" * 5_000)])
    assert caught.value.reason == "RecordTooLarge"
    assert place.rows() == Counter()


def test_a_full_queue_waits_and_keeps_the_order(place: Place) -> None:
    sink = make_sink(place, key=["name"], producer={"queue.buffering.max.messages": "10"})
    rows: list[Row] = [(number, f"k{number % 3}") for number in range(2 * BATCH_ROWS)]
    assert commit(sink, stage(sink, 1, rows)).answers() <= YES
    assert place.rows() == Counter(rows)
    by_key: dict[Any, list[bytes]] = {}
    for message in place.messages():
        by_key.setdefault(message.key(), []).append(message.value() or b"")
    wanted = {name: [f'{{"id":{i},"name":"{name}"}}'.encode() for i, n in rows if n == name] for _, name in rows[:3]}
    assert {key.decode(): values for key, values in by_key.items()} == {
        f'{{"name":"{name}"}}': values for name, values in wanted.items()
    }
