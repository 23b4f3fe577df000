"""The driver's shell around the protocol: claim, start check, back-pressure, staging, lineage, decision.

`sinkruntime.spark` (and the simulator) call `start` once and `checkpoint` for each batch, one at a time. Whatever it
raises must end the process: a driver that is fenced or in doubt never goes on. After a decision was sent it removes
nothing, ever; it never commits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sinkruntime.coordinator.wishes import ABANDON_PENDING, IN_DOUBT, Wishes, overrule
from sinkruntime.crashpoints import reached
from sinkruntime.driver.staging import Assignment, Staging, Written, check_lineage
from sinkruntime.environment import Environment
from sinkruntime.errors import Fenced, Held, InDoubt, StartRefused
from sinkruntime.ledger.change import change, patiently, read
from sinkruntime.ledger.payloads import Item, inline_left, load_payload, pack, store_payloads
from sinkruntime.ledger.store import LedgerStore, Stored
from sinkruntime.protocol.events import (
    FENCING,
    Accept,
    ClaimEpoch,
    Decide,
    Event,
    Refusal,
    Refused,
    TargetView,
)
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, Part, PartState, Payload, Position, Record
from sinkruntime.protocol.start import (
    ABOUT_TARGETS,
    ADVICE,
    REBASE,
    Disagreement,
    SourceView,
    StartReason,
    Verdict,
    check,
    judge_batch,
)

log = logging.getLogger(__name__)

Views = Callable[[], Awaitable[Mapping[str, TargetView]]]
Stage = Callable[[Assignment], Awaitable[Staging]]
_Result = TypeVar("_Result")

#: A batch whose staged data would expire too soon is staged again, so often.
STAGINGS_MAX = 3

#: How often the ledger is looked at without a hint while the driver waits.
LOOK_SECONDS = 10.0

#: How long a driver that is done waits for what its last commits left to be removed.
TIDY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What a driver is told. `authority` has every sink of the job, and under whose word it is committed."""

    epoch: int
    claimant: str  # this process, like no other
    revision: str
    authority: Mapping[str, Authority]
    max_pending: int = 4
    commit_timeout_seconds: float = 60.0
    patience_seconds: float = 600.0  # how long an unreachable ledger is waited for
    nonce: int = 0  # of `recovery`
    accept: frozenset[str] = frozenset()
    attended: bool = True  # somebody may speak on what is stuck while this driver runs
    targets: Mapping[str, str] = field(default_factory=dict)  # identities of the targets, where they have one


