"""Which settings of Spark a job must not change, and why: each would break the guarantee or the recovery.

Used by `checks.py`, and printed into the manifest's reference. Says nothing about settings that are merely unwise.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Keys that match `pattern` (any case) are refused unless `allows` the value; `allowed` says it in words."""

    pattern: str
    why: str
    allows: Callable[[str], bool] = lambda value: False
    allowed: str = ""

    def refuses(self, key: str, value: str) -> bool:
        matched = re.fullmatch(self.pattern, key, re.IGNORECASE)
        return matched is not None and not self.allows(value.strip().lower())


def _only(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def _last_name_is(*names: str) -> Callable[[str], bool]:
    return lambda value: value.rsplit(".", 1)[-1] in names


# The offsets of a decided batch must still be there when its checkpoint is looked at: more than `maxPending` can be.
BATCHES_RETAINED_MIN = 20

RULES = (
    Rule(
        r"spark\.sql\.streaming\.checkpointLocation",
        "the ledger belongs to one checkpoint location",
        allowed="set `spec.checkpoint.location`",
    ),
    Rule(
        r"spark\.sql\.streaming\.asyncProgressTracking.*",
        "Spark would write its offsets after the batch has run, so that a replay could have other rows",
    ),
    Rule(
        r"spark\.sql\.streaming\.stateStore\.checkpointFormatVersion",
        "format 2 keeps the identity of the state in Spark's commit log, which a decided batch may not have reached",
        _only("1"),
        "only 1",
    ),
    Rule(
        r"spark\.sql\.streaming\.stateStore\.providerClass",
        "another store may not keep the state of the last two batches, which a replay needs",
        _last_name_is("hdfsbackedstatestoreprovider", "rocksdbstatestoreprovider"),
        "only HDFSBackedStateStoreProvider or RocksDBStateStoreProvider",
    ),
    Rule(
        r"spark\.sql\.streaming\.checkpointFileManagerClass",
        "Spark's checkpoint files must be created only if they are absent",
        _last_name_is("filecontextbasedcheckpointfilemanager", "abortablestreambasedcheckpointfilemanager"),
        "only FileContextBasedCheckpointFileManager or AbortableStreamBasedCheckpointFileManager",
    ),
    Rule(
        r"spark\.sql\.streaming\.minBatchesToRetain",
        "the start check needs the offsets of every batch that may still be pending",
        lambda value: value.isascii() and value.isdigit() and int(value[:9]) >= BATCHES_RETAINED_MIN,
        f"at least {BATCHES_RETAINED_MIN}",
    ),
    Rule(
        r"spark\.sql\.session\.timeZone",
        "timestamps reach the sinks as UTC: another zone would be set aside, and dates be cut at UTC's midnight",
        _only("utc", "etc/utc", "z", "gmt", "+00:00"),
        "only UTC; convert in a transform (`from_utc_timestamp`)",
    ),
    Rule(
        r"spark\.sql\.streaming\.unsupportedOperationCheck",
        "Spark would run streaming queries whose result is wrong",
        _only("true"),
        "only true",
    ),
    Rule(
        r"spark\.sql\.streaming\.statefulOperator\.checkCorrectness\.enabled",
        "Spark would run chained aggregations that lose late rows",
        _only("true"),
        "only true",
    ),
)


def refusal(key: str, value: str) -> Rule | None:
    """The rule that refuses this setting; None: it is the job's own business."""
    return next((rule for rule in RULES if rule.refuses(key, value)), None)
