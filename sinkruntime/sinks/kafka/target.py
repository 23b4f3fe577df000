"""The cluster and the topic before the first row: limits, identity, creation.

Called by the sink's `inspect`, `prepare_target` and `evidence`. Never produces a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.clients import REQUEST_TIMEOUT_SECONDS, translated
from sinkruntime.sinks.kafka.options import Options

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

LIMIT = "transaction.max.timeout.ms"


def check_timeout(admin: AdminClient, options: Options) -> float | None:
    """The brokers' longest transaction, in seconds; None where the user may not ask (the first writer then finds
    out). Raises `TargetError` where `transactionTimeout` is longer."""
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType

    with _reaching(options):
        (broker, *_) = admin.list_topics(timeout=REQUEST_TIMEOUT_SECONDS).brokers
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        with _reaching(options):
            asked = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_SECONDS)
            settings = asked[resource].result(REQUEST_TIMEOUT_SECONDS)
    except TargetError as error:
        if error.reason == "PermissionDenied":
            return None
        raise
    limit_ms = int(settings[LIMIT].value)
    if options.transactions and options.transaction_timeout.milliseconds > limit_ms:
        message = f"{options.transaction_timeout} is longer than the brokers allow: {LIMIT} is {limit_ms} ms"
        advice = f"at most {limit_ms // 1000}s, or raise {LIMIT}"
        raise TargetError("TransactionTimeoutTooLong", message, path="options.transactionTimeout", advice=advice)
    return limit_ms / 1000


def prepare_topic(admin: AdminClient, options: Options) -> None:
    """Make the topic where it is missing and `createTopic` is given; raises `TargetError` where it stays missing."""
    if options.topic is None:
        return
    with _reaching(options):
        if options.topic in admin.list_topics(timeout=REQUEST_TIMEOUT_SECONDS).topics:
            return
    if options.create_topic is None:
        message = f"there is no topic `{options.topic}`, or the user may not describe it"
        raise TargetError("TopicMissing", message, path="options.topic", advice="make it, or give `createTopic`")
    _create(admin, options)


def _create(admin: AdminClient, options: Options) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.cimpl import NewTopic

    wanted, topic = options.create_topic, options.topic
    assert wanted is not None, "asked only with `createTopic`"
    assert topic is not None, "which needs `topic`"
    new = NewTopic(topic, wanted.partitions, wanted.replication_factor, config=dict(wanted.config))
    with _reaching(options):
        made = admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_SECONDS)[topic]
        try:
            made.result(REQUEST_TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                message = f"topic `{topic}` was not made: {error.args[0].str()}"
                raise TargetError("TopicNotMade", message, path="options.createTopic") from error


def identity_of(admin: AdminClient, options: Options) -> str:
    """The topic's own id, which a topic that is made anew does not have; of topics by field, the cluster's.
    "": the topic is not there."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    with _reaching(options):
        if options.topic is None:
            return str(admin.list_topics(timeout=REQUEST_TIMEOUT_SECONDS).cluster_id)
        asked = admin.describe_topics(TopicCollection([options.topic]), request_timeout=REQUEST_TIMEOUT_SECONDS)
        try:
            return str(asked[options.topic].result(REQUEST_TIMEOUT_SECONDS).topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise


@contextmanager
def _reaching(options: Options) -> Iterator[None]:
    """What cannot be reached is told as such, with its address."""
    try:
        with translated("asking the brokers"):
            yield
    except (OSError, FutureTimeoutError) as error:
        message = f"{options.bootstrap_servers} does not answer: {error}"
        raise TargetError("BrokerUnreachable", message, path="options.bootstrapServers") from error