class Driver:
    """See the module."""

    def __init__(self, store: LedgerStore, settings: DriverSettings, environment: Environment) -> None:
        self._store = store
        self._settings = settings
        self._environment = environment
        self._targets = dict(settings.targets)

    async def claim(self) -> None:
        """Claim the epoch for this process; raises `Fenced` where another process has it, or a newer one is raised."""
        event = ClaimEpoch(self._settings.epoch, self._settings.claimant)
        await self._change(lambda ledger: None if ledger.claim == self._settings.claimant else event)

    async def start(self, source: SourceView, views: Views) -> None:
        """Wait until older epochs are committed and recovered, then compare source, ledger and targets.

        `views` asks the targets; it is called after the wait. Raises `StartRefused` with the first disagreement that
        `recovery.accept` does not cover, and for a held checkpoint of an older epoch.
        """
        await self._settled(views)
        seen = await views()
        self._targets.update({sink: view.target for sink, view in seen.items() if view.target})
        agreed: set[StartReason] = set()  # each is accepted once
        while True:
            ledger = (await self._read()).ledger
            found = next((found for found in check(ledger, source, seen) if found.reason not in agreed), None)
            if found is None:
                return
            if found.reason not in self._settings.accept:
                raise StartRefused(found.reason, found.message, found.advice)
            await self.accept(found)
            agreed.add(found.reason)
            source = replace(source, marker=ledger.ledger_id)  # whoever goes on takes the location over

    async def accept(self, found: Disagreement) -> None:
        """Put on record that `recovery.accept` covers a disagreement; raises `StartRefused` where its nonce is spent.

        `start` does it by itself; a caller that has found one before the start check does it here.
        """
        settings = self._settings
        # A word on targets speaks of what one start has found there: the next one's finding needs another.
        detail = f"{found.message} (epoch {settings.epoch})" if found.sinks else found.message
        event = Accept(
            Authority.EPOCH,
            settings.epoch,
            settings.nonce,
            found.reason,
            detail,
            rebase=found.reason in REBASE,
            views=found.sinks,
        )
        try:
            await self._change(lambda ledger: None if _accepted(ledger, event) else event)
        except Refused as refused:
            advice = f"look at it again, then accept with recovery.nonce above {settings.nonce}"
            raise StartRefused(found.reason, f"{found.message}; {refused.message}", advice) from refused
        log.warning("%s accepted with nonce %d: %s", found.reason, settings.nonce, found.message)

    async def _settled(self, views: Views) -> None:
        """Until nothing of an older epoch is pending and `recover` has run in this one."""
        authorities = set(self._settings.authority.values())
        stored = await self._read()
        while True:
            ledger = stored.ledger
            self._check_epoch(ledger)
            older = [record for record in ledger.pending if record.epoch < self._settings.epoch]
            if not older and all(ledger.recovered.get(a, 0) >= self._settings.epoch for a in authorities):
                return
            disputed = _disputed(older, ledger, self._settings)
            for reason, sinks in disputed.items():
                seen = await views()
                message = f"checkpoints of {', '.join(sinks)} are held for it"
                held = Disagreement(reason, message, ADVICE[reason], {s: seen[s] for s in sinks if s in seen})
                await self.accept(held)
            stored = await (self._read() if disputed else self._next(stored))

    async def checkpoint(self, position: Position, stage: Stage, batch: str = "") -> bool:
        """Stage and decide one batch. True: decided; False: it was decided already, and is skipped.

        `stage` makes the rows of the batch staged in every sink; it is called after a slot is free, and again where
        what it staged would expire too soon. `batch` is the identity of a batch job. Raises `StartRefused` for a batch
        that does not follow, `Fenced`, `InDoubt`, and whatever `stage` raises; then nothing is decided.
        """
        stored = await self._slot(await self._read(), position, batch)
        if stored is None:
            return False
        settings = self._settings
        for _ in range(STAGINGS_MAX):
            ledger = stored.ledger
            assignment = Assignment(ledger.decided + 1, settings.epoch, await self._states(ledger))
            staging = await stage(assignment)
            check_lineage(assignment, staging, settings.authority)
            staged = self._environment.clock.monotonic()
            event = await self._prepare(assignment, staging, position, batch)
            try:
                await self._decide(event, staged)
            except Refused as refused:
                if refused.refusal is not Refusal.EXPIRES_TOO_SOON:
                    raise self._foreign(refused) from refused
                log.warning("batch %d is staged again: %s", position.batch_id, refused.message)
                stored = await self._read()
                continue
            return True
        raise InDoubt(
            f"batch {position.batch_id} was staged {STAGINGS_MAX} times, and each time would have expired too soon",
            "raise the target's timeout, or lower commit.timeout",
        )

    async def _slot(self, stored: Stored, position: Position, batch: str) -> Stored | None:
        """The back-pressure: until fewer than `maxPending` checkpoints are pending. None: the batch is decided."""
        while True:
            ledger = stored.ledger
            self._check_epoch(ledger)
            if batch in ledger.batches:
                return None
            verdict = Verdict.RUN if batch else judge_batch(ledger, position)
            if verdict is Verdict.SKIP:
                return None
            if verdict is not Verdict.RUN:
                reason = StartReason.TARGET_AHEAD_OF_SOURCE
                raise StartRefused(reason, verdict, "stop the job, restore the checkpoint location, and start again")
            if len(ledger.pending) < self._settings.max_pending:
                return stored
            if not self._settings.attended and (unable := stuck(ledger)):
                raise _waits(*unable[0])
            stored = await self._next(stored)

    async def _prepare(self, assignment: Assignment, staging: Staging, position: Position, batch: str) -> Decide:
        """The decision record; payloads are durable when it returns."""
        settings = self._settings
        committables: dict[str, list[Item]] = {sink: [] for sink in settings.authority}
        states: dict[str, list[Item]] = {}
        rows = dict.fromkeys(settings.authority, 0)
        for result in sorted(staging.results, key=lambda result: (result.sink, result.lineage.subtask)):
            rows[result.sink] += result.rows
            if result.committable is not None:
                committables[result.sink].append((result.lineage, result.committable))
            states.setdefault(result.sink, []).extend((result.lineage, state) for state in result.states)
        packed = {f"c:{sink}": pack(items) for sink, items in committables.items() if items}
        packed |= {f"s:{sink}": pack(items) for sink, items in states.items() if items}
        reached("S7", "before")
        left = inline_left((await self._read()).ledger)
        payloads = await self._patiently(lambda: store_payloads(self._store, settings.epoch, packed, left))
        reached("S7", "after")
        lives = [r.remaining_life_seconds for r in staging.results if r.remaining_life_seconds is not None]
        parts = {
            sink: Part(payloads.get(f"c:{sink}"), rows[sink], PartState.PENDING, authority)
            for sink, authority in settings.authority.items()
        }
        record = Record(
            number=assignment.checkpoint,
            record_id=self._environment.identity(),
            epoch=settings.epoch,
            revision=settings.revision,
            position=position,
            parts=parts,
            decided_ms=int(self._environment.clock.wall() * 1000),
        )
        return Decide(
            record,
            settings.claimant,
            settings.max_pending,
            settings.commit_timeout_seconds,
            min(lives, default=None),
            _states_of(payloads),
            self._targets,
            batch,
        )

    async def _decide(self, event: Decide, staged: float) -> None:
        """The decision: sent until it is seen in the ledger, or refused. What can expire ages since `staged`."""
        record, life = event.record, event.remaining_life_seconds

        def decide(ledger: Ledger) -> Event | None:
            if ledger.last is not None and ledger.last.record_id == record.record_id:
                return None
            if life is None:
                return event
            return replace(event, remaining_life_seconds=life - (self._environment.clock.monotonic() - staged))

        reached("S8", "before")
        await change(self._store, decide, self._environment, self._settings.patience_seconds)
        reached("S8", "after")
        log.info(
            "checkpoint %d is decided (epoch %d, batch %d, %d rows)",
            record.number,
            record.epoch,
            record.position.batch_id,
            max((part.rows for part in record.parts.values()), default=0),
            extra={"sinkjob": {"checkpoint": record.number, "batch": record.position.batch_id}},
        )

    async def _states(self, ledger: Ledger) -> dict[str, Sequence[Written]]:
        """The writer states that the last decision left, by sink."""
        kept: Mapping[str, Payload] = ledger.last.states if ledger.last else {}

        async def load(sink: str) -> list[Written]:
            items = await self._patiently(lambda: load_payload(self._store, kept[sink]))
            return [state for _, state in items]

        return {sink: await load(sink) for sink in kept}

    async def drained(self) -> Ledger:
        """Wait until nothing is pending, or a part is stuck (see `stuck`); returns the ledger as it is then.

        What is committed is then waited for until it is cleaned, but not for long: the next run would do it, too.
        """
        stored = await self._read()
        tidy_until = None
        while True:
            ledger = stored.ledger
            self._check_epoch(ledger)
            if stuck(ledger) or not ledger.records:
                return ledger
            if not ledger.pending:
                now = self._environment.clock.monotonic()
                tidy_until = tidy_until or now + TIDY_SECONDS
                if now >= tidy_until:
                    return ledger
            stored = await self._next(stored)

    async def _change(self, make_event: Callable[[Ledger], Event | None]) -> Stored:
        try:
            return await change(self._store, make_event, self._environment, self._settings.patience_seconds)
        except Refused as refused:
            if refused.refusal in FENCING:
                raise self._foreign(refused) from refused
            raise

    def _foreign(self, refused: Refused) -> Fenced | InDoubt:
        """A refused decision: fenced, or a ledger that is not as this driver left it."""
        if refused.refusal in FENCING or refused.refusal is Refusal.NOT_NEXT:
            return Fenced(f"driver of epoch {self._settings.epoch}: {refused}")
        return InDoubt(f"the decision was refused: {refused}", "start the job again: the start check tells more")

    def _check_epoch(self, ledger: Ledger) -> None:
        if (ledger.epoch, ledger.claim) != (self._settings.epoch, self._settings.claimant):
            raise Fenced(f"driver of epoch {self._settings.epoch}: the ledger is at {ledger.epoch} ({ledger.claim})")

    async def _patiently(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        return await patiently(
            work, "payloads could not be read or written", self._environment, self._settings.patience_seconds
        )

    async def _read(self) -> Stored:
        return await read(self._store, self._environment, self._settings.patience_seconds)

    async def _next(self, stored: Stored) -> Stored:
        await self._store.wait_changed(stored.version, LOOK_SECONDS)
        return await self._read()


def stuck(ledger: Ledger) -> list[tuple[int, str, Part]]:
    """The pending parts that wait for a person: held ones, and those of which the target says that it cannot tell.

    Each as checkpoint, sink, part. What was held when a person aborted it is being fenced, and waits for nobody.
    """
    return [
        (record.number, sink, part)
        for record in ledger.pending
        for sink, part in record.parts.items()
        if (part.state is PartState.HELD and record.state is CheckpointState.DECIDED)
        or (part.state is PartState.IN_DOUBT and part.reason == IN_DOUBT)
    ]


def _waits(number: int, sink: str, part: Part) -> Held | InDoubt:
    """The error that ends a run which cannot go on before a person speaks."""
    advice = "mend the cause and start again, or accept what it names, with a new recovery.nonce"
    if part.state is PartState.IN_DOUBT:
        return InDoubt(f"checkpoint {number} of sink {sink} is in doubt: {part.message}", advice)
    return Held(part.reason, f"checkpoint {number} of sink {sink} is held: {part.message}", advice)


def _states_of(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    return {name[2:]: payload for name, payload in payloads.items() if name.startswith("s:")}


def _accepted(ledger: Ledger, event: Accept) -> bool:
    """Whether this very acceptance is on record: its answer was lost."""
    return any((a.nonce, a.reason, a.detail) == (event.nonce, event.reason, event.detail) for a in ledger.acceptances)


def _disputed(records: Sequence[Record], ledger: Ledger, settings: DriverSettings) -> dict[StartReason, list[str]]:
    """Sinks with held parts about whose target a person has spoken, by reason.

    Any other held checkpoint of an older epoch stops the start, for nobody commits after it; a person's word that is on
    record already has not helped, and one to abandon is waited for only where the coordinator can follow it.
    """
    abandon = Wishes(settings.nonce, settings.accept & {ABANDON_PENDING})
    if overrule(ledger, Authority.TOKEN, ledger.token, abandon) is not None:
        return {}
    disputed: dict[StartReason, list[str]] = {}
    taken = {a.reason for a in ledger.acceptances if a.nonce == settings.nonce}
    unable = stuck(ledger)
    for record in records:
        for sink, part in record.parts.items():
            if (record.number, sink, part) not in unable:
                continue
            if part.reason not in settings.accept or part.reason in taken:
                raise _waits(record.number, sink, part)
            if part.reason in ABOUT_TARGETS:
                disputed.setdefault(StartReason(part.reason), []).append(sink)
    return disputed
