"""A run's last steps, made readable: one line per thing that happened, changes of the ledger told as differences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from sinkruntime.protocol.ledger import Ledger, Record

Entry = tuple[Any, ...]


def lines(trace: Sequence[Entry]) -> Iterator[str]:
    """Each entry as a line: virtual seconds, who, what."""
    for at, actor, what, more in trace:
        text = _difference(what, more) if isinstance(what, Ledger) else what % more
        yield f"{at:9.3f}  {actor:<14} {text}"


def digest(trace: Sequence[Entry]) -> str:
    """Equal for equal runs."""
    return hashlib.sha256("\n".join(lines(trace)).encode()).hexdigest()


def _difference(before: Ledger, after: Ledger) -> str:
    told = []
    if after.epoch != before.epoch:
        told.append(f"epoch {after.epoch}")
    if after.claim != before.claim and after.claim:
        told.append(f"claimed by {after.claim}")
    if after.token != before.token:
        told.append(f"token {after.token} for {after.holder}")
    for name, was, now in (("recovered", before.recovered, after.recovered), ("closed", before.closed, after.closed)):
        told += [f"{name} {a}={n}" for a, n in now.items() if was.get(a) != n]
    known = {record.number: record for record in before.records}
    for record in after.records:
        was_record = known.pop(record.number, None)
        if was_record is not record:
            told.append(_record(was_record, record))
    told += [f"{number} leaves" for number in known]
    told += [f"accepted {a.reason} (nonce {a.nonce})" for a in after.acceptances[len(before.acceptances) :]]
    if after.decided != before.decided:
        told.append(f"decided {after.decided}")
    return "LEDGER " + ", ".join(told)


def _record(was: Record | None, now: Record) -> str:
    if was is None:
        position = now.position
        return f"DECISION {now.number} of epoch {now.epoch} (batch {position.batch_id} to {position.end.text})"
    told = [f"{now.state}"] if was.state is not now.state else []
    for sink, part in now.parts.items():
        if part is not was.parts[sink]:
            reason = f" {part.reason}" if part.reason else ""
            done = f" done {part.done}" if part.done else ""
            told.append(f"{sink} {part.state}{reason}{done}")
    return f"{now.number}: {' '.join(told) or 'touched'}"
