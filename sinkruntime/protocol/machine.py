"""The commit protocol: `step`, which fires the transition table.

Rule 1: no transition happens but by the table and through `step`. Rule 2: this file does not know who calls it.
`step(ledger, event)` returns the next ledger and the effects that the event brought about, or raises `Refused` and
leaves everything as it was; it never guesses. A caller persists the new ledger by compare-and-swap before it runs
an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sinkruntime.protocol.decision import check_decision, require
from sinkruntime.protocol.events import (
    Accept,
    Action,
    BeginAbort,
    ClaimEpoch,
    Decide,
    Effect,
    Event,
    Forget,
    NoteRecovered,
    Outcome,
    OutcomeKind,
    RaiseEpoch,
    RaiseToken,
    Refusal,
    Refused,
    Release,
    Report,
)
from sinkruntime.protocol.ledger import (
    FINAL_PARTS,
    HISTORY_MAX,
    Abort,
    Acceptance,
    Authority,
    CheckpointState,
    LastDecision,
    Ledger,
    Part,
    PartState,
    Record,
    Settled,
    SinkEntry,
)
from sinkruntime.protocol.table import CHECKPOINTS, OWED, PARTS, TAKEN_IN, Fact

C, P, K = CheckpointState, PartState, OutcomeKind


def step(ledger: Ledger, event: Event) -> tuple[Ledger, tuple[Effect, ...]]:
    """Apply `event`. Returns the next ledger and the effects that are newly owed, in order; raises `Refused`."""
    after = _HANDLERS[type(event)](ledger, event)
    before = set(outstanding(ledger))
    return after, tuple(effect for effect in outstanding(after) if effect not in before)


def outstanding(ledger: Ledger) -> Iterator[Effect]:
    """All that is owed, in checkpoint order: of each sink the first unfinished part, and every clean-up."""
    busy: set[str] = set()
    aborting = [record.number for record in ledger.records if record.state is C.ABORTING]
    for record in ledger.records:
        for sink, part in record.parts.items():
            action = OWED.get((record.state, part.state))
            if record.state is C.DECIDED and part.state not in FINAL_PARTS:
                action = None if sink in busy else action
                busy.add(sink)
            if action is Action.FENCE and record.number != aborting[-1]:
                action = None  # newest first
            if action is not None:
                yield Effect(action, record.number, sink, part.authority)
        if record.state is C.SETTLED:
            yield Effect(Action.REMOVE_PAYLOADS, record.number)
    for authority in Authority:
        if ledger.closed.get(authority, 0) < ledger.epoch:
            yield Effect(Action.RECOVER, ledger.epoch, authority=authority)


def _raise_epoch(ledger: Ledger, event: RaiseEpoch) -> Ledger:
    require(event.epoch == ledger.epoch + 1, Refusal.STALE_EPOCH, f"epoch {event.epoch} after {ledger.epoch}")
    raised = replace(ledger, epoch=event.epoch, claim="", firsts=(*ledger.firsts, ledger.decided + 1))
    return _doubt(raised, Authority.EPOCH)


def _claim_epoch(ledger: Ledger, event: ClaimEpoch) -> Ledger:
    require(event.epoch == ledger.epoch, Refusal.STALE_EPOCH, f"epoch {event.epoch} is not {ledger.epoch}")
    free = ledger.claim in ("", event.claimant)
    require(free, Refusal.ALREADY_CLAIMED, f"epoch {event.epoch} is claimed by {ledger.claim}")
    return replace(ledger, claim=event.claimant)


def _raise_token(ledger: Ledger, event: RaiseToken) -> Ledger:
    require(event.token == ledger.token + 1, Refusal.STALE_TOKEN, f"token {event.token} after {ledger.token}")
    return _doubt(replace(ledger, token=event.token, holder=event.holder), Authority.TOKEN)


def _doubt(ledger: Ledger, authority: Authority) -> Ledger:
    """A new tenure cannot know what the last one had under way: ask the target about every pending part.

    Of one that is in doubt already, what an earlier tenure was told is forgotten: the cause may be mended.
    """

    def doubted(part: Part) -> Part:
        ours = part.authority is authority and part.state in (P.PENDING, P.IN_DOUBT)
        return replace(part, state=P.IN_DOUBT, reason="", message="") if ours else part

    return _map_parts(ledger, lambda record, part: doubted(part) if record.pending else part)


def _note_recovered(ledger: Ledger, event: NoteRecovered) -> Ledger:
    _fence(ledger, event.authority, event.fence)
    require(event.epoch <= ledger.epoch, Refusal.STALE_EPOCH, f"epoch {event.epoch} is not raised")
    grown = {**ledger.recovered, event.authority: max(event.epoch, ledger.recovered.get(event.authority, 0))}
    closed = dict(ledger.closed)
    if event.final:
        closed[event.authority] = max(event.epoch, closed.get(event.authority, 0))
    return replace(ledger, recovered=grown, closed=closed)


def _decide(ledger: Ledger, event: Decide) -> Ledger:
    check_decision(ledger, event)
    record = event.record
    parts = {sink: replace(part, state=P.PENDING, attempts=0, done=()) for sink, part in record.parts.items()}
    former = ledger.last.states if ledger.last else {}
    superseded = tuple(payload.pointer for payload in former.values() if payload.pointer)
    record = replace(record, parts=parts, state=C.DECIDED, superseded=superseded)
    sinks = dict(ledger.sinks)
    for sink in record.parts:
        entry = sinks.get(sink) or SinkEntry(since=record.number)
        sinks[sink] = replace(entry, target=event.targets.get(sink) or entry.target)
    return replace(
        ledger,
        decided=record.number,
        last=LastDecision(record.number, record.record_id, record.position, event.states),
        records=(*ledger.records, record),
        sinks=sinks,
        batches=(*ledger.batches, event.batch) if event.batch else ledger.batches,
    )


def _report(ledger: Ledger, event: Report) -> Ledger:
    _fence(ledger, event.authority, event.fence)
    for outcome in event.outcomes:
        ledger = _take(ledger, outcome, event)
    return ledger


def _take(ledger: Ledger, outcome: Outcome, event: Report) -> Ledger:
    record, part = _find(ledger, outcome.number, outcome.sink)
    require(part.authority is event.authority, Refusal.STALE_TOKEN, f"{outcome.sink} is under the {part.authority}")
    state = PARTS.get((part.state, outcome.kind))
    if state is None or record.state not in TAKEN_IN[outcome.kind]:
        raise Refused(Refusal.NOT_ALLOWED, f"{outcome.kind} of a part {part.state} in {record.state}")
    if outcome.kind is K.COMMITTED and record.state is C.DECIDED:
        _check_order(ledger, outcome)
    attempted = outcome.kind in (K.COMMITTED, K.REFUSED, K.UNKNOWN, K.PROGRESS)
    changed = replace(
        part,
        state=state,
        done=() if state in FINAL_PARTS else outcome.done or part.done,
        payload=outcome.payload or part.payload,
        attempts=part.attempts + attempted,
        reason=outcome.reason,
        message=outcome.message,
    )
    replaced = part.payload.pointer if part.payload and changed.payload != part.payload else None
    superseded = (*record.superseded, replaced) if replaced else record.superseded
    record = replace(record, parts={**record.parts, outcome.sink: changed}, superseded=superseded)
    ledger = _put(ledger, record)
    entry = ledger.sinks[outcome.sink]
    if outcome.kind is K.COMMITTED:
        entry = _credited(entry, outcome.number, part, event.reported_ms)
    if outcome.evidence:
        entry = replace(entry, evidence=max(entry.evidence, outcome.number))
    return _settle(replace(ledger, sinks={**ledger.sinks, outcome.sink: entry}), outcome.number)


def _credited(entry: SinkEntry, number: int, part: Part, wall_ms: int = 0) -> SinkEntry:
    """The sink's entry after its part of a checkpoint was committed; its rows count once, however often it is told."""
    if part.state is P.COMMITTED:
        return entry
    committed, rows = max(entry.committed, number), entry.rows + part.rows
    return replace(entry, committed=committed, rows=rows, committed_ms=max(entry.committed_ms, wall_ms))


