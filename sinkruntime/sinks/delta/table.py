"""A Delta table as the sink sees it: opened afresh, created, compared with the rows, asked for evidence.

Used by the sink, its writers and its committer. Foreign errors of `deltalake` end here. Opening reads the log alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.delta.features import refusals
from sinkruntime.sinks.delta.log import restored_to
from sinkruntime.sinks.delta.options import Options
from sinkruntime.sinks.delta.place import Place
from sinkruntime.tables import schemas

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: A change of the schema that loses against another commit is made again so often.
ATTEMPTS_MAX = 10
#: What the store says when it turns us away for good.
_FINAL = {
    "PermissionDenied": ("AccessDenied", "403 Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    "BucketMissing": ("NoSuchBucket",),
}
MESSAGE_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class Shape:
    """What writers must know of a table: read once per driver start, and sent to them with the sink."""

    table_id: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    types: dict[str, Any]  # by column, as the log has them

    @property
    def file_schema(self) -> pa.Schema:
        """The columns that stand in the data files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])


def app_id(identity: SinkIdentity) -> str:
    """The `appId` of the evidence; `fence_id` that of fences."""
    return f"sinkjob/{identity.ledger_id}/{identity.sink}"


def fence_id(identity: SinkIdentity) -> str:
    return f"{app_id(identity)}/fence"


def load_deltalake() -> Any:
    try:
        import deltalake
    except ModuleNotFoundError as error:
        message = "this sink needs the package deltalake"
        raise ConfigurationError("MissingModule", message, advice="pip install 'sinkjob[delta]'") from error
    return deltalake


@contextmanager
def talking(what: str) -> Iterator[None]:
    """Turns what `deltalake` and the store raise into `TargetError` (for good) or `ConnectionError` (may pass)."""
    deltalake = load_deltalake()
    try:
        yield
    except (deltalake.exceptions.DeltaError, OSError, ValueError, pa.ArrowException) as error:
        text = f"{what}: {sentence(error)}"
        for reason, marks in _FINAL.items():
            if any(mark in text for mark in marks):
                raise TargetError(reason, text, path="options.path") from error
        if isinstance(error, deltalake.exceptions.DeltaProtocolError | deltalake.exceptions.SchemaMismatchError):
            raise TargetError("TableRefused", text, path="options.path") from error
        raise ConnectionError(text) from error


def sentence(error: Exception) -> str:
    """A foreign error on one line."""
    text = re.sub(r"\x1b\[\d+m", "", str(error)).partition("\n   0: ")[0]
    return " ".join(text.split())[:MESSAGE_LENGTH_MAX]


def find(place: Place, version: int | None = None) -> DeltaTable | None:
    """The table as it is now, or was; None: there is none. A handle is for one commit: it does not see a table made
    anew."""
    deltalake = load_deltalake()
    with talking(f"opening the table {place.uri}"):
        try:
            table: DeltaTable = deltalake.DeltaTable(place.uri, version, storage_options=place.storage_options())
        except deltalake.exceptions.TableNotFoundError:
            return None
    return table


def load(place: Place) -> DeltaTable:
    """As `find`; raises `TargetError` (`TableMissing`) where there is none."""
    table = find(place)
    if table is None:
        advice = "the next start of the job creates it anew"
        raise TargetError("TableMissing", f"there is no Delta table at {place.uri}", path="options.path", advice=advice)
    return table


def committed_until(table: DeltaTable, identity: SinkIdentity) -> int:
    """The last checkpoint of (ledger id, sink) that was ever committed to this table, or 0."""
    return table.transaction_version(app_id(identity)) or 0


def evidence_of(place: Place, table: DeltaTable, identity: SinkIdentity) -> int:
    """The last checkpoint of (ledger id, sink) that this version of the table proves, or 0. A RESTORE takes rows away
    and leaves transactions: after one those count that the version has to which the table went back."""
    ever = committed_until(table, identity)
    if ever == 0:
        return 0
    with talking(f"reading the log of {place.uri}"):
        restored = restored_to(place, table.version(), app_id(identity))
    if restored is None:
        return ever
    older = find(place, restored)
    return 0 if older is None else committed_until(older, identity)


def shape_of(table: DeltaTable) -> Shape:
    """What the table's current version looks like."""
    schema: Any = table.schema()
    types = {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}
    metadata = table.metadata()
    return Shape(str(metadata.id), pa.schema(schema), tuple(metadata.partition_columns), types)


def delta_fields(rows: pa.Schema) -> list[pa.Field[Any]]:
    """The rows' columns as a table gets them: nullable, as Spark's streams make them, with instants in UTC."""
    return [pa.field(field.name, _delta_type(field.type)) for field in rows]


def _delta_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _delta_type(field.type)) for field in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(_delta_type(kind.value_type))
    if isinstance(kind, pa.MapType):
        return pa.map_(_delta_type(kind.key_type), _delta_type(kind.item_type))
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    return kind


