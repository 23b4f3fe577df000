"""Where this sink's files stand below the table's directory. Used by writers and committer. Pure.

Data files: `sinkjob-<digest>/<checkpoint>-<epoch>/<stem>-<number>.parquet`, final from the start: no reader sees them
before the log names them, any VACUUM may remove them once it has given them up, and what a checkpoint of an epoch
staged is found by one listing. Staged changes: below `_sinkjob/`, which every reader and VACUUM leaves alone.
"""

from __future__ import annotations

import re

from sinkruntime.api import Lineage, SinkIdentity
from sinkruntime.sinks.delta.options import Write
from sinkruntime.storage.names import PRIVATE, owner_digest

_ORIGIN = re.compile(r"(\d{12})-(\d+)")


def home(identity: SinkIdentity, write: Write) -> str:
    """The directory of all that this sink writes."""
    digest = owner_digest(identity)
    return f"{PRIVATE}/changes-{digest}" if write is Write.UPSERT else f"sinkjob-{digest}"


def directory(identity: SinkIdentity, write: Write, checkpoint: int, epoch: int) -> str:
    """The directory of a checkpoint of an epoch."""
    return f"{home(identity, write)}/{checkpoint:012d}-{epoch}"


def directory_of(identity: SinkIdentity, write: Write, lineage: Lineage) -> str:
    return directory(identity, write, lineage.checkpoint, lineage.epoch)


def origin_of(name: str) -> tuple[int, int] | None:
    """(checkpoint, epoch) of a directory's name; None: it is none of ours."""
    found = _ORIGIN.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None
