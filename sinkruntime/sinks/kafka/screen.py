"""Lets through the rows that can be sent, as records, and hands the others to the sink's dead letters.

Used by the writer, which sends what comes out in its order. A row is turned down where it cannot be encoded, names no
topic that there is, or makes a record that the producer or its topic does not take. Never sends anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sinkruntime.dead_letters import Reject, reject_nothing
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.clients import PRODUCER_BATCH_BYTES
from sinkruntime.sinks.kafka.encode import ENCODE_ERRORS, Encoder, Headers, Records, RowProblem
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.topics import Limits, Topics, record_bytes_max

if TYPE_CHECKING:
    from confluent_kafka import Producer

#: Of a batch of records before the first one, in Kafka's format 2.
BATCH_HEAD_BYTES = 61
#: Of a record without its key, value and headers: at most.
RECORD_HEAD_BYTES_MAX = 24

Problem = tuple[str, str]  # a reason, and a sentence


class Screen:
    """The rows of one writer."""

    def __init__(self, options: Options, encoder: Encoder, topics: Topics, reject: Reject) -> None:
        self._options = options
        self._encoder = encoder
        self._topics = topics
        self._reject = reject
        self._record_bytes_max = record_bytes_max(options)
        given = options.producer.get("batch.size")
        self._batch_bytes = PRODUCER_BATCH_BYTES if given is None else int(given.get_secret_value())

    def records(self, producer: Producer, batch: pa.RecordBatch) -> Iterator[Records]:
        """What can be sent of the batch, in order."""
        for rows, encoded in self._encoded(batch):
            missing = self._missing(producer, encoded)
            records = self._encoder.headed(encoded, missing)
            problems = self._problems(records, missing)
            if not problems:
                yield records
                continue
            for index, (reason, message) in problems.items():
                self._reject(rows.slice(index, 1), reason, message)
            kept = records.without(problems)
            if kept.values:
                yield kept

    def _encoded(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Records]]:
        """Encoded as one; where that fails, in halves, until the rows that fail stand alone."""
        try:
            records = self._encoder.encode(batch)
        except ENCODE_ERRORS as error:
            if batch.num_rows == 1:
                reason = error.reason if isinstance(error, RowProblem) else "NotEncodable"
                self._reject(batch, reason, str(error))
                return
            middle = batch.num_rows // 2
            yield from self._encoded(batch.slice(0, middle))
            yield from self._encoded(batch.slice(middle))
        else:
            yield batch, records

    def _missing(self, producer: Producer, records: Records) -> dict[str, str]:
        """Topics of the rows that no record can go to, and why."""
        told = {name: self._topics.problem(producer, name) for name in dict.fromkeys(records.topics or ())}
        return {name: problem for name, problem in told.items() if problem}

    def _problems(self, records: Records, missing: Mapping[str, str]) -> dict[int, Problem]:
        """By row: why it cannot be sent."""
        found: dict[int, Problem] = {
            i: ("TopicMissing", missing[name]) for i, name in enumerate(records.topics or ()) if name in missing
        }
        names = {str(self._options.topic)} if records.topics is None else set(records.topics)
        limits = {name: self._limits_of(name) for name in names if name not in missing}
        if self._may_exceed(records, list(limits.values())):
            for index in range(len(records.values)):
                name = str(self._options.topic) if records.topics is None else records.topics[index]
                if index not in found and (problem := self._problem(records, index, name, limits[name])):
                    found[index] = problem
        return found

    def _limits_of(self, name: str) -> Limits:
        """Raises `TargetError` where rows that fit one by one would be turned down in one batch."""
        limits = self._topics.limits(name)
        most = limits.batch_bytes_max
        if self._options.topic is None and most is not None and most < self._batch_bytes:
            message = (
                f"topic `{name}` takes batches of {most} bytes, the producer makes them of up to {self._batch_bytes}"
            )
            advice = f'at most {{"batch.size": {most}}}, or raise the topic\'s max.message.bytes'
            raise TargetError("BatchTooLarge", message, path="options.producer", advice=advice)
        return limits

    def _may_exceed(self, records: Records, limits: Sequence[Limits]) -> bool:
        """A look at the largest value and key, before one at each record. Without dead letters none: the client or the
        broker says it, and either ends the batch."""
        if self._reject is reject_nothing:
            return False
        bounds = [one.batch_bytes_max for one in limits if one.batch_bytes_max is not None]
        if any(one.needs_key for one in limits) or (bounds and records.headers is not None):
            return True
        largest = _longest(records.values) + _longest(records.keys or [])
        whole = BATCH_HEAD_BYTES + RECORD_HEAD_BYTES_MAX + largest
        return largest > self._record_bytes_max or any(whole > bound for bound in bounds)

    def _problem(self, records: Records, index: int, topic: str, limits: Limits) -> Problem | None:
        key = None if records.keys is None else records.keys[index]
        value = records.values[index]
        if limits.needs_key and key is None:
            return "KeyMissing", f"topic `{topic}` is compacted, and takes no record without a key"
        payload = _length(key) + _length(value)
        if payload > self._record_bytes_max:
            message = f"{payload} bytes of key and value; producer.message.max.bytes is {self._record_bytes_max}"
            return "RecordTooLarge", message
        if limits.batch_bytes_max is None:
            return None
        whole = batch_bytes(key, value, None if records.headers is None else records.headers[index])
        if whole > limits.batch_bytes_max:
            message = f"{whole} bytes; max.message.bytes of topic `{topic}` is {limits.batch_bytes_max}"
            return "RecordTooLarge", message
        return None


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """The size of a batch of this one record, before compression: what a broker compares with `max.message.bytes`."""
    body = 3 + _sized(key) + _sized(value) + _varint_bytes(len(headers or ()))
    for name, content in headers or ():
        body += _sized(name.encode()) + _sized(content)
    return BATCH_HEAD_BYTES + _varint_bytes(body) + body


def _sized(data: bytes | None) -> int:
    """A length and what it is of; no data has the length -1."""
    return 1 if data is None else _varint_bytes(len(data)) + len(data)


def _varint_bytes(number: int) -> int:
    """Of a number that is not negative, in Kafka's zigzag encoding."""
    return max(1, -(-(number << 1).bit_length() // 7))


def _longest(some: list[bytes | None]) -> int:
    return max(map(len, filter(None, some)), default=0)


def _length(data: bytes | None) -> int:
    return 0 if data is None else len(data)