def check_features(table: DeltaTable, options: Options) -> None:
    """Raises `TargetError` (`TableFeature`) for what the table demands and we cannot do."""
    found = table.protocol()
    protocol = (found.min_reader_version, found.min_writer_version, found.writer_features, found.reader_features)
    properties = table.metadata().configuration
    problem = next(refusals(protocol, properties, table.schema().to_json(), options.write), None)
    if problem is not None:
        raise TargetError("TableFeature", problem, path="options.path", advice="use a table without it")


def check_partitions(shape: Shape, options: Options) -> None:
    """Raises `TargetError` unless `partitionBy` is left out or is the table's, and its types will do."""
    wanted = options.partition_by
    if wanted and wanted != shape.partition_by:
        has = ", ".join(shape.partition_by) or "no columns"
        message = f"the table is partitioned by {has}, it would get {', '.join(wanted)}"
        raise TargetError("PartitionMismatch", message, path="options.partitionBy")
    _check_partition_types(shape.schema, shape.partition_by)


def _check_partition_types(schema: pa.Schema, names: tuple[str, ...]) -> None:
    """Every reader takes such values from the log as they were: not so decimals below zero (`deltalake`), and instants
    (Spark reads them in the session's time zone)."""
    for name in names:
        kind = schema.field(name).type
        types = pa.types
        good = (types.is_string, types.is_integer, types.is_date, types.is_boolean)
        if not any(check(kind) for check in good):
            right = "strings, whole numbers, dates and booleans"
            message = f"partition column `{name}` is {schemas.kind(kind)}; expected {right}"
            raise TargetError("UnsupportedType", message, path="options.partitionBy")


def without(rows: pa.Schema, omit: tuple[str, ...]) -> pa.Schema:
    """The columns that are written. Raises `TargetError` where there is no such column to leave out."""
    for name in omit:
        if name not in rows.names:
            message = f"there is no column `{name}`; the rows have {', '.join(rows.names)}"
            raise TargetError("SchemaMismatch", message, path="options.omit")
    return pa.schema([field for field in rows if field.name not in omit])


def check_types(rows: pa.Schema) -> None:
    """Raises `TargetError` (`UnsupportedType`) for a column that no Delta table can hold."""
    for field in rows:
        wrong = _unsupported(field.type)
        if wrong is not None:
            message = f"column `{field.name}`: Delta has no type for {schemas.kind(wrong)}"
            raise TargetError("UnsupportedType", message, path="options.path")


def _unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The type, or the one inside it, that Delta does not have."""
    types = pa.types
    if isinstance(kind, pa.StructType):
        return next(filter(None, (_unsupported(field.type) for field in kind)), None)
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return _unsupported(kind.value_type)
    if isinstance(kind, pa.MapType):
        return _unsupported(kind.key_type) or _unsupported(kind.item_type)
    good = (
        types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_string,
        types.is_large_string, types.is_binary, types.is_large_binary, types.is_date32, types.is_timestamp,
    )  # fmt: skip
    if types.is_decimal(kind):
        return None if kind.precision <= 38 and kind.scale >= 0 else kind
    return None if any(check(kind) for check in good) else kind


def check_creation(options: Options, rows: pa.Schema) -> None:
    """Raises `TargetError` unless a table for these rows can be partitioned as the options say."""
    for name in options.partition_by:
        if name not in rows.names:
            message = f"there is no column `{name}`; the rows have {', '.join(rows.names)}"
            raise TargetError("SchemaMismatch", message, path="options.partitionBy")
    if options.partition_by and set(options.partition_by) >= set(rows.names):
        message = "every column is a partition column: nothing is left to write"
        raise TargetError("SchemaMismatch", message, path="options.partitionBy")
    _check_partition_types(rows, options.partition_by)


def create(place: Place, options: Options, rows: pa.Schema) -> None:
    """Create the table for these rows. Another may be first."""
    deltalake = load_deltalake()
    check_creation(options, rows)
    try:
        with talking(f"creating the table {place.uri}"):
            deltalake.DeltaTable.create(
                place.uri,
                pa.schema(delta_fields(rows)),
                mode="error",
                partition_by=list(options.partition_by),
                configuration=dict(options.table_properties),
                storage_options=place.storage_options(),
            )
    except ConnectionError:
        if find(place) is None:
            raise


def add_columns(place: Place, rows: pa.Schema) -> None:
    """`mergeSchema`: add the columns of the rows that the table lacks, nullable. Made again after a conflict."""
    deltalake = load_deltalake()
    for attempt in range(ATTEMPTS_MAX):
        table = load(place)
        known = set(shape_of(table).schema.names)
        missing = [field for field in delta_fields(rows) if field.name not in known]
        if not missing:
            return
        fields = deltalake.Schema.from_arrow(pa.schema(missing)).fields
        try:
            with talking("adding columns"):
                table.alter.add_columns(fields, commit_properties=deltalake.CommitProperties(max_commit_retries=0))
        except ConnectionError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
