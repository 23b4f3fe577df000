"""The log of committed files that Spark's file sink keeps in `_spark_metadata`, readable by Spark.

Called by the aggregated committer, under the target's lock where it has one. A batch of the log is one small file,
created if absent: so a checkpoint appears to Spark whole. Batches are numbered by the log itself, not by checkpoints:
several jobs may share a log, and a checkpoint without files leaves no batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sinkruntime.errors import TargetError
from sinkruntime.storage.base import Storage

DIRECTORY = "_spark_metadata"
#: Constants of Spark (`SinkMetadataLog`): version, batches between two compactions, batches kept, delay of removal.
VERSION = "v1"
COMPACT_INTERVAL = 10
BATCHES_RETAINED = 100
REMOVAL_DELAY_MS = 600_000
#: A committer that died before it moved the evidence, or another job, may have added batches since.
LOOK_BACK_BATCHES = 1_000
TRIES_MAX = 100
BLOCK_BYTES = 128 * 1024**2


def add(storage: Storage, files: Sequence[Sequence[Any]], known_batch: int) -> int:
    """Add `files` ([path, size]) as one batch, unless one after `known_batch` has them; the number of that batch."""
    lines = [_line(storage, path, size) for path, size in files]
    for _ in range(TRIES_MAX):
        names = _names(storage)
        latest = max(names, default=-1)
        found = _find(storage, names, storage.uri(files[0][0]), max(known_batch + 1, latest - LOOK_BACK_BATCHES))
        if found is not None:
            return found
        if _write(storage, names, latest + 1, lines):
            _remove_expired(storage, latest + 1)
            return latest + 1
    raise TargetError("LogContended", f"{DIRECTORY}: {TRIES_MAX} times another writer was first", path="options.path")


def is_compaction_batch(batch: int, interval: int) -> bool:
    """Whether this batch holds all batches before it, too."""
    return (batch + 1) % interval == 0


def batches_before_compaction(compaction: int, interval: int) -> range:
    """What a compaction batch is made of: the compaction batch before it, and all since."""
    return range(max(0, compaction - interval), compaction)


def derive_interval(default: int, latest_compaction: int) -> int:
    """The interval of a log that was begun with another one: a divisor, as Spark derives it."""
    number = latest_compaction + 1
    if number <= default or default >= number / 2:
        return number
    return next((divisor for divisor in range(default, number // 2 + 1) if number % divisor == 0), number)


def _names(storage: Storage) -> dict[int, str]:
    """File names by batch. Others (temporary files, checksums) are not the log's."""
    found = {}
    for name in storage.names(DIRECTORY):
        number = name.removesuffix(".compact")
        if number.isdecimal():
            found[int(number)] = name
    return found


def _interval(names: dict[int, str]) -> int:
    compactions = [batch for batch, name in names.items() if name.endswith(".compact")]
    return derive_interval(COMPACT_INTERVAL, max(compactions)) if compactions else COMPACT_INTERVAL


def _find(storage: Storage, names: dict[int, str], uri: str, first: int) -> int | None:
    """The batch from `first` on that holds a file."""
    for batch in sorted((batch for batch in names if batch >= first), reverse=True):
        if any(entry["path"] == uri for entry in read_batch(storage, batch, names)):
            return batch
    return None


def _write(storage: Storage, names: dict[int, str], batch: int, lines: list[str]) -> bool:
    interval = _interval(names)
    suffix = ""
    if is_compaction_batch(batch, interval):
        suffix = ".compact"
        before = batches_before_compaction(batch, interval)
        lines = [line for former in before for line in _lines(storage, former, names)] + lines
    text = "\n".join([VERSION, *lines])
    return storage.replace(f"{DIRECTORY}/{batch}{suffix}", text.encode(), None)


def read_batch(storage: Storage, batch: int, names: dict[int, str] | None = None) -> Iterator[dict[str, Any]]:
    """The entries of one batch. Raises `TargetError` where it is missing or cut short."""
    for line in _lines(storage, batch, _names(storage) if names is None else names):
        yield json.loads(line)


def _lines(storage: Storage, batch: int, names: dict[int, str]) -> list[str]:
    path = f"{DIRECTORY}/{names.get(batch, batch)}"
    document = storage.read(path)
    if document is None:
        raise TargetError("LogDamaged", f"{path} is missing", path="options.path")
    version, *lines = document.data.decode().split("\n")
    if version != VERSION:
        raise TargetError("LogDamaged", f"{path} begins with {version[:20]!r}, not {VERSION!r}", path="options.path")
    try:
        for line in lines:
            json.loads(line)["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("LogDamaged", f"{path}: a line is incomplete", path="options.path") from error
    return lines


def _line(storage: Storage, path: str, size: int) -> str:
    entry = {
        "path": storage.uri(path),
        "size": size,
        "isDir": False,
        "modificationTime": storage.modified_ms(path),
        "blockReplication": 1,
        "blockSize": BLOCK_BYTES,
        "action": "add",
    }
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)


def _remove_expired(storage: Storage, batch: int) -> None:
    """After a compaction: remove batches that no reader needs, once readers had time to go on."""
    names = _names(storage)
    interval = _interval(names)
    if not is_compaction_batch(batch, interval):
        return
    keep_from = max(0, batch - BATCHES_RETAINED + 1) // interval * interval - 1
    now_ms = storage.modified_ms(f"{DIRECTORY}/{names[batch]}")
    for former in sorted(former for former in names if former < keep_from):
        path = f"{DIRECTORY}/{names[former]}"
        if storage.modified_ms(path) < now_ms - REMOVAL_DELAY_MS:
            storage.delete(path)
