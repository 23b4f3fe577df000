"""The check before a driver's first batch: do the source, the ledger and the targets agree?

The driver gathers the facts, `check` finds every disagreement, `recovery.accept` lets a person go on. The order is
that in which they are reported. It never repairs anything: `acceptance` says what accepting would record. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sinkruntime.protocol.events import TargetView
from sinkruntime.protocol.ledger import Ledger, PartState, Position
from sinkruntime.protocol.position import BATCH_QUERY


class StartReason(StrEnum):
    """Why a job does not start. Each is a value of `recovery.accept`."""

    LEDGER_LOST = "LedgerLost"
    CHECKPOINT_OWNED_BY_ANOTHER = "CheckpointOwnedByAnother"
    NEW_CHECKPOINT = "NewCheckpoint"
    LEDGER_BEHIND_SOURCE = "LedgerBehindSource"
    TARGET_AHEAD_OF_SOURCE = "TargetAheadOfSource"
    TARGET_REPLACED = "TargetReplaced"
    TARGET_AHEAD_OF_LEDGER = "TargetAheadOfLedger"
    TARGET_BEHIND_LEDGER = "TargetBehindLedger"
    ABORTED = "Aborted"


@dataclass(frozen=True, slots=True)
class SourceView:
    """What Spark's checkpoint location holds.

    `marker` is the ledger id found there ("" none), `query_id` Spark's ("" where no query ever ran), `planned` the
    position of the last batch in `offsets/`, `finished` the last batch id in `commits/` (-1: none).
    """

    marker: str = ""
    query_id: str = ""
    planned: Position | None = None
    finished: int = -1


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One reason not to start: a sentence that says what was found, and what to do about it."""

    reason: StartReason
    message: str
    advice: str
    sinks: Mapping[str, TargetView] = field(default_factory=dict)


#: What a person can do, and what accepting means.
ADVICE: Mapping[StartReason, str] = {
    StartReason.LEDGER_LOST: "restore the ledger from a backup; or accept: a new ledger is made, and rows that the "
    "old one had decided but not committed are lost, or arrive twice",
    StartReason.CHECKPOINT_OWNED_BY_ANOTHER: "give this job a checkpoint location of its own; or accept: this job "
    "takes the location over, and the other one will be refused there",
    StartReason.NEW_CHECKPOINT: "restore the checkpoint location; or accept: the source is read from its start "
    "again, so rows that are in the target may arrive a second time",
    StartReason.LEDGER_BEHIND_SOURCE: "restore the newer ledger; or accept: go on after the source's last batch, "
    "though the rows between are on no record",
    StartReason.TARGET_AHEAD_OF_SOURCE: "restore the newer checkpoint location; or accept: batches run again "
    "from where the source stands, so rows that are in the target may arrive a second time",
    StartReason.TARGET_REPLACED: "bring the former target back; or accept: go on with the present one, which "
    "lacks the earlier rows",
    StartReason.TARGET_AHEAD_OF_LEDGER: "restore the newer ledger; or accept: number on after the target, and rows "
    "that the ledger has forgotten may arrive a second time",
    StartReason.TARGET_BEHIND_LEDGER: "restore the newer target; or accept: go on, without the rows that the "
    "target has lost",
    StartReason.ABORTED: "run those rows again from the source by hand if they are needed; then accept: the job "
    "goes on after them",
}


def check(ledger: Ledger, source: SourceView, targets: Mapping[str, TargetView]) -> tuple[Disagreement, ...]:
    """Every disagreement between the three, in the order in which a person should look at them.

    `targets` has the sinks that keep evidence which can be read back, and no others. When it is called pending
    checkpoints have been probed, so that a target may be ahead only of what nobody decided.
    """
    found = [*_check_source(ledger, source), *_check_targets(ledger, targets)]
    if any(not abort.accepted for abort in ledger.aborts):
        spans = ", ".join(f"{a.first} to {a.last} ({a.who}: {a.why})" for a in ledger.aborts if not a.accepted)
        found.append(_say(StartReason.ABORTED, f"checkpoints were aborted and their rows given up: {spans}"))
    return tuple(found)


