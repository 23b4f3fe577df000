"""From Arrow batches to records: topics, keys, values, headers, each as a list as long as the batch.

Used by the writer, and by `prepare_target` to refuse columns that do not fit. Never talks to a broker; asks a
schema registry, where there is one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinkruntime.avro_schemas import avro_problem, avro_schema, load_fastavro
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka.json_text import json_objects
from sinkruntime.sinks.kafka.options import Format, Options
from sinkruntime.sinks.kafka.registry import head

Bytes = list[bytes | None]
Headers = list[tuple[str, bytes | None]]
Encode = Callable[[pa.RecordBatch], Bytes]
#: What the records of a topic begin with.
Head = Callable[[str], bytes]

#: What encoding raises for a row that has no such form: a time beyond the year 9999, text that is not UTF-8.
ENCODE_ERRORS = (pa.ArrowException, ValueError, OverflowError)


class RowProblem(ValueError):
    """A row from which no record can be made, and for which reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Records:
    """A batch as records; None: no record has one (`topics`: all have the sink's own)."""

    values: Bytes
    keys: Bytes | None
    headers: list[Headers | None] | None
    topics: list[str] | None

    def without(self, rows: Container[int]) -> Records:
        """The same, but for these rows."""
        kept = [index for index in range(len(self.values)) if index not in rows]
        keys = None if self.keys is None else [self.keys[index] for index in kept]
        headers = None if self.headers is None else [self.headers[index] for index in kept]
        topics = None if self.topics is None else [self.topics[index] for index in kept]
        return Records([self.values[index] for index in kept], keys, headers, topics)


