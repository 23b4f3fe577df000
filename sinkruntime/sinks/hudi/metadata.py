"""What a commit's files say: Hudi's metadata of a commit, of a partition and of a table. Pure.

Called by the committer and by `prepare_target`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sinkruntime.api import Lineage, SinkIdentity
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.timeline import CHECKPOINT, EPOCH, JOB, LEDGER, SINK

TABLE_VERSION = "6"


def evidence(identity: SinkIdentity, at: Lineage) -> dict[str, str]:
    """Our part of a commit's extra metadata."""
    return {
        LEDGER: identity.ledger_id,
        SINK: identity.sink,
        JOB: identity.job,
        CHECKPOINT: str(at.checkpoint),
        EPOCH: str(at.epoch),
    }


def commit(files: Sequence[Mapping[str, Any]], operation: str, extra: Mapping[str, str]) -> bytes:
    """The metadata of a commit. Deterministic."""
    partitions: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        partitions.setdefault(file["partition"], []).append(_write_stat(file))
    value = {
        "partitionToWriteStats": partitions,
        "compacted": False,
        "extraMetadata": dict(extra),
        "operationType": operation,
    }
    return json.dumps(value, indent=1).encode()


def same_commit(found: bytes, mine: bytes) -> bool:
    """Whether two commits' metadata are of the same attempt at one checkpoint: evidence and files are equal, though
    another release, or a job of another name, may have written them."""
    try:
        return _essence(found) == _essence(mine)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _essence(data: bytes) -> tuple[object, ...]:
    value = json.loads(data)
    extra = value["extraMetadata"]
    paths = sorted(stat["path"] for some in value["partitionToWriteStats"].values() for stat in some)
    return tuple(extra[key] for key in (LEDGER, SINK, CHECKPOINT, EPOCH)), paths


def _write_stat(file: Mapping[str, Any]) -> dict[str, Any]:
    """What Hudi keeps of each file that a commit has written."""
    name = file["path"].rpartition("/")[2]
    updates, deletes = file.get("updates", 0), file.get("deletes", 0)
    return {
        "fileId": name.partition("_")[0],
        "path": file["path"],
        "partitionPath": file["partition"],
        "prevCommit": file.get("previous", "null"),
        "prevBaseFile": file.get("base"),
        "cdcStats": None,
        "numWrites": file["rows"],
        "numInserts": file.get("inserts", file["rows"]),
        "numUpdateWrites": updates,
        "numUpdates": updates,
        "numDeletes": deletes,
        "totalWriteBytes": file["size"],
        "fileSizeInBytes": file["size"],
        "totalWriteErrors": 0,
        "tempPath": None,
        "minEventTime": None,
        "maxEventTime": None,
    }


def partition(instant: str, path: str) -> bytes:
    """The file that tells Hudi that a directory is a partition."""
    depth = path.count("/") + 1 if path else 0
    return f"#partition metadata\ncommitTime={instant}\npartitionDepth={depth}\n".encode()


def properties(options: Options) -> bytes:
    """`hoodie.properties` of a new table."""
    values = {
        "hoodie.table.name": options.table,
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": TABLE_VERSION,
        "hoodie.timeline.layout.version": "1",
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.archivelog.folder": "archived",
        "hoodie.populate.meta.fields": "true",
        "hoodie.table.cdc.enabled": "false",
        "hoodie.partition.metafile.use.base.format": "false",
        "hoodie.table.metadata.partitions": "",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.table.keygenerator.type": key_generator(options),
        **layout(options),
        "hoodie.table.checksum": str(zlib.crc32(f".{options.table}".encode())),
    }
    if options.ordering_field is not None:
        values["hoodie.table.precombine.field"] = options.ordering_field
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def layout(options: Options) -> dict[str, str]:
    """The properties that a table must share with the options; an empty one may be absent."""
    return {
        "hoodie.table.recordkey.fields": ",".join(options.record_key),
        "hoodie.table.partition.fields": ",".join(options.partition_by),
        "hoodie.datasource.write.hive_style_partitioning": str(options.hive_style).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": str(options.url_encode).lower(),
    }


def key_generator(options: Options) -> str:
    """Hudi's name for how keys and paths are made of columns."""
    if not options.partition_by:
        return "NON_PARTITION"
    return "SIMPLE" if len(options.record_key) <= 1 and len(options.partition_by) == 1 else "COMPLEX"


def parse_properties(data: bytes) -> dict[str, str]:
    """A Java properties file, as far as Hudi writes them."""
    found = {}
    for line in data.decode().splitlines():
        key, mark, value = line.partition("=")
        if mark and not line.startswith(("#", "!")):
            found[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return found
