"""Names that the sink puts into a table: staged files' folders, table properties, keys of a snapshot's summary. Pure.

Used by the writer, the committer and whatever removes staged files.
"""

from __future__ import annotations

import hashlib
import re

from sinkruntime.api import SinkIdentity

# Keys of a snapshot's summary: the evidence.
LEDGER_ID = "sinkjob.ledger-id"
SINK = "sinkjob.sink"
EPOCH = "sinkjob.epoch"
CHECKPOINT = "sinkjob.checkpoint"
#: Where one snapshot holds several checkpoints: the first of them.
FIRST_CHECKPOINT = "sinkjob.first-checkpoint"
#: In snapshots that maintenance made: what it did. They hold no evidence.
UPKEEP = "sinkjob.upkeep"

_STEM = re.compile(r"(\d{12})-(\d+)")


def owner_digest(identity: SinkIdentity) -> str:
    """12 hexadecimal digits for (ledger id, sink): jobs may share a table."""
    return hashlib.sha256(f"{identity.ledger_id}/{identity.sink}".encode()).hexdigest()[:12]


def owner_folder(data_location: str, identity: SinkIdentity) -> str:
    """Where all files of this sink lie, staged or committed."""
    return f"{data_location}/sinkjob-{owner_digest(identity)}"


def stage_folder(data_location: str, identity: SinkIdentity, checkpoint: int, epoch: int) -> str:
    """Where the files of a checkpoint of an epoch lie. A committed file stays where it was staged."""
    return f"{owner_folder(data_location, identity)}/{checkpoint:012d}-{epoch}"


def metadata_folder(identity: SinkIdentity, checkpoint: int, epoch: int) -> str:
    """Where manifests of a checkpoint lie, below the table's metadata location."""
    return f"sinkjob-{owner_digest(identity)}/{checkpoint:012d}-{epoch}"


def upkeep_folder(identity: SinkIdentity) -> str:
    """Where maintenance writes, below the table's data and metadata locations; never a checkpoint's folder."""
    return f"sinkjob-{owner_digest(identity)}/upkeep"


def origin_of(folder: str) -> tuple[int, int] | None:
    """(checkpoint, epoch) of a folder's name; None: it is none of ours."""
    found = _STEM.fullmatch(folder)
    return (int(found[1]), int(found[2])) if found else None


def marker_property(identity: SinkIdentity) -> str:
    """The table property that proves the last checkpoint after its snapshot has expired."""
    return f"sinkjob.{owner_digest(identity)}.committed"


def fence_property(identity: SinkIdentity) -> str:
    """The table property that turns late commits down."""
    return f"sinkjob.{owner_digest(identity)}.fence"