def _check_order(ledger: Ledger, outcome: Outcome) -> None:
    for earlier in ledger.records:
        if earlier.number >= outcome.number:
            return
        part = earlier.parts.get(outcome.sink)
        waits = part is not None and part.state not in FINAL_PARTS and earlier.pending
        require(not waits, Refusal.OUT_OF_ORDER, f"{earlier.number} of {outcome.sink} comes first")


def _settle(ledger: Ledger, number: int) -> Ledger:
    """Move the checkpoint as far as its parts allow."""
    while (record := ledger.record(number)) is not None:
        fact = _fact(record)
        if fact is None or (record.state, fact) not in CHECKPOINTS:
            return ledger
        if fact is Fact.PART_LANDED:
            ledger = _unabort(ledger, number)
            continue
        if fact is Fact.ALL_FENCED:
            ledger = _add_abort(ledger, record)
        ledger = _move(ledger, record, fact)
    return ledger


def _fact(record: Record) -> Fact | None:
    """What the parts make true of their checkpoint."""
    states = {part.state for part in record.parts.values()}
    if record.state is C.ABORTING and any(_landed(part) for part in record.parts.values()):
        return Fact.PART_LANDED
    if record.state is C.SETTLED:
        return None if _has_objects(record) else Fact.PAYLOADS_REMOVED
    if states <= {P.CLEANED} and record.state in (C.COMMITTED, C.ABORTED):
        return Fact.ALL_CLEANED
    if states <= FINAL_PARTS:
        return Fact.ALL_COMMITTED
    return Fact.ALL_FENCED if states == {P.FENCED} else None


