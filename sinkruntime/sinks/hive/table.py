"""A Hive table as this sink needs it: where it is, which one it is, what it holds; tables and partitions to be made.

Used by the sink, its writers and committers. Talks to the metastore only by `metastore.Metastore`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hive.columns import PARTITION_TYPES, lowered, table_schema, to_hive
from sinkruntime.sinks.hive.metastore import Metastore
from sinkruntime.sinks.hive.options import COMPRESSIONS, Format, Options
from sinkruntime.storage.base import Storage
from sinkruntime.storage.local import LocalStorage
from sinkruntime.storage.settings import LOCAL_SCHEMES, S3_SCHEMES
from sinkruntime.tables import schemas

#: By format: the classes of Hive that read, write, and make rows.
CLASSES: dict[Format, tuple[str, str, str]] = {
    Format.PARQUET: (
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    ),
    Format.ORC: (
        "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcSerde",
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A table that is there. `identity` is another one after it was dropped and made anew; `thrift` is the
    metastore's own record."""

    location: str
    identity: str
    thrift: Any

    @property
    def stamp(self) -> str:
        """What a committable was made for: this very table, at this place."""
        return f"{self.identity}@{self.location}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(field.name for field in self.thrift.partitionKeys or ())

    @property
    def on_s3(self) -> bool:
        return urlsplit(self.location).scheme in S3_SCHEMES

    @contextmanager
    def storage(self, options: Options, identity: SinkIdentity) -> Iterator[Storage]:
        """The directory of the table, open for this block."""
        storage = self.unopened(options, identity)
        with of_table():
            storage.open()
            try:
                yield storage
            finally:
                storage.close()

    def unopened(self, options: Options, identity: SinkIdentity) -> Storage:
        """The directory of the table, not yet connected."""
        if not self.on_s3:
            return LocalStorage(local_path(self.location), identity)
        from sinkruntime.storage.s3 import S3Storage

        return S3Storage(self.location, options.storage, identity, options.target_file_size.bytes)


@dataclass(frozen=True, slots=True)
class HiveTable:
    """A table that this sink can write: `columns` are those of its files, `keys` those of its partitions."""

    place: Place
    format: Format
    columns: pa.Schema
    keys: pa.Schema

    @property
    def rows(self) -> pa.Schema:
        """All columns, as a reader sees them."""
        return pa.schema([*self.columns, *self.keys])


@contextmanager
def of_table() -> Iterator[None]:
    """A storage does not know that its path is a table's: its errors name our option."""
    try:
        yield
    except TargetError as error:
        if error.path == "options.path":
            error.path = "options.table"
        raise


def locate(metastore: Metastore, options: Options) -> Place | None:
    """Where the table is; None: there is none. Raises `TargetError` where it is out of reach of this sink."""
    found = metastore.table(options.database, options.table_name)
    return None if found is None else _place_of(found, options)


def _place_of(found: Any, options: Options) -> Place:
    location = (found.sd.location if found.sd else "") or ""
    scheme = urlsplit(location).scheme
    if not location or scheme not in LOCAL_SCHEMES + S3_SCHEMES:
        message = f"{options.full_name} is at {location or 'no place'}; expected file: or s3a://"
        raise TargetError("UnsupportedLocation", message, path="options.table")
    number = f"/{found.id}" if getattr(found, "id", None) else ""  # since Hive 4
    return Place(location.rstrip("/"), f"{found.createTime}{number}", found)


def located(metastore: Metastore, options: Options) -> Place:
    """As `locate`; raises `TargetError` (`TableMissing`) where there is none."""
    place = locate(metastore, options)
    if place is None:
        raise _missing(options)
    return place


def _missing(options: Options) -> TargetError:
    advice = "create it, or set `createTable: true`"
    return TargetError("TableMissing", f"there is no table {options.full_name}", path="options.table", advice=advice)


def read(metastore: Metastore, options: Options) -> HiveTable:
    """The table, if this sink can write it. Raises `TargetError` that names what is not supported or differs."""
    found = metastore.table(options.database, options.table_name)
    if found is None:
        raise _missing(options)
    kind = supported(found, options)
    place = _place_of(found, options)
    required = metastore.required_columns(options.database, options.table_name)
    columns = table_schema(place.thrift.sd.cols, required)
    keys = table_schema(place.thrift.partitionKeys or ())
    _check_keys(place.thrift.partitionKeys or ())
    wanted = tuple(name.lower() for name in options.partition_by)
    if wanted and wanted != place.keys:
        have = ", ".join(place.keys) or "none"
        message = f"the table is partitioned by {have}, not by {', '.join(wanted)}"
        raise TargetError("SchemaMismatch", message, path="options.partitionBy")
    if options.location is not None and local_or_uri(options.location) != local_or_uri(place.location):
        message = f"{options.full_name} is at {place.location}, not at {options.location}"
        raise TargetError("LocationMismatch", message, path="options.location")
    return HiveTable(place, kind, columns, keys)


