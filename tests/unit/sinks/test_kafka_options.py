"""The Kafka sink's options: what is refused and what is said of it, which ids are used again, what a state means."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sinkruntime.api import Guarantee, SinkIdentity
from sinkruntime.errors import ManifestError, TargetError
from sinkruntime.sinks.kafka import KafkaSink
from sinkruntime.sinks.kafka.clients import admin_settings, producer_settings
from sinkruntime.sinks.kafka.committer import Standing, standing_of
from sinkruntime.sinks.kafka.encode import Encoder, RowProblem
from sinkruntime.sinks.kafka.names import SLOTS, IdPool, Origin, base_name, origin_of
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.screen import batch_bytes
from sinkruntime.sinks.kafka.wire import Transaction
from sinkruntime.spec.delivery import Commit
from sinkruntime.spec.sink_options import parse_options

LEAST = {"bootstrapServers": "b:9092", "topic": "t"}
IDENTITY = SinkIdentity("5a0f2d1e-7c57-4b8e-9d3f-0c5a1e6b7d42", "lake", "data/flights")


def problems(**more: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_options(KafkaSink, {**LEAST, **more}, ("spec", "sinks", 0, "options"))
    return str(caught.value)


def test_the_least_is_enough_and_exactly_once() -> None:
    offer = KafkaSink.guarantee(Options.model_validate(LEAST), {})
    assert offer.guarantee is Guarantee.EXACTLY_ONCE
    assert "15m" in offer.why


def test_without_transactions_it_is_at_least_once_and_has_no_committers() -> None:
    sink = KafkaSink(Options.model_validate({**LEAST, "transactions": False}), IDENTITY)
    assert KafkaSink.guarantee(sink.options, {}).guarantee is Guarantee.AT_LEAST_ONCE
    assert (sink.create_committer(), sink.create_aggregated_committer()) == (None, None)
    assert sink.staged_life_seconds() is None
    assert (sink.evidence(), sink.prove(1, 1)) == (None, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topicField": "where"}, "`topic` or `topicField`: give exactly one"),
        ({"topic": None}, "`topic` or `topicField`: give exactly one"),
        ({"topic": "no spaces"}, "a topic's name of letters"),
        ({"topic": None, "topicField": "x", "createTopic": {"partitions": 1}}, "`createTopic` needs `topic`"),
        ({"valueFormat": "string", "value": ["a", "b"]}, "`valueFormat: string` takes one column, `value` names 2"),
        ({"keyFormat": "binary", "key": ["a", "b"]}, "`keyFormat: binary` takes one column, `key` names 2"),
        ({"tombstones": True}, "`tombstones` needs `key`"),
        ({"partitioner": "sticky"}, "murmur2_random"),
        ({"compression": "brotli"}, "zstd"),
        ({"valueFormat": "protobuf"}, "avro"),
        ({"transactionTimeout": "0s"}, "must be more than zero"),
        ({"transactionalIdPrefix": "a b"}, "letters, digits"),
        ({"producer": {"transactional.id": "x"}}, "`transactional.id` would let two writers share a transaction"),
        ({"producer": {"enable.idempotence": False}}, "`enable.idempotence` must stay on"),
        ({"producer": {"acks": 1}}, "`acks` must stay `all`"),
        ({"producer": {"retries": 0}}, "`retries` must stay unbounded"),
        ({"producer": {"max.in.flight": 6}}, "`max.in.flight` is 1 to 5"),
        ({"producer": {"sasl.mechanism": "GSSAPI"}}, "`sasl.mechanism` can be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"producer": {"sasl.kerberos.principal": "me"}}, "`sasl.kerberos.principal` is not supported"),
        ({"producer": {"ssl.keystore.location": "/k"}}, "`ssl.keystore.location` is not supported"),
        ({"producer": {"security.protocol": "tls"}}, "`security.protocol` can be plaintext, ssl"),
        ({"producer": {"schema.registry.url": "http://r"}}, "`schema.registry.url` is the option `schemaRegistry`"),
        ({"producer": {"bootstrap.servers": "x"}}, "is the option `bootstrapServers`"),
        ({"schemaRegistry": {"url": "http://r"}}, "needs `valueFormat: avro` or `keyFormat: avro`"),
        ({"valueFormat": "avro", "schemaRegistry": {"url": "http://me:word@r"}}, "without user and password"),
        ({"valueFormat": "avro", "schemaRegistry": {"url": "http://r", "username": "me"}}, "give both of them"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_would_be_right(more: dict[str, Any], said: str) -> None:
    assert said in problems(**more)
    assert "spec.sinks[0].options" in problems(**more)


def test_no_secret_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = Options.model_validate({**LEAST, "producer": {"sasl.password": "hunter2", "ssl.key.password": "hunter3"}})
    assert producer_settings(options)["sasl.password"] == "hunter2"
    assert admin_settings(options)["ssl.key.password"] == "hunter3"
    for text in (repr(options), str(options), options.model_dump_json(), caplog.text):
        assert "hunter" not in text
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({**LEAST, "producer": {"sasl.password": "hunter2", "acks": "hunter3"}})
    assert "hunter" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("more", "path", "said"),
    [
        ({"key": ["k"]}, "options.key", "there is no column `k`; there are id, name, tags"),
        ({"value": ["v"]}, "options.value", "there is no column `v`"),
        ({"topicField": "t", "topic": None}, "options.topicField", "there is no column `t`"),
        ({"topicField": "id", "topic": None}, "options.topicField", "a topic's name is text, column `id` is int64"),
        ({"headersField": "name"}, "options.headersField", "column `name` is string"),
        ({"headersField": "nothing"}, "options.headersField", "there is no column `nothing`"),
        ({"valueFormat": "string"}, "options.value", "format string takes one column, these are id, name, tags"),
        ({"valueFormat": "binary", "value": ["id"]}, "options.value", "takes binary, column `id` is int64"),
        ({"keyFormat": "string", "key": ["tags"]}, "options.key", "text, numbers and booleans, column `tags` is map"),
        ({"valueFormat": "avro"}, "options.value", "avro cannot hold map"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused_by_name(more: dict[str, Any], path: str, said: str) -> None:
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "tags": pa.map_(pa.string(), pa.string())}
    schema = pa.schema(fields)
    given_options = {name: value for name, value in {**LEAST, **more}.items() if value is not None}
    with pytest.raises(TargetError) as caught:
        Encoder(Options.model_validate(given_options), schema)
    assert (caught.value.reason, caught.value.path) == ("SchemaMismatch", path)
    assert said in caught.value.message


def test_a_row_without_a_topic_is_refused() -> None:
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "to": pa.string()}
    schema = pa.schema(fields)
    encoder = Encoder(Options.model_validate({"bootstrapServers": "b", "topicField": "to"}), schema)
    with pytest.raises(RowProblem, match="column `to` is null") as caught:
        encoder.encode(pa.RecordBatch.from_pylist([{"id": 1, "to": "a"}, {"id": 2, "to": None}], schema=schema))
    assert caught.value.reason == "TopicMissing"


@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=20_000),
    st.lists(st.tuples(st.text(max_size=80), st.none() | st.binary(max_size=200)), max_size=70),
)
def test_the_size_of_a_record_is_what_the_formats_own_words_make_of_it(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """Written here from the record format of Kafka's protocol, byte by byte."""

    def varint(number: int) -> bytes:
        number, out = (number << 1) ^ (number >> 31), bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    def sized(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(0) + varint(0) + sized(key) + sized(value) + varint(len(headers))
    body += b"".join(sized(name.encode()) + sized(content) for name, content in headers)
    assert batch_bytes(key, value, headers) == 61 + len(varint(len(body)) + body)


def test_as_many_slots_as_checkpoints_can_be_pending() -> None:
    (bound,) = (item.le for item in Commit.model_fields["max_pending"].metadata if hasattr(item, "le"))
    assert bound == SLOTS


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120))
def test_no_id_is_taken_twice_while_its_checkpoint_may_be_pending(writers: list[int]) -> None:
    """`writers[n]` writers of checkpoint n, in one process."""
    pool, last_use = IdPool(), dict[str, int]()
    for checkpoint, count in enumerate(writers, start=1):
        for _ in range(count):
            name = pool.take("base", 1, checkpoint)
            assert checkpoint - last_use.get(name, -SLOTS) >= SLOTS
            assert origin_of("base", name) == Origin(1, checkpoint % SLOTS)
            last_use[name] = checkpoint
    assert len(last_use) <= SLOTS * max(writers)