def _landed(part: Part) -> bool:
    """Whether something of it is visible, or was given up: it is not to be aborted."""
    return part.state in FINAL_PARTS or bool(part.done)


def _move(ledger: Ledger, record: Record, fact: Fact) -> Ledger:
    state = CHECKPOINTS[record.state, fact]
    return _drop(ledger, {record.number}) if state is None else _put(ledger, replace(record, state=state))


def _unabort(ledger: Ledger, number: int) -> Ledger:
    """A late commit had landed before the fence: this checkpoint, and what comes before it, is committed after all."""

    def back(record: Record, part: Part) -> Part:
        lifts = record.number <= number and record.state is C.ABORTING and part.state is P.FENCED
        return replace(part, state=P.IN_DOUBT) if lifts else part

    ledger = _map_parts(ledger, back)
    records = tuple(
        replace(r, state=CHECKPOINTS[r.state, Fact.PART_LANDED] or r.state, who="", why="")
        if r.number <= number and r.state is C.ABORTING
        else r
        for r in ledger.records
    )
    return replace(ledger, records=records)


def _add_abort(ledger: Ledger, record: Record) -> Ledger:
    """Record the abort: newest first, so neighbours of one word grow into one entry."""
    latest = ledger.aborts[-1] if ledger.aborts else None
    joins = latest is not None and not latest.accepted and latest.first == record.number + 1
    if latest is not None and joins and (latest.who, latest.why) == (record.who, record.why):
        return replace(ledger, aborts=(*ledger.aborts[:-1], replace(latest, first=record.number)))
    added = Abort(record.number, record.number, record.who, record.why)
    return replace(ledger, aborts=(*ledger.aborts, added))


def _release(ledger: Ledger, event: Release) -> Ledger:
    _fence(ledger, event.authority, event.fence)

    def released(record: Record, part: Part) -> Part:
        ours = part.authority is event.authority and part.state is P.HELD and record.state is C.DECIDED
        return replace(part, state=P.IN_DOUBT) if ours else part

    return _map_parts(ledger, released)


def _begin_abort(ledger: Ledger, event: BeginAbort) -> Ledger:
    _fence(ledger, Authority.TOKEN, event.token)
    suffix = [r for r in ledger.records if r.number >= event.first and r.state is C.DECIDED]
    require(bool(suffix), Refusal.UNKNOWN_PART, f"nothing is to be aborted from checkpoint {event.first} on")
    for record in suffix:
        committed = sorted(sink for sink, part in record.parts.items() if _landed(part))
        message = f"checkpoint {record.number} is committed in {', '.join(committed)}"
        require(not committed, Refusal.HAS_COMMITTED_PART, message)
    require(not set(event.words) & set(ledger.acceptances), Refusal.ALREADY_ACCEPTED, event.why)
    ledger = replace(ledger, acceptances=(*ledger.acceptances, *event.words))
    for record in suffix:
        marked = replace(record, who=event.who, why=event.why)
        ledger = _move(ledger, marked, Fact.ABORT_BEGUN)
    return ledger


def _forget(ledger: Ledger, event: Forget) -> Ledger:
    _fence(ledger, Authority.TOKEN, event.token)
    for number in event.numbers:
        record = ledger.record(number)
        settled = record is None or record.state is C.SETTLED
        require(settled, Refusal.NOT_ALLOWED, f"checkpoint {number} is not settled")
    return _drop(ledger, set(event.numbers))


