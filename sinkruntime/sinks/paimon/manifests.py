"""Manifests: which data files a snapshot adds, and the lists of manifests that a snapshot consists of.

Made and read by the committers. Entries come from committables alone: no data file is opened here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon import avro
from sinkruntime.sinks.paimon.binary_row import EMPTY, decode, encode
from sinkruntime.sinks.paimon.files import Files
from sinkruntime.sinks.paimon.types import Field

DIRECTORY = "manifest"
#: Version of the records, as Paimon has them since 0.4.
VERSION = 2
ADD, DELETE = 0, 1
#: As Paimon's own committers: so many small manifests are made one (`manifest.merge-min-count`), of this size at most.
MERGE_MIN_COUNT = 30
TARGET_BYTES = 8 * 1024**2

Record = dict[str, Any]


def _optional(name: str, kind: Any) -> Record:
    return {"name": name, "type": ["null", kind], "default": None}


def _plain(**fields: str) -> list[Record]:
    return [{"name": f"_{name.upper()}", "type": kind} for name, kind in fields.items()]


def _stats(name: str) -> Record:
    counts = _optional("_NULL_COUNTS", {"type": "array", "items": ["null", "long"]})
    return {"type": "record", "name": name, "fields": [*_plain(min_values="bytes", max_values="bytes"), counts]}


_FILE: Record = {
    "type": "record",
    "name": "record__FILE",
    "fields": [
        *_plain(file_name="string", file_size="long", row_count="long", min_key="bytes", max_key="bytes"),
        {"name": "_KEY_STATS", "type": _stats("record__FILE_KEY_STATS")},
        {"name": "_VALUE_STATS", "type": _stats("record__FILE_VALUE_STATS")},
        *_plain(min_sequence_number="long", max_sequence_number="long", schema_id="long", level="int"),
        {"name": "_EXTRA_FILES", "type": {"type": "array", "items": "string"}},
        _optional("_CREATION_TIME", {"type": "long", "logicalType": "timestamp-millis"}),
        _optional("_DELETE_ROW_COUNT", "long"),
        _optional("_EMBEDDED_FILE_INDEX", "bytes"),
        _optional("_FILE_SOURCE", "int"),
        _optional("_VALUE_STATS_COLS", {"type": "array", "items": "string"}),
        _optional("_EXTERNAL_PATH", "string"),
        _optional("_FIRST_ROW_ID", "long"),
        _optional("_WRITE_COLS", {"type": "array", "items": "string"}),
    ],
}
_ENTRY: Record = {
    "type": "record",
    "name": "record",
    "namespace": "org.apache.paimon.avro.generated",
    "fields": [
        *_plain(version="int", kind="int", partition="bytes", bucket="int", total_buckets="int"),
        {"name": "_FILE", "type": _FILE},
    ],
}
_META: Record = {
    "type": "record",
    "name": "record",
    "namespace": "org.apache.paimon.avro.generated",
    "fields": [
        *_plain(version="int", file_name="string", file_size="long", num_added_files="long", num_deleted_files="long"),
        {"name": "_PARTITION_STATS", "type": _stats("record__PARTITION_STATS")},
        *_plain(schema_id="long"),
        *[_optional(f"_{name}", "int") for name in ("MIN_BUCKET", "MAX_BUCKET", "MIN_LEVEL", "MAX_LEVEL")],
        *[_optional(f"_{name}", "long") for name in ("MIN_ROW_ID", "MAX_ROW_ID")],
        _optional("_TOTAL_BUCKETS", "int"),
    ],
}


def entry(file: Mapping[str, Any], schema_id: int, buckets: int) -> Record:
    """The record that adds a file of a committable."""
    low, high, nulls = file["stats"]
    key = file.get("key")
    least, most = (unpacked(key[0]), unpacked(key[1])) if key else (EMPTY, EMPTY)
    arity = int.from_bytes(least[:4], "big")
    return {
        "_VERSION": VERSION,
        "_KIND": ADD,
        "_PARTITION": unpacked(file["partition"]),
        "_BUCKET": file["bucket"],
        "_TOTAL_BUCKETS": buckets,
        "_FILE": {
            "_FILE_NAME": file["path"].rpartition("/")[2],
            "_FILE_SIZE": file["size"],
            "_ROW_COUNT": file["rows"],
            "_MIN_KEY": least,
            "_MAX_KEY": most,
            "_KEY_STATS": {"_MIN_VALUES": least, "_MAX_VALUES": most, "_NULL_COUNTS": [0] * arity},
            "_VALUE_STATS": {"_MIN_VALUES": unpacked(low), "_MAX_VALUES": unpacked(high), "_NULL_COUNTS": nulls},
            "_MIN_SEQUENCE_NUMBER": file["sequence"][0],
            "_MAX_SEQUENCE_NUMBER": file["sequence"][1],
            "_SCHEMA_ID": schema_id,
            "_LEVEL": 0,
            "_EXTRA_FILES": [],
            "_CREATION_TIME": file["made"],
            "_DELETE_ROW_COUNT": file["deletes"],
            "_EMBEDDED_FILE_INDEX": None,
            "_FILE_SOURCE": 0,
            "_VALUE_STATS_COLS": file["columns"],
            "_EXTERNAL_PATH": None,
            "_FIRST_ROW_ID": None,
            "_WRITE_COLS": None,
        },
    }


def write_manifest(
    entries: Sequence[Record], partition: Sequence[Field], schema_id: int, name: str
) -> tuple[bytes, Record]:
    """A manifest file, and the record of it for a list."""
    data = avro.write(_ENTRY, entries)
    buckets = [item["_BUCKET"] for item in entries]
    levels = [item["_FILE"]["_LEVEL"] for item in entries]
    totals = {item["_TOTAL_BUCKETS"] for item in entries}
    added = sum(item["_KIND"] == ADD for item in entries)
    return data, {
        "_VERSION": VERSION,
        "_FILE_NAME": name,
        "_FILE_SIZE": len(data),
        "_NUM_ADDED_FILES": added,
        "_NUM_DELETED_FILES": len(entries) - added,
        "_PARTITION_STATS": _partition_stats({item["_PARTITION"] for item in entries}, entries, partition),
        "_SCHEMA_ID": schema_id,
        "_MIN_BUCKET": min(buckets),
        "_MAX_BUCKET": max(buckets),
        "_MIN_LEVEL": min(levels),
        "_MAX_LEVEL": max(levels),
        "_MIN_ROW_ID": None,
        "_MAX_ROW_ID": None,
        "_TOTAL_BUCKETS": totals.pop() if len(totals) == 1 else None,
    }


def write_list(metas: Iterable[Record]) -> bytes:
    """A list of manifests."""
    return avro.write(_META, metas)


def read_list(files: Files, name: str) -> list[Record]:
    """The records of a list of manifests. Raises `TargetError`."""
    known = {field["name"] for field in _META["fields"]}
    return [{key: value for key, value in record.items() if key in known} for record in _read(files, name)[1]]


def read_manifest(files: Files, name: str) -> list[Record]:
    """The entries of a manifest. Raises `TargetError`."""
    return _read(files, name)[1]


def groups(metas: Sequence[Record]) -> list[list[Record]]:
    """Neighbours that are to be one manifest, in order; a group of one stays as it is. Additions come before the
    deletions of the same files, so manifests never change places."""
    found: list[list[Record]] = []
    group: list[Record] = []
    for meta in metas:
        group.append(meta)
        if sum(item["_FILE_SIZE"] for item in group) >= TARGET_BYTES:
            found.append(group)
            group = []
    if len(group) >= MERGE_MIN_COUNT:
        found.append(group)
    else:
        found.extend([meta] for meta in group)
    return found


def merged(files: Files, group: Sequence[Record]) -> list[Record] | None:
    """The entries of these manifests together, without what is added and deleted among them. None: a newer Paimon made
    one of them, of which something would get lost."""
    entries: dict[Any, Record] = {}
    known = {field["name"] for field in _FILE["fields"]}
    for meta in group:
        schema, records = _read(files, meta["_FILE_NAME"])
        if not _file_fields(schema) <= known:
            return None
        for record in records:
            _apply(entries, record)
    return list(entries.values())


def packed(data: bytes) -> str:
    """A binary row as a committable holds it."""
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    return base64.b64decode(text)


def _read(files: Files, name: str) -> tuple[Record, list[Record]]:
    data = files.read(f"{DIRECTORY}/{name}")
    if data is None:
        raise TargetError("TableDamaged", f"{DIRECTORY}/{name} is missing", path="options.table")
    schema, records = avro.read(data, name)
    return schema, list(records)


def _file_fields(schema: Record) -> set[str]:
    kinds = [field["type"] for field in schema["fields"] if field["name"] == "_FILE"]
    return {field["name"] for field in kinds[0]["fields"]} if kinds and isinstance(kinds[0], dict) else {"?"}


def _apply(entries: dict[Any, Record], record: Record) -> None:
    file = record["_FILE"]
    extra, embedded = tuple(file["_EXTRA_FILES"]), file.get("_EMBEDDED_FILE_INDEX")
    which = (record["_PARTITION"], record["_BUCKET"], file["_LEVEL"], file["_FILE_NAME"], extra, embedded)
    if record["_KIND"] == DELETE and which in entries:
        del entries[which]
    else:
        entries[which] = record


def _partition_stats(rows: set[bytes], entries: Sequence[Record], partition: Sequence[Field]) -> Record:
    if not partition:
        return {"_MIN_VALUES": EMPTY, "_MAX_VALUES": EMPTY, "_NULL_COUNTS": []}
    values = {row: decode(row, partition) for row in rows}
    columns = list(zip(*values.values(), strict=True))
    order = [sorted((value for value in column if value is not None), key=_order) for column in columns]
    nulls = [sum(values[item["_PARTITION"]][index] is None for item in entries) for index in range(len(partition))]
    return {
        "_MIN_VALUES": encode([column[0] if column else None for column in order], partition),
        "_MAX_VALUES": encode([column[-1] if column else None for column in order], partition),
        "_NULL_COUNTS": nulls,
    }


def _order(value: Any) -> Any:
    """Paimon compares texts by their bytes."""
    return value.encode() if isinstance(value, str) else value
