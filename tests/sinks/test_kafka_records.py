"""What the Kafka sink's records hold, as a consumer gets them from a real broker; and who may write them."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from sinkruntime.api import Answer, Sink
from sinkruntime.avro_schemas import avro_schema
from sinkruntime.errors import TargetError
from tests.servers.kafka import PASSWORD, USER, KafkaServer
from tests.sinks import harness
from tests.sinks.contract import ROWS, YES
from tests.sinks.harness import commit, stage
from tests.sinks.kafka import Place, make_place, make_topic, read, write_rows

pytestmark = pytest.mark.integration

FIELDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "raw": pa.binary(),
    "to": pa.string(),
    "tags": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema(FIELDS)


@pytest.fixture
def place(kafka_server: KafkaServer) -> Place:
    return make_place(kafka_server.bootstrap)


def write(sink: Sink, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> None:
    write_rows(sink, rows, schema)


def row(id: int, name: str | None = "n", **more: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "raw": b"\0\xff", "to": None, "tags": None} | more


def make_sink(place: Place, **more: Any) -> Sink:
    return place.sink(transactionalIdPrefix=place.prefix, **more)


def test_json_keys_and_values_hold_their_columns_in_order(place: Place) -> None:
    write(make_sink(place, key=["name", "id"], value=["id", "name"]), [row(1), row(2, None)])
    found = {message.value(): message.key() for message in place.messages()}
    assert found == {
        b'{"id":1,"name":"n"}': b'{"name":"n","id":1}',
        b'{"id":2,"name":null}': b'{"name":null,"id":2}',
    }


def test_strings_and_binary_are_the_bytes_themselves_and_null_is_a_tombstone(place: Place) -> None:
    sink = make_sink(place, key=["name"], keyFormat="string", value=["raw"], valueFormat="binary")
    write(sink, [row(1), row(2, "gone", raw=None), row(3, None)])
    found = sorted((message.key() or b"", message.value()) for message in place.messages())
    assert found == [(b"", b"\0\xff"), (b"gone", None), (b"n", b"\0\xff")]


def test_a_row_without_any_value_becomes_a_tombstone_where_it_is_asked_for(place: Place) -> None:
    rows = [row(1), row(2, None, raw=None), row(3, None)]
    write(make_sink(place, key=["id"], value=["name", "raw"], tombstones=True), rows)
    found = {message.key(): message.value() for message in place.messages()}
    assert found[b'{"id":2}'] is None
    assert found[b'{"id":3}'] == b'{"name":null,"raw":"AP8="}'


def test_avro_is_the_bare_datum_of_a_schema_made_from_the_columns(place: Place) -> None:
    columns = ["id", "name", "raw"]
    write(make_sink(place, value=columns, valueFormat="avro"), [row(1, "ünï"), row(2, None)])
    schema = fastavro.parse_schema(avro_schema(pa.schema([SCHEMA.field(name) for name in columns])))
    found = [
        fastavro.schemaless_reader(io.BytesIO(message.value() or b""), schema, None) for message in place.messages()
    ]
    assert sorted(found, key=lambda one: one["id"]) == [  # type: ignore[index,call-overload]
        {"id": 1, "name": "ünï", "raw": b"\0\xff"},
        {"id": 2, "name": None, "raw": b"\0\xff"},
    ]


def test_headers_come_from_a_map_or_from_sparks_array(place: Place) -> None:
    sink = make_sink(place, value=["id"], headersField="tags")
    write(sink, [row(1, tags=[("a", "x"), ("b", None)]), row(2)])
    found = {message.value(): message.headers() for message in place.messages()}
    assert found == {b'{"id":1}': [("a", b"x"), ("b", None)], b'{"id":2}': None}
    pairs = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    other = make_sink(make_place(place.direct), headersField="h")
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "h": pairs}
    write(other, [{"id": 1, "h": [{"key": "k", "value": b"\xff"}]}], pa.schema(fields))
    (message,) = read(place.direct, other.options.topic)
    assert (message.value(), message.headers()) == (b'{"id":1}', [("k", b"\xff")])


def test_a_column_names_the_topic_and_all_topics_commit_together(place: Place) -> None:
    topics = [place.topic, f"t-{uuid.uuid4().hex[:12]}"]
    make_topic(place.admin, topics[1], 1)
    sink = make_sink(place, topicField="to", value=["id"])
    rows = [row(number, to=topics[number % 2]) for number in range(10)]
    write(sink, rows)
    assert {topic: len(read(place.direct, topic)) for topic in topics} == dict.fromkeys(topics, 5)
    patience = {"topic.metadata.propagation.max.ms": 500}
    with pytest.raises(TargetError) as caught:
        write(make_sink(place, topicField="to", producer=patience), [row(1, to=f"none-{uuid.uuid4().hex}")])
    assert caught.value.reason == "TopicMissing"


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_hold_the_same(place: Place, compression: str) -> None:
    assert commit(make_sink(place, compression=compression), stage(make_sink(place), 1, ROWS)).answers() <= YES
    write(make_sink(place, compression=compression, value=["id"], transactions=False), [row(7)])
    assert b'{"id":7}' in {message.value() for message in place.messages()}


def test_a_key_goes_to_the_partition_where_other_clients_look_for_it(kafka_server: KafkaServer) -> None:
    place = make_place(kafka_server.bootstrap, partitions=4)
    write(make_sink(place, key=["name"], keyFormat="string"), [row(i, f"key-{i}") for i in range(40)])
    ours = {message.key(): message.partition() for message in place.messages()}
    other = make_place(kafka_server.bootstrap, partitions=4)
    theirs = Producer({"bootstrap.servers": place.direct, "partitioner": "murmur2_random"})
    for key in ours:
        theirs.produce(other.topic, b"", key)
    theirs.flush(10)
    assert {message.key(): message.partition() for message in other.messages()} == ours


def test_without_transactions_rows_are_visible_at_once(place: Place) -> None:
    sink = make_sink(place, transactions=False, value=["id"])
    write(sink, [row(1), row(2)])
    assert sorted(message.value() or b"" for message in place.messages()) == [b'{"id":1}', b'{"id":2}']
    assert place.ongoing() == []


def test_the_topic_is_made_where_it_is_asked_for(kafka_server: KafkaServer) -> None:
    place = make_place(kafka_server.bootstrap)
    missing = f"t-{uuid.uuid4().hex[:12]}"
    with pytest.raises(TargetError, match=f"there is no topic `{missing}`") as caught:
        make_sink(place, topic=missing).prepare_target(harness.SCHEMA)
    assert (caught.value.reason, caught.value.path) == ("TopicMissing", "options.topic")
    wanted = {"partitions": 3, "config": {"cleanup.policy": "compact"}}
    for _ in range(2):
        make_sink(place, topic=missing, createTopic=wanted).prepare_target(harness.SCHEMA)
    assert len(place.admin.list_topics(missing, timeout=10).topics[missing].partitions) == 3
    bad = {"partitions": 1, "config": {"no.such.setting": "x"}}
    with pytest.raises(TargetError) as refused:
        make_sink(place, topic=f"{missing}-2", createTopic=bad).prepare_target(harness.SCHEMA)
    assert refused.value.reason == "TopicNotMade"


def test_nobody_at_the_address_is_told(place: Place) -> None:
    sink = make_sink(place, bootstrapServers="127.0.0.1:1", producer={"socket.timeout.ms": 1000})
    for ask in (sink.evidence, lambda: sink.prove(1, 1)):
        with pytest.raises(TargetError, match=r"127\.0\.0\.1:1") as caught:
            ask()
        assert caught.value.reason == "BrokerUnreachable"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_writers_and_committers_say_who_they_are(kafka_server: KafkaServer, mechanism: str) -> None:
    place = make_place(kafka_server.bootstrap, kafka_server.sasl_bootstrap)
    if mechanism != "PLAIN":
        _give_password(place, mechanism)
    producer = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": USER}
    sink = make_sink(place, producer={**producer, "sasl.password": PASSWORD})
    sink.prepare_target(harness.SCHEMA)
    assert commit(sink, stage(sink, 1, ROWS)).answers() == {Answer.COMMITTED}
    stranger = make_sink(place, producer={**producer, "sasl.password": "wrong-password"})
    with pytest.raises(TargetError) as caught:
        stranger.prove(1, 1)
    assert caught.value.reason == "AuthenticationFailed"
    assert "wrong-password" not in str(caught.value)


def _give_password(place: Place, mechanism: str) -> None:
    from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    kind = ScramMechanism.SCRAM_SHA_256 if mechanism.endswith("256") else ScramMechanism.SCRAM_SHA_512
    change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
    place.admin.alter_user_scram_credentials([change])[USER].result(20)


def test_the_evidence_is_an_offset_that_kafkas_own_tools_show(place: Place) -> None:
    from confluent_kafka import Consumer

    sink = make_sink(place)
    commit(sink, stage(sink, 5, ROWS), 0)
    consumer = Consumer({"bootstrap.servers": place.direct, "group.id": f"{place.prefix}{harness.LEDGER}.lake"})
    (found,) = consumer.committed([TopicPartition(place.topic, 0)], timeout=10)
    consumer.close()
    assert found.offset == 5
    told = json.loads(found.metadata or "")
    assert (told["epoch"], told["rows"], told["transactions"]) == (1, 5, 1)
    assert "checkpoint 5" in str(sink.prove(5, 1))