def _check_source(ledger: Ledger, source: SourceView) -> Iterator[Disagreement]:
    if source.marker and source.marker != ledger.ledger_id:
        message = f"the checkpoint location belongs to ledger {source.marker}, this job's is {ledger.ledger_id}"
        yield _say(StartReason.CHECKPOINT_OWNED_BY_ANOTHER, message)
    last = ledger.last
    if last is None:
        rebased = any(a.reason in REBASE for a in ledger.acceptances)
        if not ledger.decided and source.finished >= 0 and not rebased:
            message = f"Spark has finished batch {source.finished}, and the ledger knows of none"
            yield _say(StartReason.LEDGER_BEHIND_SOURCE, message)
        return
    mine = last.position
    if source.query_id == mine.query_id == BATCH_QUERY:
        return  # each batch job reads all there is; `Ledger.batches` says which of them are decided
    if source.query_id != mine.query_id or not source.marker:
        found = f"query {source.query_id}" if source.query_id else "no query"
        message = f"checkpoint {last.number} was made by query {mine.query_id}, the location holds {found}"
        yield _say(StartReason.NEW_CHECKPOINT, message)
        return
    planned = source.planned
    if planned is None or planned.batch_id < mine.batch_id or source.finished > planned.batch_id:
        at = "no batch" if planned is None else f"batch {planned.batch_id}"
        message = f"checkpoint {last.number} holds batch {mine.batch_id}, Spark's checkpoint has {at}"
        yield _say(StartReason.TARGET_AHEAD_OF_SOURCE, message)
    elif planned.batch_id == mine.batch_id and not planned.same_rows(mine):
        message = f"checkpoint {last.number} holds batch {mine.batch_id} with other rows than Spark has planned"
        yield _say(StartReason.TARGET_AHEAD_OF_SOURCE, message)
    elif source.finished > mine.batch_id:
        message = f"Spark has finished batch {source.finished}, the ledger's last is {mine.batch_id}"
        yield _say(StartReason.LEDGER_BEHIND_SOURCE, message)
    elif planned.batch_id > mine.batch_id and planned.start.digest != mine.end.digest:
        message = f"batch {planned.batch_id} does not start where checkpoint {last.number} ended"
        yield _say(StartReason.LEDGER_BEHIND_SOURCE, message)


def _check_targets(ledger: Ledger, targets: Mapping[str, TargetView]) -> Iterator[Disagreement]:
    groups: dict[StartReason, dict[str, TargetView]] = {}
    for sink, view in targets.items():
        entry = ledger.sinks.get(sink)
        known, target = (entry.evidence, entry.target) if entry else (0, "")
        reason = None
        if target and view.target != target:
            reason = StartReason.TARGET_REPLACED
        elif view.evidence > max([known, *_may_have_landed(ledger, sink)]):
            reason = StartReason.TARGET_AHEAD_OF_LEDGER
        elif view.evidence < known:
            reason = StartReason.TARGET_BEHIND_LEDGER
        if reason is not None:
            groups.setdefault(reason, {})[sink] = view
    for reason, views in groups.items():
        told = ", ".join(
            f"{sink} has evidence of checkpoint {view.evidence}"
            f" (by the ledger {ledger.sinks[sink].evidence if sink in ledger.sinks else 0})"
            for sink, view in views.items()
        )
        yield _say(reason, told, views)


def _may_have_landed(ledger: Ledger, sink: str) -> Iterator[int]:
    """Numbers whose commit may be in the target although the ledger does not say so yet."""
    for record in ledger.records:
        part = record.parts.get(sink)
        if part is not None and part.state is not PartState.CLEANED:
            yield record.number


def _say(reason: StartReason, message: str, sinks: Mapping[str, TargetView] | None = None) -> Disagreement:
    return Disagreement(reason, message, ADVICE[reason], sinks or {})


#: Reasons after which the next batch need not start where the last decision ended.
REBASE = frozenset(
    {
        StartReason.LEDGER_LOST,
        StartReason.CHECKPOINT_OWNED_BY_ANOTHER,
        StartReason.NEW_CHECKPOINT,
        StartReason.LEDGER_BEHIND_SOURCE,
        StartReason.TARGET_AHEAD_OF_SOURCE,
    }
)


#: Disagreements that a committer may meet, too: its part is then held for them.
ABOUT_TARGETS = frozenset(
    {StartReason.TARGET_REPLACED, StartReason.TARGET_AHEAD_OF_LEDGER, StartReason.TARGET_BEHIND_LEDGER}
)


class Verdict(StrEnum):
    """What to do with the batch that Spark hands over."""

    RUN = "run"
    SKIP = "skip"  # it is decided: the coordinator finishes it


def judge_batch(ledger: Ledger, position: Position) -> Verdict | str:
    """Skip, run, or stop: a sentence that says why neither is right.

    Batch = the last decided: skipped if query, batch and both offsets are equal. Higher: runs if it starts where the
    last decision ended. A number alone is never enough: a checkpoint directory restored one batch back plans the
    same number with other rows.
    """
    last = ledger.last
    if last is None:
        return Verdict.RUN
    mine = last.position
    if position.same_rows(mine):
        return Verdict.SKIP
    if position.query_id != mine.query_id:
        return f"batch {position.batch_id} is of query {position.query_id}, the last decision of {mine.query_id}"
    if position.batch_id <= mine.batch_id:
        return f"batch {position.batch_id} was decided with other rows, or comes before batch {mine.batch_id}"
    if position.start.digest != mine.end.digest:
        return f"batch {position.batch_id} does not start where checkpoint {last.number} ended"
    return Verdict.RUN
