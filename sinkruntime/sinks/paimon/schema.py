"""A table's schema files: read, checked for what this sink does not write, made where there is no table.

Called by `table`. Every refusal names the option or column of the table, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import buckets
from sinkruntime.sinks.paimon.files import Files
from sinkruntime.sinks.paimon.options import Options, Write
from sinkruntime.sinks.paimon.types import Field, make_fields, read_fields

VERSION = 3
DIRECTORY = "schema"
#: Options of a table that change how files are written or read, and the values with which we write it.
_SUPPORTED: dict[str, tuple[str, ...]] = {
    "type": ("table",),
    "file.format": ("parquet",),
    "manifest.format": ("avro",),
    "changelog-producer": ("none",),
    "merge-engine": ("deduplicate",),
    "deletion-vectors.enabled": ("false",),
    "row-tracking.enabled": ("false",),
    "data-evolution.enabled": ("false",),
    "primary-key-nullable": ("false",),
    "bucket-function.type": ("default",),
    "ignore-delete": ("false",),
    "branch": ("main",),
    "partition.legacy-name": ("true",),
    "record-level.expire-time": (),
    "sequence.field": (),
    "rowkind.field": (),
    "data-file.external-paths": (),
    "data-file.path-directory": (),
    "tag.automatic-creation": ("none",),
    "cross-partition-upsert.bootstrap-parallelism": (),
}
_APPEND_BUCKET, _POSTPONE_BUCKET = -1, -2


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a table's schema."""

    id: int
    fields: tuple[Field, ...]
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: Mapping[str, str]
    made_ms: int

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([field.to_arrow() for field in self.fields])

    @property
    def buckets(self) -> int:
        """Into how many buckets a partition is hashed; -1: not at all."""
        return int(self.options.get("bucket", _APPEND_BUCKET))

    @property
    def key(self) -> tuple[str, ...]:
        """What rows of one partition are sorted by: the primary key without the partition's columns."""
        return tuple(name for name in self.primary_keys if name not in self.partition_keys)

    @property
    def bucket_key(self) -> tuple[str, ...]:
        told = self.options.get("bucket-key", "")
        return tuple(part.strip() for part in told.split(",") if part.strip()) or self.key

    @property
    def codec(self) -> str:
        return self.options.get("file.compression", "zstd").lower()

    def picked(self, names: Sequence[str]) -> tuple[Field, ...]:
        known = {field.name: field for field in self.fields}
        return tuple(known[name] for name in names)


def path_of(number: int) -> str:
    return f"{DIRECTORY}/schema-{number}"


