"""Rows that no record can be made of, or that a topic does not take: they are dead letters, and the others are sent.

Against a real broker, which turns down a whole transaction for one such record: nothing of them may reach it.
"""

from __future__ import annotations

import datetime
import json
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, CommitRequest, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.screen import batch_bytes
from tests.servers.kafka import KafkaServer
from tests.sinks import harness
from tests.sinks.harness import Row
from tests.sinks.kafka import Place, make_place, make_topic

pytestmark = pytest.mark.integration

LINEAGE = Lineage(1, 1, 0, 1, 0)
LIMIT_BYTES = 1_000
Refused = list[tuple[str, dict[str, Any]]]  # reason and row


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


@pytest.fixture
def narrow(kafka_server: KafkaServer) -> Place:
    """A topic that takes `LIMIT_BYTES` at once."""
    place = make_place(kafka_server.bootstrap)
    topic = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(place.admin, topic, 1, {"max.message.bytes": str(LIMIT_BYTES)})
    return replace(place, topic=topic, partitions=1)


def make_sink(place: Place, **more: Any) -> Sink:
    return place.sink(transactionalIdPrefix=place.prefix, **more)


def write(sink: Sink, batch: pa.RecordBatch) -> Refused:
    """Stage as checkpoint 1, with dead letters, and commit; what was refused."""
    refused: Refused = []

    def reject(rows: pa.RecordBatch, reason: str, message: str) -> None:
        assert message
        assert rows.schema.equals(batch.schema)
        refused.extend((reason, {"id": number}) for number in rows.column("id").to_pylist())

    writer = sink.create_writer(replace(harness.writer_context(sink, LINEAGE, batch.schema), reject=reject))
    writer.open()
    writer.write(batch)
    committable = harness.finish(sink, writer, 1)
    if committable is not None:
        committer = sink.create_committer()
        assert committer is not None
        committer.open()
        request = CommitRequest(committable, LINEAGE, 0)
        committer.commit([request])
        committer.close()
        assert request.answer is Answer.COMMITTED
        assert committable["rows"] == batch.num_rows - len(refused), "in is written and dead"
    return refused


def rows_of(*rows: Row) -> pa.RecordBatch:
    return harness.batch_of(rows)


