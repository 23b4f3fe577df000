"""The options of the `kafka` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the broker can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.sinks.kafka.settings import problem_of
from sinkruntime.spec.base import (
    KEYS_MAX,
    Matching,
    Model,
    OptionsModel,
    PositiveDuration,
    Scalars,
    Text,
    UniqueItems,
    spark_text,
)
from sinkruntime.spec.quantities import Duration


class Format(StrEnum):
    """How a key or a value is written."""

    JSON = "json"
    STRING = "string"
    BINARY = "binary"
    AVRO = "avro"


class Compression(StrEnum):
    """How batches of records are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Partitioner(StrEnum):
    """Which partition a record goes to, by its key."""

    MURMUR2_RANDOM = "murmur2_random"
    MURMUR2 = "murmur2"
    CONSISTENT_RANDOM = "consistent_random"
    CONSISTENT = "consistent"
    FNV1A_RANDOM = "fnv1a_random"
    FNV1A = "fnv1a"
    RANDOM = "random"


_TOPIC = Matching(r"[A-Za-z0-9._-]+", "a topic's name of letters, digits, `.`, `_`, `-`", 249)
_PREFIX = Matching(r"[A-Za-z0-9._-]+", "letters, digits, `.`, `_`, `-`", 100)
_REGISTRY_URL = Matching(r"https?://[^\s@]+", "a URL, `https://…`, without user and password", 2_000)
Setting = Annotated[SecretStr, BeforeValidator(spark_text)]


class CreateTopic(Model):
    """How the topic is made where it is missing."""

    partitions: int = Field(ge=1, le=10_000, description="Partitions of a topic that is made.")
    replication_factor: int = Field(
        default=-1, ge=-1, le=32_767, description="Its replication factor; -1: the broker's default."
    )
    config: Scalars = Field(default={}, description="Its settings, by Kafka's own names.")


class SchemaRegistry(OptionsModel):
    """Where Avro schemas are kept, by Confluent's API."""

    url: Annotated[str, _REGISTRY_URL] = Field(
        description="Its address, with the path of the API: `https://registry:8081`, `…/apis/ccompat/v7`."
    )
    username: Text | None = Field(default=None, description="Of HTTP's basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="Likewise; through `optionsFrom`, as `schemaRegistry.password`."
    )
    ca_file: Text | None = Field(
        default=None, description="Certificates that sign the registry's; left out: those of the system."
    )
    auto_register: bool = Field(
        default=True, description="Register the columns' schema; `false`: it must be there, and is looked up."
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise PydanticCustomError("login", "`username` and `password`: give both of them, or none")
        return self


class Options(OptionsModel):
    """Options of the `kafka` sink."""

    bootstrap_servers: Text = Field(description="`host:port` of one or more brokers, separated by commas.")
    topic: Annotated[str, _TOPIC] | None = Field(default=None, description="Where all rows go.")
    topic_field: Text | None = Field(
        default=None, description="Column that names each row's topic; instead of `topic`. It is not part of the value."
    )
    create_topic: CreateTopic | None = Field(
        default=None, description="Make `topic` where it is missing: `{partitions: 8, replicationFactor: 3}`."
    )
    key: UniqueItems[Text] = Field(default=(), description="Columns of the key; none: records have no key.")
    key_format: Format = Field(
        default=Format.JSON, description="`json`, `string`, `binary`, `avro`; string and binary take one column."
    )
    value: UniqueItems[Text] = Field(
        default=(), description="Columns of the value; left out: all but those of `topicField` and `headersField`."
    )
    value_format: Format = Field(
        default=Format.JSON, description="`json`, `string`, `binary`, `avro`; string and binary take one column."
    )
    schema_registry: SchemaRegistry | None = Field(
        default=None,
        description="avro: keep schemas in a registry of Confluent's kind, under the subjects `<topic>-key` and "
        "`<topic>-value`, and begin each record with its schema's number.",
    )
    tombstones: bool = Field(
        default=False,
        description="json and avro: a row whose value columns are all null becomes a tombstone (no value). With "
        "string and binary a null always is one.",
    )
    headers_field: Text | None = Field(
        default=None,
        description="Column of headers: a map of text to text or binary, or Spark's array of (key, value).",
    )
    partitioner: Partitioner = Field(
        default=Partitioner.MURMUR2_RANDOM,
        description="Which partition a key goes to: `murmur2_random` (as Java's clients do; records without a key "
        "anywhere), `murmur2`, `consistent_random`, `consistent`, `fnv1a_random`, `fnv1a`, `random`.",
    )
    compression: Compression = Field(default=Compression.NONE, description="`none`, `gzip`, `snappy`, `lz4`, `zstd`.")
    transactions: bool = Field(
        default=True,
        description="Write in transactions, exactly once. `false`: a plain idempotent producer, whose rows are "
        "visible at once: AtLeastOnce.",
    )
    transaction_timeout: PositiveDuration = Field(
        default=Duration.parse("15m"),
        description="How long the broker keeps a transaction that nobody commits. At most the broker's "
        "`transaction.max.timeout.ms`.",
    )
    transactional_id_prefix: Annotated[str, _PREFIX] = Field(
        default="sinkjob.", description="What transactional ids and the group of the evidence begin with, for ACLs."
    )
    producer: Annotated[dict[Text, Setting], Field(max_length=KEYS_MAX)] = Field(
        default={},
        description="Further settings of librdkafka's producer: `linger.ms`, `security.protocol`, `sasl.username`, … "
        "Secrets through `optionsFrom`, as `producer.sasl.password`. What would break the guarantee is refused.",
    )

    @property
    def timeout_seconds(self) -> float:
        return self.transaction_timeout.seconds

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.topic is None) == (self.topic_field is None):
            raise PydanticCustomError("topic", "`topic` or `topicField`: give exactly one of them")
        if self.create_topic is not None and self.topic is None:
            raise PydanticCustomError("create_topic", "`createTopic` needs `topic`: topics of rows are not made")
        for part, kind, columns in (
            ("key", self.key_format, self.key),
            ("value", self.value_format, self.value),
        ):
            if kind in (Format.STRING, Format.BINARY) and len(columns) > 1:
                raise PydanticCustomError(
                    "one_column",
                    "`{part}Format: {kind}` takes one column, `{part}` names {count}",
                    {"part": part, "kind": kind.value, "count": len(columns)},
                )
        if self.schema_registry is not None and Format.AVRO not in (self.value_format, self.key_format):
            raise PydanticCustomError("registry", "`schemaRegistry` needs `valueFormat: avro` or `keyFormat: avro`")
        if self.tombstones and not self.key:
            raise PydanticCustomError("tombstones", "`tombstones` needs `key`: a tombstone is of a key")
        self._check_producer()
        return self

    def _check_producer(self) -> None:
        for name, value in self.producer.items():
            problem = problem_of(name, value.get_secret_value())
            if problem:
                raise PydanticCustomError(
                    "producer", "`producer`: `{name}` {problem}", {"name": name, "problem": problem}
                )
