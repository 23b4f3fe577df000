"""Rows that the database turns down, found one by one for the dead letters, and which of its rules are met in time.

The writers use it where the manifest names a `deadLetter` sink; without one a refused row fails its task. Every piece
of a batch is written behind a savepoint, and one that is refused is halved until the row is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sinkruntime.api import WriterContext
from sinkruntime.dead_letters import Reject, reject_nothing
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.jdbc.database import Rule, Session
from sinkruntime.sinks.jdbc.options import Options, Write

#: Reasons that are about rows, and not about the table or the user.
REASONS = frozenset({"RowsRefused", "NullInKey"})
_SAVEPOINT = "sinkjob_piece"
_RULES_TOLD_MAX = 3


def rejecting(context: WriterContext) -> Reject | None:
    """What takes refused rows; None: the manifest names no dead letters."""
    return None if context.reject is reject_nothing else context.reject


@dataclass(frozen=True, slots=True)
class Sieve:
    """Writes rows and hands those on that the database turns down. `write` takes a batch and the number of its first
    row; what it did before it raised is undone."""

    session: Session
    write: Callable[[pa.RecordBatch, int], None]

    def take(self, batch: pa.RecordBatch, first: int, reject: Reject) -> int:
        """How many rows were kept. `reject` raises where there are more than `maxRows`, which bounds the halving."""
        pieces = [(0, batch.num_rows)]
        kept = 0
        while pieces:
            start, rows = pieces.pop()
            piece = batch.slice(start, rows)
            error = self._try(piece, first + start)
            if error is None:
                kept += rows
            elif rows == 1:
                reject(piece, error.reason, error.message)
            else:
                half = rows // 2
                pieces += [(start + half, rows - half), (start, half)]
        return kept

    def _try(self, piece: pa.RecordBatch, first: int) -> TargetError | None:
        self.session.run(f"SAVEPOINT {_SAVEPOINT}")
        try:
            self.write(piece, first)
        except TargetError as error:
            if error.reason not in REASONS:
                raise
            self.session.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return error
        self.session.run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return None


def split_rules(rules: Sequence[Rule], written: Sequence[str]) -> tuple[list[Rule], list[Rule]]:
    """Those that a staging table with the columns `written` can have, too, and the others."""
    copied = [rule for rule in rules if rule.condition and rule.columns <= frozenset(written)]
    return copied, [rule for rule in rules if rule not in copied]


def check_in_time(late: Sequence[Rule], options: Options) -> None:
    """Raises `ConfigurationError` where rows may still be refused when they are moved, after the decision: those could
    go to no dead letters any more."""
    own_key = options.write is not Write.INSERT
    left = [rule for rule in late if not (own_key and rule.is_unique and rule.columns == frozenset(options.key))]
    if left:
        named = ", ".join(rule.name for rule in left[:_RULES_TOLD_MAX])
        message = f"{options.table} has rules that are met only after the decision, too late for dead letters: {named}"
        advice = "`mode: xa` meets them while rows are written; or drop them; or leave `deadLetter` out"
        raise ConfigurationError("InvalidDeadLetter", message, path="deadLetter", advice=advice)
