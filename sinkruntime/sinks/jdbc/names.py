"""Names of what the `jdbc` sink makes in a database: staging tables, prepared transactions, its own tables.

A staged name tells the ledger and sink it belongs to (by a digest), its checkpoint, epoch, subtask and attempt, so
that recovery needs nothing else. Identifiers of PostgreSQL have at most 63 bytes; each half of an xid at most 64.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sinkruntime.api import SinkIdentity, WriterContext

EVIDENCE = "_sinkjob_evidence"
WRITERS = "_sinkjob_writers"
STAGED = "_sj_"
NAME_BYTES_MAX = 63
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which attempt of which writer staged something."""

    checkpoint: int
    epoch: int
    subtask: int
    attempt: int


def owner_prefix(identity: SinkIdentity) -> str:
    """What all staged names of a (ledger id, sink) begin with."""
    digest = hashlib.sha256(f"{identity.ledger_id}/{identity.sink}".encode()).hexdigest()
    return f"{STAGED}{digest[:16]}_"


def staged_name(context: WriterContext) -> str:
    """A name for what one writer stages, like no other's."""
    at = context.lineage
    numbers = "_".join(base36(number) for number in (at.checkpoint, at.epoch, at.subtask, at.attempt))
    name = f"{owner_prefix(context.identity)}{numbers}_{context.unique[:12]}"
    assert len(name) <= NAME_BYTES_MAX, name
    return name


def origin_of(name: str, prefix: str) -> Origin | None:
    """Whose a staged name is; None: it is not of this prefix."""
    parts = name.removeprefix(prefix).split("_")
    if not name.startswith(prefix) or len(parts) != 5:
        return None
    try:
        checkpoint, epoch, subtask, attempt = (int(part, 36) for part in parts[:4])
    except ValueError:
        return None
    return Origin(checkpoint, epoch, subtask, attempt)


def base36(number: int) -> str:
    """A number in digits and letters."""
    if number < 36:
        return _DIGITS[number]
    return base36(number // 36) + _DIGITS[number % 36]
