"""What a writer must know of topics before it sends them a record: that they are there, and what they take.

A broker that turns down one record of a transaction ends the whole transaction. So with dead letters the topics'
settings are asked for first, once a minute and process; without them the broker is let to say it. Used by `screen`.
Never makes a topic; a broker that makes topics by itself does so when it is asked for one.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.clients import (
    PRODUCER_RECORD_BYTES,
    REQUEST_TIMEOUT_SECONDS,
    admin_of,
    error_of,
    translated,
)
from sinkruntime.sinks.kafka.options import Options

if TYPE_CHECKING:
    from confluent_kafka import Producer

#: A topic that was made this moment is known to all brokers after so long; for all of a writer's topics together.
MISSING_WAIT_SECONDS = 1.0
PAUSE_SECONDS = 0.05
#: How long a topic's settings are believed, and of how many topics.
BELIEVED_SECONDS = 60.0
TOPICS_REMEMBERED_MAX = 1_000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a topic takes. `batch_bytes_max`: None where the user may not ask."""

    batch_bytes_max: int | None = None
    needs_key: bool = False


#: By brokers and topic: until when it is believed (monotonic seconds), and what was said.
_Believed = OrderedDict[tuple[str, str], tuple[float, Limits]]
_believed: _Believed = OrderedDict()


class Topics:
    """The topics of one writer."""

    def __init__(self, options: Options, asks_limits: bool) -> None:
        self._options = options
        self._asks_limits = asks_limits
        self._wait_seconds = MISSING_WAIT_SECONDS
        self._problems: dict[str, str] = {}
        self._limits: dict[str, Limits] = {}

    def problem(self, producer: Producer, name: str) -> str:
        """Why no record can go to this topic; "" where it can. Asks once per topic. Raises `ConnectionError`, and
        `TargetError` where the user may not use it: that is no fault of a row."""
        if name not in self._problems:
            legal = _NAME.fullmatch(name) and name not in (".", "..")
            self._problems[name] = self._look(producer, name) if legal else f"`{name[:100]}` is no name of a topic"
        return self._problems[name]

    def _look(self, producer: Producer, name: str) -> str:
        while True:
            with translated(f"asking for topic {name}"):
                found = producer.list_topics(name, timeout=REQUEST_TIMEOUT_SECONDS).topics[name]
            if found.error is None:
                return ""
            error = error_of(found.error, f"asking for topic {name}")
            if isinstance(error, TargetError) and error.reason != "TopicMissing":
                raise error
            if self._wait_seconds <= 0:
                if isinstance(error, TargetError):
                    return f"there is no topic `{name}`"
                raise error
            self._wait_seconds -= PAUSE_SECONDS
            time.sleep(PAUSE_SECONDS)

    def limits(self, name: str) -> Limits:
        """What the topic takes, as far as it was asked and told."""
        if not self._asks_limits:
            return Limits()
        if name not in self._limits:
            self._limits[name] = _limits_of(self._options, name)
        return self._limits[name]

    def batch_bytes_max(self) -> int | None:
        """What the producer's batches must stay below, for the sink's own topic; None: nothing is known."""
        return None if self._options.topic is None else self.limits(self._options.topic).batch_bytes_max


def record_bytes_max(options: Options) -> int:
    """librdkafka's own limit of a key and a value together."""
    given = options.producer.get("message.max.bytes")
    return PRODUCER_RECORD_BYTES if given is None else int(given.get_secret_value())


def _limits_of(options: Options, name: str) -> Limits:
    key, now = (options.bootstrap_servers, name), time.monotonic()
    until, limits = _believed.get(key, (0.0, Limits()))
    if until > now:
        return limits
    limits = _ask(options, name)
    _believed[key] = now + BELIEVED_SECONDS, limits
    while len(_believed) > TOPICS_REMEMBERED_MAX:
        _believed.popitem(last=False)
    return limits


def _ask(options: Options, name: str) -> Limits:
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType

    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = admin_of(options)  # its requests end with it
    try:
        with translated(f"asking for the settings of topic {name}"):
            asked = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_SECONDS)
            settings = asked[resource].result(REQUEST_TIMEOUT_SECONDS)
    except TargetError as error:
        if error.reason == "PermissionDenied":
            return Limits()
        raise
    policy = str(settings["cleanup.policy"].value)
    return Limits(int(settings["max.message.bytes"].value), "compact" in policy.split(","))