class Encoder:
    """Encodes batches of one schema."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        taken = (options.topic_field, options.headers_field)
        value = options.value or tuple(name for name in schema.names if name not in taken)
        for path, names in (("key", options.key), ("value", value), ("topicField", [options.topic_field])):
            _check_present([name for name in names if name is not None], schema, path)
        if not value:
            raise _mismatch("value", "no column is left for the value")
        self._key = _encoder(options.key_format, options.key, schema, "key") if options.key else None
        self._value = _encoder(options.value_format, value, schema, "value")
        self._key_head = self._head("key", options.key_format, options.key, schema) if options.key else None
        self._value_head = self._head("value", options.value_format, value, schema)
        self._value_columns = value
        self._tombstones = options.tombstones and options.value_format in (Format.JSON, Format.AVRO)
        if options.topic_field is not None:
            _check_text(schema, options.topic_field)
        if options.headers_field is not None:
            _check_headers(schema, options.headers_field)

    def encode(self, batch: pa.RecordBatch) -> Records:
        """All rows, in order. Raises one of `ENCODE_ERRORS` where a row has no such form, or names no topic."""
        values = self._value(batch)
        if self._tombstones:
            values = _without_empty(values, [batch.column(name) for name in self._value_columns])
        options = self._options
        return Records(
            values,
            None if self._key is None else self._key(batch),
            None if options.headers_field is None else _headers(batch.column(options.headers_field)),
            None if options.topic_field is None else _topics(batch.column(options.topic_field), options.topic_field),
        )

    def headed(self, records: Records, without: Container[str] = ()) -> Records:
        """The records with what a schema registry wants before keys and values; those for some topics as they are.
        Raises as `registry.head`."""
        if self._key_head is None and self._value_head is None:
            return records
        topics = records.topics or [str(self._options.topic)] * len(records.values)
        known = {topic for topic in set(topics) if topic not in without}
        keys = None if records.keys is None else _headed(records.keys, topics, self._key_head, known)
        return replace(records, values=_headed(records.values, topics, self._value_head, known), keys=keys)

    def register(self) -> None:
        """Ask the schema registry for the schemas of `topic`, where there are both. Raises as `registry.head`."""
        for head_of in (self._key_head, self._value_head):
            if head_of is not None and self._options.topic is not None:
                head_of(self._options.topic)

    def _head(self, part: str, kind: Format, names: Sequence[str], schema: pa.Schema) -> Head | None:
        if self._options.schema_registry is None or kind is not Format.AVRO:
            return None
        text = json.dumps(avro_schema(pa.schema([schema.field(name) for name in names])))
        registry = self._options.schema_registry
        return lambda topic: head(registry, f"{topic}-{part}", text)


def _headed(encoded: Bytes, topics: Sequence[str], head_of: Head | None, known: Iterable[str]) -> Bytes:
    if head_of is None:
        return encoded
    heads = {topic: head_of(topic) for topic in known}
    return [None if one is None else heads.get(topic, b"") + one for one, topic in zip(encoded, topics, strict=True)]


def _encoder(kind: Format, names: Sequence[str], schema: pa.Schema, path: str) -> Encode:
    if kind is Format.JSON:
        return lambda batch: _bytes(json_objects([batch.column(name) for name in names], names))
    if kind is Format.AVRO:
        return _avro(names, schema, path)
    if len(names) != 1:
        raise _mismatch(path, f"format {kind} takes one column, these are {', '.join(names)}")
    (name,) = names
    column = schema.field(name).type
    if kind is Format.BINARY:
        if not (pa.types.is_binary(column) or pa.types.is_large_binary(column)):
            raise _mismatch(path, f"format binary takes binary, column `{name}` is {column}")
        return lambda batch: _bytes(batch.column(name))
    if not _is_text_like(column):
        raise _mismatch(path, f"format string takes text, numbers and booleans, column `{name}` is {column}")
    return lambda batch: _bytes(batch.column(name).cast(pa.string()))


def _is_text_like(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_floating)
    return any(check(kind) for check in checks) or types.is_decimal(kind)


def _avro(names: Sequence[str], schema: pa.Schema, path: str) -> Encode:
    """Each record is the bare datum; what a schema registry wants comes before it."""
    fields = [schema.field(name) for name in names]
    for field in fields:
        if problem := avro_problem(field):
            raise _mismatch(path, problem)
    fastavro = load_fastavro(f"options.{path}Format")
    parsed = fastavro.parse_schema(avro_schema(pa.schema(fields)))
    write = fastavro.write.schemaless_writer

    def encode(batch: pa.RecordBatch) -> Bytes:
        encoded: Bytes = []
        for row in batch.select(list(names)).to_pylist():
            stream = io.BytesIO()
            write(stream, parsed, row)
            encoded.append(stream.getvalue())
        return encoded

    return encode


def _bytes(column: pa.Array[Any]) -> Bytes:
    binary: Bytes = column.cast(pa.binary()).to_pylist()
    return binary


def _without_empty(values: Bytes, columns: Sequence[pa.Array[Any]]) -> Bytes:
    """None in place of the values of rows that have nothing."""
    if any(column.null_count == 0 for column in columns):
        return values
    empty = columns[0].is_null()
    for column in columns[1:]:
        empty = pc.and_(empty, column.is_null())
    return [None if gone else value for value, gone in zip(values, empty.to_pylist(), strict=True)]


def _headers(column: pa.Array[Any]) -> list[Headers | None]:
    return [None if row is None else [_header(item) for item in row] for row in column.to_pylist()]


def _header(item: Any) -> tuple[str, bytes | None]:
    if item is None:
        raise RowProblem("HeaderInvalid", "a header is null")
    key, value = (item["key"], item["value"]) if isinstance(item, dict) else item
    if key is None:
        raise RowProblem("HeaderInvalid", "a header has no name")
    return str(key), value.encode() if isinstance(value, str) else value


def _topics(column: pa.Array[Any], name: str) -> list[str]:
    if column.null_count:
        raise RowProblem("TopicMissing", f"column `{name}` is null, so the row has no topic")
    return [str(topic) for topic in column.to_pylist()]


def _check_present(names: Sequence[str], schema: pa.Schema, path: str) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            raise _mismatch(path, f"there is no column `{name}`; there are {', '.join(schema.names)}")


def _check_text(schema: pa.Schema, name: str) -> None:
    kind = schema.field(name).type
    if not pa.types.is_string(kind):
        raise _mismatch("topicField", f"a topic's name is text, column `{name}` is {kind}")


def _check_headers(schema: pa.Schema, name: str) -> None:
    _check_present([name], schema, "headersField")
    kind = schema.field(name).type
    pair: tuple[pa.DataType, ...] = ()
    if isinstance(kind, pa.MapType):
        pair = (kind.key_type, kind.item_type)
    elif isinstance(kind, pa.ListType) and isinstance(kind.value_type, pa.StructType):
        fields = list(kind.value_type)
        pair = tuple(field.type for field in fields) if [field.name for field in fields] == ["key", "value"] else ()
    if not pair or not pa.types.is_string(pair[0]) or not (pa.types.is_string(pair[1]) or pa.types.is_binary(pair[1])):
        message = f"headers are a map of text to text or binary, or an array of (key, value); column `{name}` is {kind}"
        raise _mismatch("headersField", message)


def _mismatch(path: str, message: str) -> TargetError:
    return TargetError("SchemaMismatch", message, path=f"options.{path}")