def test_a_forked_process_and_a_forgotten_job_get_ids_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = IdPool()
    first = pool.take("base", 1, 1)
    for other in range(100):
        pool.take(f"other-{other}", 1, 1)
    assert pool.take("base", 1, 1) != first
    again = pool.take("base", 1, 1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert pool.take("base", 1, 1 + SLOTS) not in (first, again)


def test_ids_of_other_sinks_are_not_ours() -> None:
    base = base_name("p.", IDENTITY)
    assert base == "p.5a0f2d1e-7c57-4b8e-9d3f-0c5a1e6b7d42.lake"
    for name in (f"{base}.evidence", f"{base}2.1.1.ab.0", f"x{base}.1.1.ab.0", f"{base}.1.1.ab", f"{base}.a.1.1.ab.0"):
        assert origin_of(base, name) is None
    assert origin_of(base, f"{base}.12.3.ab.0") == Origin(12, 3)


@pytest.mark.parametrize(
    ("producer", "epoch", "state", "standing"),
    [
        (7, 3, "Ongoing", Standing.OPEN),
        (7, 3, "PrepareCommit", Standing.LANDED),
        (7, 3, "CompleteCommit", Standing.LANDED),
        (7, 3, "PrepareAbort", Standing.ABORTED),
        (7, 3, "CompleteAbort", Standing.ABORTED),
        (7, 4, "PrepareEpochFence", Standing.ABORTED),
        (7, 4, "CompleteAbort", Standing.ABORTED),
        (7, 4, "CompleteCommit", Standing.GONE),
        (7, 4, "Ongoing", Standing.GONE),
        (7, 4, "Empty", Standing.GONE),
        (7, 5, "CompleteAbort", Standing.GONE),
        (7, 2, "Ongoing", Standing.GONE),
        (8, 3, "Ongoing", Standing.GONE),
        (8, 3, "CompleteCommit", Standing.GONE),
        (7, 3, "Empty", Standing.GONE),
        (7, 3, "Dead", Standing.GONE),
    ],
)  # fmt: skip
def test_a_transaction_is_ours_by_producer_and_epoch(
    producer: int, epoch: int, state: str, standing: Standing
) -> None:  # fmt: skip
    found = Transaction("id", 0, state, 1000, 0, producer, epoch)
    assert standing_of({"producer": 7, "epoch": 3}, found) is standing
    assert standing_of({"producer": 7, "epoch": 3}, None) is Standing.GONE
