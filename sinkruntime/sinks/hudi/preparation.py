"""Makes a Hudi table where there is none, and refuses one that this sink cannot write, by name.

Called by the sink once per driver start. Never changes a table that is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi import metadata
from sinkruntime.sinks.hudi.instants import Instants
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.place import Table
from sinkruntime.sinks.hudi.schemas import avro, check_rows, check_table
from sinkruntime.sinks.hudi.timeline import (
    FIRST_INSTANT,
    HOODIE,
    PRIVATE,
    Timeline,
    commit_path,
    pending_paths,
    read_extra,
)

PROPERTIES = f"{HOODIE}/hoodie.properties"
TARGET = f"{PRIVATE}/target.json"
FORMAT = 1

_NOBODY = SinkIdentity("", "", "")
#: What other values of these properties would need; an absent one has the first value.
_NEEDED = {
    "hoodie.table.type": ("COPY_ON_WRITE", "only copy-on-write tables are supported"),
    "hoodie.table.version": ("6", "only table version 6 is supported"),
    "hoodie.timeline.layout.version": ("1", "only timeline layout 1 is supported"),
    "hoodie.table.base.file.format": ("PARQUET", "only Parquet is supported"),
    "hoodie.populate.meta.fields": ("true", "only tables with Hudi's own columns are supported"),
    "hoodie.table.metadata.partitions": ("", "tables with a metadata table are not supported"),
    "hoodie.table.metadata.partitions.inflight": ("", "tables with a metadata table are not supported"),
    "hoodie.bootstrap.base.path": ("", "bootstrapped tables are not supported"),
    "hoodie.table.cdc.enabled": ("false", "tables with change logs are not supported"),
    "hoodie.datasource.write.drop.partition.columns": ("false", "partition columns must stand in the files"),
    "hoodie.partition.metafile.use.base.format": ("false", "partition metadata in Parquet is not supported"),
    "hoodie.table.multiple.base.file.formats.enable": ("false", "only Parquet is supported"),
}
_GENERATORS = {
    "org.apache.hudi.keygen.SimpleKeyGenerator": "SIMPLE",
    "org.apache.hudi.keygen.ComplexKeyGenerator": "COMPLEX",
    "org.apache.hudi.keygen.NonpartitionedKeyGenerator": "NON_PARTITION",
}


def prepare(table: Table, options: Options, rows: pa.Schema) -> None:
    """Check the rows, make or check the table. Raises `TargetError`, `SchemaMismatch` among them."""
    keys = {"recordKey": options.record_key, "partitionBy": options.partition_by}
    check_rows(rows, keys, options.ordering_field)
    if (condition := options.condition) is not None:
        if condition.column not in rows.names:
            message = f"there is no column `{condition.column}`"
            raise TargetError("SchemaMismatch", message, path="options.deleteWhen")
        condition.check(rows.field(condition.column).type)
    document = table.read(PROPERTIES)
    if document is None and not table.add(PROPERTIES, metadata.properties(options)):
        document = table.read(PROPERTIES)
    if document is not None:
        check_properties(metadata.parse_properties(document.data), options)
    timeline = Timeline.read(table)
    buckets = options.buckets if options.is_upsert else 0
    target = create_target(table, str(uuid.uuid4()), 0 if timeline.has_records else buckets)
    _check_buckets(target["buckets"], buckets)
    instants = Instants(table, _NOBODY)
    instants.refuse_others(timeline)
    if options.is_upsert:
        instants.refuse_foreign_writes(timeline)
    _schema(table, options, rows, timeline)


def check_properties(found: Mapping[str, str], options: Options) -> None:
    """Raises `TargetError` for a table of another kind, or of another name or layout than the options say."""
    for key, (value, why) in _NEEDED.items():
        if found.get(key, value).strip().lower() != value.lower():
            raise TargetError("UnsupportedTable", f"{key} is {found[key]}: {why}", path="options.path")
    for option, key, has, wanted in _differences(found, options):
        message = f"the table has {key}={has}, the options would make it {wanted or 'empty'}"
        raise TargetError("TableDiffers", message, path=f"options.{option}")


def _differences(found: Mapping[str, str], options: Options) -> Iterator[tuple[str, str, str, str]]:
    name = found.get("hoodie.table.name", "")
    if name != options.table:
        yield "table", "hoodie.table.name", name, options.table
    names = ("recordKey", "partitionBy", "hiveStyle", "urlEncode")
    for option, (key, wanted) in zip(names, metadata.layout(options).items(), strict=True):
        has = found.get(key, "false" if wanted in ("true", "false") else "")
        if has.replace(" ", "") != wanted:
            yield option, key, has, wanted
    made = found.get("hoodie.table.keygenerator.type") or found.get("hoodie.table.keygenerator.class", "")
    generator = _GENERATORS.get(made, made).removesuffix("_AVRO")
    if generator and generator != metadata.key_generator(options):
        yield "recordKey", "hoodie.table.keygenerator", made, metadata.key_generator(options)


def _schema(table: Table, options: Options, rows: pa.Schema, timeline: Timeline) -> None:
    """The columns: those of the last write, or, where there is none yet, of a first one that is made here."""
    if not timeline.writes:
        content = metadata.commit([], options.write.value.upper(), {"schema": avro(rows, options.table)})
        for path in (*pending_paths(FIRST_INSTANT), commit_path(FIRST_INSTANT)):
            table.add(path, content)
    last = timeline.path_of(timeline.writes[0]) if timeline.writes else commit_path(FIRST_INSTANT)
    known = read_extra(table, last).get("schema")
    if not known:
        raise TargetError("UnsupportedTable", f"{last} does not tell the table's columns", path="options.path")
    check_table(rows, str(known), options.table, options.record_key)


def _check_buckets(found: int, wanted: int) -> None:
    if found == wanted:
        return
    if not found:
        message = "the table was not made by `write: upsert`: its records have no places by their keys"
    elif not wanted:
        message = f"the table was made by `write: upsert` with {found} buckets, and takes no inserts"
    else:
        message = f"the table was made with {found} buckets, the options say {wanted}"
    raise TargetError("TableDiffers", message, path="options.buckets" if found and wanted else "options.write")


def read_target(table: Table) -> dict[str, Any] | None:
    """Who the table is, and how many buckets it has; None: no sink has seen it yet."""
    document = table.read(TARGET)
    if document is None:
        return None
    try:
        value = dict(json.loads(document.data))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']} is not known, this release reads {FORMAT}")
        return {"target": str(value["target"]), "buckets": int(value["buckets"])}
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("EvidenceDamaged", f"{TARGET}: {error}", path="options.path") from error


def create_target(table: Table, unique: str, buckets: int) -> dict[str, Any]:
    """`target.json`, made where it is missing; it is never changed."""
    value = {"format": FORMAT, "target": unique, "buckets": buckets}
    if table.add(TARGET, json.dumps(value, sort_keys=True).encode()):
        return value
    found = read_target(table)
    if found is None:
        raise TargetError("TargetReplaced", f"{TARGET} was removed while the job started", path="options.path")
    return found
