"""What a coordinator's outcomes mean to the ledger as it is now, and the log line of each. Pure but for that line."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sinkruntime.coordinator.wishes import COMMITTABLE_LOST
from sinkruntime.protocol.events import FENCING, Outcome, OutcomeKind, Refused, Report
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, Part, PartState, Record
from sinkruntime.protocol.machine import step

log = logging.getLogger(__name__)

#: One failure that passes is not worth a write.
TOLD_AFTER_FAILURES = 2


def acceptable(ledger: Ledger, authority: Authority, fence: int, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Those that would change the ledger; one that it refuses was overtaken, and the next look tells.

    Raises `Refused` where the reporter itself is fenced.
    """
    taken = []
    for outcome in outcomes:
        record = ledger.record(outcome.number)
        if record is None or _told_already(record, outcome):
            continue
        try:
            ledger, _ = step(ledger, Report(authority, fence, (outcome,)))
        except Refused as refused:
            if refused.refusal in FENCING:
                raise
            log.info("an outcome of checkpoint %d is dropped: %s", outcome.number, refused)
            continue
        taken.append(outcome)
    return tuple(taken)


def _told_already(record: Record, outcome: Outcome) -> bool:
    """Whether the ledger says so already."""
    part = record.parts[outcome.sink]
    if outcome.kind is OutcomeKind.CLEANED:
        return part.state is PartState.CLEANED
    if outcome.kind is OutcomeKind.COMMITTED:
        return part.state in (PartState.COMMITTED, PartState.CLEANED) and record.state is not CheckpointState.ABORTING
    same = {OutcomeKind.REFUSED: PartState.HELD, OutcomeKind.UNKNOWN: PartState.IN_DOUBT}
    told = (part.reason, part.message, part.done) == (outcome.reason, outcome.message, outcome.done)
    return part.state is same.get(outcome.kind) and told and outcome.payload is None


def worth_telling(part: Part, outcome: Outcome, failures: int) -> bool:
    """Whether the ledger should say why a part does not come forward: after a second failure, and once per reason.

    Only of a part that is pending: taken as progress, it would turn one in doubt into one that nobody probes. What was
    lost stays told as lost.
    """
    news = outcome.reason not in ("", part.reason) and part.reason != COMMITTABLE_LOST
    return part.state is PartState.PENDING and news and failures >= TOLD_AFTER_FAILURES


def tell(record: Record, outcome: Outcome, failures: int) -> None:
    """One structured line per round; the same facts are in the record's `sinkjob` attribute."""
    facts = {
        "checkpoint": record.number,
        "epoch": record.epoch,
        "sink": outcome.sink,
        "attempt": failures,
        "outcome": str(outcome.kind),
        "reason": outcome.reason,
    }
    log.log(
        logging.WARNING if outcome.reason else logging.INFO,
        "checkpoint %d of sink %s: %s (epoch %d, attempt %d) %s",
        record.number,
        outcome.sink,
        outcome.kind,
        record.epoch,
        failures,
        ": ".join(text for text in (outcome.reason, outcome.message) if text),
        extra={"sinkjob": facts},
    )
