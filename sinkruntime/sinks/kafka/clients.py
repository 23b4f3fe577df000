"""The settings of the confluent-kafka clients, and what their errors mean.

Used by the writer, the evidence and `prepare_target`. confluent-kafka is imported when the first client is made. No
error of ours repeats a setting's value.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.kafka.options import Options

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 15.0
#: librdkafka's defaults of `message.max.bytes` (key and value of one record) and `batch.size`.
PRODUCER_RECORD_BYTES = 1_000_000
PRODUCER_BATCH_BYTES = 1_000_000

_FINAL = {
    "TOPIC_AUTHORIZATION_FAILED": ("PermissionDenied", "grant Read, Write and Describe on the topic"),
    "GROUP_AUTHORIZATION_FAILED": (
        "PermissionDenied", "grant Read on groups with the prefix `transactionalIdPrefix`",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": ("PermissionDenied", "grant IdempotentWrite on the cluster"),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "PermissionDenied", "grant Write and Describe on transactional ids with the prefix `transactionalIdPrefix`",
    ),
    "SASL_AUTHENTICATION_FAILED": ("AuthenticationFailed", "see `producer.sasl.username` and its password"),
    "_AUTHENTICATION": ("AuthenticationFailed", "see `producer.sasl.username` and its password"),
    "UNKNOWN_TOPIC_OR_PART": ("TopicMissing", "make the topic, or give `createTopic`"),
    "_UNKNOWN_TOPIC": ("TopicMissing", "make the topic, or give `createTopic`"),
    "TOPIC_EXCEPTION": ("TopicMissing", "topics have letters, digits, `.`, `_` and `-`"),
    "MSG_SIZE_TOO_LARGE": (
        "RecordTooLarge",
        "raise `producer.message.max.bytes` and the topic's `max.message.bytes`; or, where each row fits, keep batches "
        "below it by `producer.batch.size`",
    ),
    "INVALID_TRANSACTION_TIMEOUT": (
        "TransactionTimeoutTooLong", "lower `transactionTimeout`, or raise the broker's `transaction.max.timeout.ms`",
    ),
    "INVALID_RECORD": ("RecordRefused", "a compacted topic takes no record without a key"),
    "_INVALID_ARG": ("InvalidSetting", "see `producer`"),
}  # fmt: skip


def load() -> Any:
    """The library; raises `ConfigurationError` where it is not installed."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        message, advice = "the kafka sink needs confluent-kafka", "pip install 'sinkjob[kafka]'"
        raise ConfigurationError("MissingModule", message, path="options", advice=advice) from error
    return confluent_kafka


def connection_settings(options: Options) -> dict[str, str]:
    """What the manifest gives, by librdkafka's names. Holds secrets."""
    given = {name: value.get_secret_value() for name, value in options.producer.items()}
    return {"bootstrap.servers": options.bootstrap_servers, **given}


def admin_settings(options: Options) -> dict[str, Any]:
    """The same for clients that produce nothing: what only producers know would be warned of."""
    wanted = ("bootstrap.servers", "security.", "sasl.", "ssl.", "enable.ssl.", "client.", "socket.", "broker.")
    return {
        **{name: value for name, value in connection_settings(options).items() if name.startswith(wanted)},
        "logger": log,
    }


def producer_settings(options: Options) -> dict[str, Any]:
    """Of an idempotent producer that loses nothing and keeps order."""
    return {
        "linger.ms": 20,
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 128 * 1024,
        "topic.metadata.propagation.max.ms": 10_000,  # how long a topic may be unknown before it is an error
        **connection_settings(options),
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": options.compression.value,
        "partitioner": options.partitioner.value,
        "delivery.report.only.error": True,
        "logger": log,
    }


def admin_of(options: Options) -> AdminClient:
    """A client for what is asked of the cluster. Connects when it is used."""
    load()
    from confluent_kafka.admin import AdminClient

    with translated("opening the client"):
        return AdminClient(admin_settings(options))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of the library: those that trying again cannot help are `TargetError`, others `ConnectionError`."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], what) from error


def error_of(error: Any, what: str) -> Exception:
    """A KafkaError as an error of ours."""
    name, said = str(error.name()), str(error.str())
    if name in _FINAL:
        reason, advice = _FINAL[name]
        path = "options.topic" if reason == "TopicMissing" else "options"
        return TargetError(reason, f"{what}: {said}", path=path, advice=advice)
    return ConnectionError(f"{what}: {name}: {said}")