def with_column(name: str, kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    fields: dict[str, pa.DataType] = {"id": pa.int64(), name: kind}
    rows = [{"id": number, name: value} for number, value in enumerate(values)]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def ids(place: Place, topic: str = "") -> list[int]:
    return [json.loads(message.value() or b"")["id"] for message in place.messages(topic=topic)]


def test_a_row_that_the_producer_does_not_take_is_a_dead_letter_between_rows_that_are_sent(narrow: Place) -> None:
    sink = make_sink(narrow, producer={"message.max.bytes": "1000"})
    assert write(sink, rows_of((1, "a"), (2, "x" * 5_000), (3, "b"))) == [("RecordTooLarge", {"id": 2})]
    assert ids(narrow) == [1, 3]


def test_the_topics_own_limit_is_known_to_the_byte(narrow: Place) -> None:
    """A record that just fits is sent and taken; one byte more, and it is a dead letter."""
    sink = make_sink(narrow, value=["name"], valueFormat="string", key=["id"], keyFormat="string")
    fits = next(n for n in range(LIMIT_BYTES, 0, -1) if batch_bytes(b"1", b"x" * n, None) <= LIMIT_BYTES)
    refused = write(sink, rows_of((1, "x" * fits), (2, "x" * (fits + 1)), (3, "b")))
    assert refused == [("RecordTooLarge", {"id": 2})]
    assert [len(message.value() or b"") for message in narrow.messages()] == [fits, 1]


def test_headers_count_too(narrow: Place) -> None:
    sink = make_sink(narrow, headersField="h")
    batch = with_column("h", pa.map_(pa.string(), pa.string()), [[("a", "x")], [("a", "x" * LIMIT_BYTES)], None])
    assert write(sink, batch) == [("RecordTooLarge", {"id": 1})]
    assert ids(narrow) == [0, 2]


def test_rows_that_fit_one_by_one_are_not_sent_in_batches_that_do_not(narrow: Place) -> None:
    rows: list[Row] = [(number, "y" * 100) for number in range(500)]
    assert write(make_sink(narrow), rows_of(*rows)) == []
    assert ids(narrow) == list(range(500))


def test_a_topic_by_row_that_takes_less_than_the_producers_batches_is_refused_by_name(narrow: Place) -> None:
    batch = with_column("to", pa.string(), [narrow.topic])
    with pytest.raises(TargetError, match=f"takes batches of {LIMIT_BYTES} bytes") as caught:
        write(make_sink(narrow, topicField="to"), batch)
    assert (caught.value.reason, caught.value.path) == ("BatchTooLarge", "options.producer")
    assert write(make_sink(narrow, topicField="to", producer={"batch.size": LIMIT_BYTES}), batch) == []
    assert ids(narrow) == [0]


def test_rows_without_a_topic_that_there_is_are_dead_letters(place: Place) -> None:
    wrong = [None, "", "no spaces", "..", "x" * 250, f"none-{uuid.uuid4().hex}"]
    batch = with_column("to", pa.string(), [place.topic, *wrong, place.topic])
    refused = write(make_sink(place, topicField="to"), batch)
    assert sorted((reason, row["id"]) for reason, row in refused) == [("TopicMissing", n) for n in range(1, 7)]
    assert sorted(ids(place)) == [0, 7]


def test_headers_without_a_name_are_dead_letters(place: Place) -> None:
    pairs = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    good, bad = [{"key": "k", "value": b"v"}], [{"key": None, "value": b"v"}]
    refused = write(make_sink(place, headersField="h"), with_column("h", pairs, [good, bad, [None], None, []]))
    assert sorted(refused, key=lambda one: one[1]["id"]) == [("HeaderInvalid", {"id": 1}), ("HeaderInvalid", {"id": 2})]
    assert sorted(ids(place)) == [0, 3, 4]


@pytest.mark.parametrize("format", ["json", "avro"])
def test_rows_that_have_no_such_form_are_dead_letters(place: Place, format: str) -> None:
    """Spark hands over text that is no UTF-8, and times beyond the year 9999."""
    texts = _reinterpreted(pa.string(), [b"ok", b"a\xffb", b"fine"], pa.binary())
    days = _reinterpreted(pa.date32(), [0, 1, 2**24], pa.int32())
    numbers = pa.array([0, 1, 2], pa.int64())
    batch = pa.RecordBatch.from_arrays([numbers, texts, days], names=["id", "name", "day"])
    refused = write(make_sink(place, valueFormat=format), batch)
    assert refused == [("NotEncodable", {"id": 1}), ("NotEncodable", {"id": 2})]
    (message,) = place.messages()
    if format == "json":
        assert json.loads(message.value() or b"") == {"id": 0, "name": "ok", "day": str(datetime.date(1970, 1, 1))}


def _reinterpreted(kind: pa.DataType, values: list[Any], of: pa.DataType) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, len(values), pa.array(values, of).buffers())


def test_a_compacted_topic_takes_no_row_without_a_key(kafka_server: KafkaServer) -> None:
    place = make_place(kafka_server.bootstrap)
    topic = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(place.admin, topic, 1, {"cleanup.policy": "compact"})
    sink = make_sink(place, topic=topic, key=["name"], keyFormat="string", value=["id"])
    assert write(sink, rows_of((1, "k"), (2, None), (3, "k"))) == [("KeyMissing", {"id": 2})]
    assert ids(place, topic) == [1, 3]


def test_a_writer_whose_rows_are_all_refused_opens_no_transaction(place: Place) -> None:
    batch = with_column("to", pa.string(), [None, None])
    assert len(write(make_sink(place, topicField="to"), batch)) == 2
    assert place.ongoing() == []
    assert place.messages() == []


@pytest.mark.parametrize(
    ("options", "column", "value", "reason"),
    [
        ({"topicField": "c"}, pa.string(), None, "TopicMissing"),
        ({"topicField": "c"}, pa.string(), "no spaces", "TopicMissing"),
        ({"headersField": "c"}, pa.map_(pa.string(), pa.string()), [("a", "x" * 1_100_000)], "RecordTooLarge"),
        ({"producer": {"message.max.bytes": 1000}}, pa.string(), "x" * 2_000, "RecordTooLarge"),
    ],
)
def test_without_dead_letters_the_batch_fails_and_says_why(
    place: Place, options: dict[str, Any], column: pa.DataType, value: Any, reason: str
) -> None:
    sink = make_sink(place, **options)
    batch = with_column("c", column, [value])
    writer = sink.create_writer(harness.writer_context(sink, LINEAGE, batch.schema))
    writer.open()

    def write_all() -> None:
        writer.write(batch)
        writer.flush(end_of_input=True)

    with pytest.raises(TargetError) as caught:
        write_all()
    assert caught.value.reason == reason
    writer.abort_prepare()
    writer.close()
    assert place.messages() == []