def read_schema(files: Files, number: int) -> Schema | None:
    """One version; None: there is none. Raises `TargetError` for one that cannot be read."""
    data = files.read(path_of(number))
    if data is None:
        return None
    try:
        value = json.loads(data)
        if not 1 <= value.get("version", VERSION) <= VERSION:
            raise ValueError(f"version {value['version']} is not known, this release reads up to {VERSION}")
        return Schema(
            value["id"],
            read_fields(value["fields"]),
            tuple(value["partitionKeys"]),
            tuple(value["primaryKeys"]),
            value["options"],
            value.get("timeMillis", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError("TableDamaged", f"{path_of(number)}: {error!r}", path="options.table") from error


def latest_schema(files: Files) -> Schema | None:
    """The newest version; None: there is no table."""
    numbers = [int(name.removeprefix("schema-")) for name in files.names(DIRECTORY) if name[7:].isdigit()]
    return read_schema(files, max(numbers)) if numbers else None


def new_schema(rows: pa.Schema, options: Options, now_ms: int) -> bytes:
    """`schema-0` of a new table for these rows."""
    left_out = {options.condition.column} if options.condition else set()
    schema = pa.schema([field for field in rows if field.name not in left_out])
    for name in (*options.partition_by, *options.key):
        if name not in schema.names:
            option = "partitionBy" if name in options.partition_by else "key"
            message = f"there is no column `{name}`; the rows have {', '.join(schema.names)}"
            raise TargetError("SchemaMismatch", message, path=f"options.{option}")
    fields, highest = make_fields(schema, options.key)
    told = dict(options.table_properties)
    if options.key:
        told["bucket"] = str(options.bucket or 1)
    value = {
        "version": VERSION,
        "id": 0,
        "fields": fields,
        "highestFieldId": highest,
        "partitionKeys": list(options.partition_by),
        "primaryKeys": list(options.key),
        "options": told,
        "comment": "",
        "timeMillis": now_ms,
    }
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def check_supported(schema: Schema, options: Options) -> None:
    """Raises `TargetError` where the table is of a kind that we do not write, or not what the options say."""
    for name, values in _SUPPORTED.items():
        told = schema.options.get(name)
        if told is not None and str(told).lower() not in values:
            right = f"only {' or '.join(values)}" if values else "only tables without it"
            raise _refused(f"the table has `{name}` = `{told}`, and this sink writes {right}")
    for name in schema.options:
        if name.endswith((".sequence-group", ".aggregate-function")):
            raise _refused(f"the table has `{name}`, and this sink writes only tables without it")
    _check_buckets(schema)
    _check_keys(schema)
    _check_options(schema, options)


def _check_buckets(schema: Schema) -> None:
    if schema.buckets == _POSTPONE_BUCKET:
        raise _refused("the table has postponed buckets (`bucket` = -2); this sink writes a fixed number of them")
    if schema.primary_keys and schema.buckets < 1:
        raise _refused("the table has dynamic buckets (`bucket` = -1); this sink writes a fixed number of them")
    if not schema.primary_keys and schema.buckets != _APPEND_BUCKET:
        raise _refused(f"the append table has `bucket` = {schema.buckets}; this sink writes only those without buckets")


def _check_keys(schema: Schema) -> None:
    for field in schema.picked(schema.partition_keys):
        types = pa.types
        kind = field.arrow
        if not any((types.is_string(kind), types.is_integer(kind), types.is_date(kind), types.is_boolean(kind))):
            right = "strings, whole numbers, dates and booleans"
            raise _refused(f"partition column `{field.name}` is {kind}; this sink makes partitions of {right}")
    for field in schema.picked((*schema.key, *(schema.bucket_key if schema.primary_keys else ()))):
        if not buckets.can_hash(field.arrow):
            right = "strings, whole numbers, dates, booleans and decimals of up to 18 digits"
            raise _refused(f"key column `{field.name}` is {field.arrow}; this sink takes keys of {right}")
    if schema.primary_keys and not schema.key:
        raise _refused("the primary key has no column besides the partition's")


def _check_options(schema: Schema, options: Options) -> None:
    keyed = options.write is not Write.APPEND
    if keyed and sorted(options.key) != sorted(schema.primary_keys):
        has = ", ".join(schema.primary_keys) or "none"
        message = f"the table's primary key is {has}, `key` says {', '.join(options.key)}"
        raise TargetError("KeyMismatch", message, path="options.key")
    if not keyed and schema.primary_keys:
        message = f"the table has a primary key ({', '.join(schema.primary_keys)}); use `write: upsert` and `key`"
        raise TargetError("KeyMismatch", message, path="options.write")
    if options.partition_by and options.partition_by != schema.partition_keys:
        has = ", ".join(schema.partition_keys) or "nothing"
        message = f"the table is partitioned by {has}, `partitionBy` says {', '.join(options.partition_by)}"
        raise TargetError("PartitionMismatch", message, path="options.partitionBy")
    if options.bucket is not None and options.bucket != schema.buckets:
        message = f"the table has {schema.buckets} buckets, `bucket` says {options.bucket}"
        raise TargetError("BucketMismatch", message, path="options.bucket")


def _refused(message: str) -> TargetError:
    return TargetError("UnsupportedTable", message, path="options.table")