def _accept(ledger: Ledger, event: Accept) -> Ledger:
    _fence(ledger, event.authority, event.fence)
    used = any((a.nonce, a.reason) == (event.nonce, event.reason) for a in ledger.acceptances)
    require(not used, Refusal.ALREADY_ACCEPTED, f"{event.reason} was accepted with nonce {event.nonce}")
    sinks, decided = dict(ledger.sinks), ledger.decided
    for sink, view in event.views.items():
        entry = sinks.get(sink) or SinkEntry(since=decided + 1)
        sinks[sink] = replace(entry, evidence=view.evidence, target=view.target)
        decided = max(decided, view.evidence)  # numbers only grow: the next one comes after the target's
    ledger = replace(
        ledger,
        decided=decided,
        firsts=(*ledger.firsts[:-1], decided + 1) if decided > ledger.decided else ledger.firsts,
        sinks=sinks,
        last=None if event.rebase else ledger.last,
        aborts=tuple(replace(a, accepted=a.accepted or event.reason == "Aborted") for a in ledger.aborts),
        acceptances=(*ledger.acceptances, Acceptance(event.nonce, event.reason, event.detail)),
    )
    ledger = replace(ledger, records=tuple(_tried_again(record, event) for record in ledger.records))
    for number, sink in event.lost:
        ledger = _overrule(ledger, number, sink, P.GIVEN_UP)
    for number, sink in event.landed:
        ledger = _overrule(ledger, number, sink, P.COMMITTED)
    return ledger


def _tried_again(record: Record, event: Accept) -> Record:
    """What is held for the very disagreement that ends with the target's view being taken over is tried again."""

    def retried(sink: str, part: Part) -> Part:
        held = (part.state, part.reason) == (P.HELD, event.reason) and sink in event.views
        return replace(part, state=P.IN_DOUBT) if held and record.state is C.DECIDED else part

    return replace(record, parts={sink: retried(sink, part) for sink, part in record.parts.items()})


def _overrule(ledger: Ledger, number: int, sink: str, state: PartState) -> Ledger:
    """A person's word on a part that the target cannot speak for."""
    record, part = _find(ledger, number, sink)
    allowed = record.state is C.DECIDED and part.state in (P.HELD, P.IN_DOUBT)
    require(allowed, Refusal.NOT_ALLOWED, f"a part {part.state} in {record.state} needs nobody's word")
    parts = {**record.parts, sink: replace(part, state=state, done=())}
    entry = ledger.sinks[sink]
    if state is P.COMMITTED:
        entry = _credited(entry, number, part)
    ledger = replace(_put(ledger, replace(record, parts=parts)), sinks={**ledger.sinks, sink: entry})
    return _settle(ledger, number)


def _fence(ledger: Ledger, authority: Authority, fence: int) -> None:
    if authority is Authority.TOKEN:
        require(fence == ledger.token, Refusal.STALE_TOKEN, f"token {fence} is not {ledger.token}")
    else:
        require(fence == ledger.epoch, Refusal.STALE_EPOCH, f"epoch {fence} is not {ledger.epoch}")


def _find(ledger: Ledger, number: int, sink: str) -> tuple[Record, Part]:
    record = ledger.record(number)
    if record is None or sink not in record.parts:
        raise Refused(Refusal.UNKNOWN_PART, f"checkpoint {number} of {sink} is not on record")
    return record, record.parts[sink]


def _put(ledger: Ledger, record: Record) -> Ledger:
    return replace(ledger, records=tuple(record if r.number == record.number else r for r in ledger.records))


def _drop(ledger: Ledger, numbers: set[int]) -> Ledger:
    """Take records out; what people want to know of them stays for a while."""
    aborted = {r.number for r in ledger.records for a in ledger.aborts if a.first <= r.number <= a.last}
    settled = [Settled.of(r, r.number in aborted) for r in ledger.records if r.number in numbers]
    history = sorted([*ledger.history, *settled], key=lambda entry: entry.number)[-HISTORY_MAX:]
    kept = tuple(r for r in ledger.records if r.number not in numbers)
    return replace(ledger, records=kept, history=tuple(history))


def _map_parts(ledger: Ledger, change: Callable[[Record, Part], Part]) -> Ledger:
    records = tuple(
        replace(record, parts={sink: change(record, part) for sink, part in record.parts.items()})
        for record in ledger.records
    )
    return replace(ledger, records=records)


def _has_objects(record: Record) -> bool:
    """Whether payload objects lie beside the ledger for it."""
    return bool(record.superseded) or any(p.payload and p.payload.pointer for p in record.parts.values())


_HANDLERS: Mapping[type[Any], Callable[[Ledger, Any], Ledger]] = {
    RaiseEpoch: _raise_epoch,
    ClaimEpoch: _claim_epoch,
    RaiseToken: _raise_token,
    NoteRecovered: _note_recovered,
    Decide: _decide,
    Report: _report,
    Release: _release,
    BeginAbort: _begin_abort,
    Forget: _forget,
    Accept: _accept,
}