def supported(table: Any, options: Options) -> Format:
    """The format of a table's files. Raises `TargetError` for every kind of table that is not plain files."""
    parameters = {name.lower(): value for name, value in (table.parameters or {}).items()}
    problems = {
        "AcidTable": parameters.get("transactional", "").lower() == "true",
        "NotATable": (table.tableType or "").endswith("_VIEW"),
        "StorageHandler": "storage_handler" in parameters or parameters.get("table_type", "").lower() == "iceberg",
        "BucketedTable": bool(table.sd.bucketCols),
        "SkewedTable": bool(table.sd.storedAsSubDirectories),
    }
    for reason, holds in problems.items():
        if holds:
            message = f"{options.full_name} is {_WORDS[reason]}, which this sink does not write"
            raise TargetError(reason, message, path="options.table")
    for kind, (reader, _, serde) in CLASSES.items():
        if table.sd.inputFormat == reader and table.sd.serdeInfo.serializationLib == serde:
            if options.format not in (None, kind):
                message = f"{options.full_name} holds {kind}, not {options.format}"
                raise TargetError("FormatMismatch", message, path="options.format")
            if options.codec(kind) not in COMPRESSIONS[kind]:
                message = f"{kind} cannot be compressed by {options.compression}"
                raise TargetError("FormatMismatch", message, path="options.compression")
            return kind
    message = f"{options.full_name} is read by {table.sd.inputFormat}; expected a table of Parquet or ORC files"
    raise TargetError("UnsupportedFormat", message, path="options.table")


_WORDS = {
    "AcidTable": "a transactional (ACID) table",
    "NotATable": "a view",
    "StorageHandler": "kept by a storage handler",
    "BucketedTable": "a bucketed table",
    "SkewedTable": "a skewed table stored as directories",
}


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        if key.type.lower() not in PARTITION_TYPES:
            message = f"partition column `{key.name}` is {key.type}; expected one of {', '.join(PARTITION_TYPES)}"
            raise TargetError("UnsupportedType", message, path="options.partitionBy")


def local_path(location: str) -> str:
    """`file:/a/b`, `file:///a/b` and `/a/b` are one."""
    path = location.removeprefix("file:")
    return path[2:] if path.startswith("//") else path


def local_or_uri(location: str) -> str:
    """A location in one spelling."""
    scheme, _, rest = location.rstrip("/").partition("://")
    if scheme in S3_SCHEMES:
        return f"s3://{rest}"
    return os.path.abspath(local_path(location))


def to_create(options: Options, rows: pa.Schema) -> Any:
    """The Thrift `Table` for rows of this schema. Raises `TargetError` where Hive has no such columns."""
    from hive_metastore import ttypes

    problem = next(schemas.problems(lowered(rows), lowered(rows)), None)
    if problem is not None:
        raise TargetError("SchemaMismatch", problem, path="options.table")
    wanted = tuple(name.lower() for name in options.partition_by)
    fields = {name: ttypes.FieldSchema(name, kind, None) for name, kind in _hive_columns(rows).items()}
    for name in wanted:
        if name not in fields:
            message = f"there is no column `{name}`; the rows have {', '.join(fields)}"
            raise TargetError("SchemaMismatch", message, path="options.partitionBy")
    keys = [fields.pop(name) for name in wanted]
    _check_keys(keys)
    if not fields:
        message = "every column is a partition column: nothing is left to write"
        raise TargetError("SchemaMismatch", message, path="options.partitionBy")
    reader, writer, serde = CLASSES[options.format or Format.PARQUET]
    location = None
    if options.location is not None:
        location = f"file://{local_path(options.location)}" if options.is_local else options.location
    descriptor = ttypes.StorageDescriptor(
        cols=list(fields.values()), location=location, inputFormat=reader, outputFormat=writer, compressed=False,
        numBuckets=-1, bucketCols=[], sortCols=[], parameters={},
        serdeInfo=ttypes.SerDeInfo(serializationLib=serde, parameters={"serialization.format": "1"}),
    )  # fmt: skip
    external = location is not None
    return ttypes.Table(
        tableName=options.table_name, dbName=options.database, owner="sinkjob", sd=descriptor, partitionKeys=keys,
        tableType="EXTERNAL_TABLE" if external else "MANAGED_TABLE",
        parameters={"EXTERNAL": "TRUE"} if external else {},
    )  # fmt: skip


def _hive_columns(rows: pa.Schema) -> dict[str, str]:
    found = {}
    for field in rows:
        try:
            found[field.name.lower()] = to_hive(field.type)
        except ValueError as error:
            raise TargetError("UnsupportedType", f"column `{field.name}`: {error}", path="options.table") from error
    return found


def to_partition(place: Place, directory: str) -> Any:
    """The Thrift `Partition` of a directory below the table (`month=1/carrier=AA`)."""
    from hive_metastore.ttypes import Partition

    descriptor = copy.copy(place.thrift.sd)
    descriptor.location = f"{place.location}/{directory}"
    table = place.thrift
    return Partition(
        values=values_of(directory), dbName=table.dbName, tableName=table.tableName, createTime=0, lastAccessTime=0,
        sd=descriptor, parameters={},
    )  # fmt: skip


def values_of(directory: str) -> list[str]:
    """The partition values that a directory's name says."""
    return [unquote(part.partition("=")[2]) for part in directory.split("/")]


def check_partitions(place: Place, directories: Sequence[str], found: Iterable[Any]) -> list[str]:
    """Which directories are no partitions yet. Raises `TargetError` for one whose partition is elsewhere, or whose
    files are read in another format: what is written to the directory would not be seen."""
    by_values = {tuple(partition.values): partition for partition in found}
    missing = []
    for directory in directories:
        partition = by_values.get(tuple(values_of(directory)))
        if partition is None:
            missing.append(directory)
        elif local_or_uri(partition.sd.location) != local_or_uri(f"{place.location}/{directory}"):
            message = f"the partition {directory} is at {partition.sd.location}, not below the table"
            raise TargetError("PartitionElsewhere", message, path="options.table")
        elif partition.sd.inputFormat != place.thrift.sd.inputFormat:
            message = f"the partition {directory} is read by {partition.sd.inputFormat}, other than its table"
            raise TargetError("PartitionFormat", message, path="options.table")
    return missing
