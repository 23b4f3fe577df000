"""Rules taken out one at a time, to show that the simulator would notice: those that live in the protocol's tables.

`__main__` applies one in a fresh process and runs seeds until it is caught. Each is what a careless change would do to
the real code; `mutations_shells` has those of driver, coordinator, ledger stores and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from sinkruntime.coordinator import coordinator
from sinkruntime.driver import driver
from sinkruntime.protocol import decision, machine, start
from sinkruntime.protocol.events import Action, BeginAbort, Effect, Outcome, OutcomeKind, Refusal, Report
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.protocol.ledger import Authority, CheckpointState, Ledger, PartState, Position, Record
from sinkruntime.protocol.start import SourceView, Verdict
from sinkruntime.protocol.table import OWED, Fact
from tests.simulation.teeth import mutation, put

C, P, K = CheckpointState, PartState, OutcomeKind


def never(module: ModuleType, *refusals: Refusal) -> None:
    """The module does not refuse for these reasons any more."""
    plain = module.require

    def require(condition: bool, refusal: Refusal, message: str) -> None:
        plain(condition or refusal in refusals, refusal, message)

    put(module, "require", require)


def row(table: str, key: Any, value: Any) -> None:
    """Another value in one of the machine's tables; None takes the row out."""
    rows = dict(getattr(machine, table))
    rows[key] = value
    if value is None:
        del rows[key]
    put(machine, table, rows)


@mutation
def epoch_in_the_swap() -> None:
    """A decision of an older driver run is taken."""
    never(decision, Refusal.STALE_EPOCH, Refusal.NOT_CLAIMED)


@mutation
def epoch_is_one_processs() -> None:
    """Two processes of one epoch may both claim it, and decide."""
    never(machine, Refusal.ALREADY_CLAIMED)
    never(decision, Refusal.NOT_CLAIMED)
    put(driver.Driver, "_check_epoch", lambda self, ledger: None)


@mutation
def number_is_next() -> None:
    """A decision may have any number."""
    never(decision, Refusal.NOT_NEXT)


@mutation
def offsets_in_the_skip_rule() -> None:
    """The batch's number says whether it is decided already, as a naive sink has it."""
    _same_rows(lambda mine, other: (mine.query_id, mine.batch_id) == (other.query_id, other.batch_id))


@mutation
def query_id_in_the_skip_rule() -> None:
    """A batch of another query with the same number and offsets counts as the same."""
    _same_rows(
        lambda mine, other: (mine.batch_id, mine.start, mine.end) == (other.batch_id, other.start, other.end)
    )  # fmt: skip


def _same_rows(same: Callable[[Position, Position], bool]) -> None:
    put(Position, "same_rows", same)


@mutation
def query_must_be_the_same() -> None:
    """A batch of another query is decided as if it went on where the last one ended."""
    never(decision, Refusal.QUERY_CHANGED, Refusal.OLDER_BATCH, Refusal.NOT_PREDECESSOR)
    _judge(lambda ledger, position: Verdict.RUN)


@mutation
def batch_follows_the_last() -> None:
    """A batch need not start where the last decision ended."""
    never(decision, Refusal.OLDER_BATCH, Refusal.NOT_PREDECESSOR)
    skip = start.judge_batch
    _judge(lambda ledger, position: Verdict.SKIP if skip(ledger, position) is Verdict.SKIP else Verdict.RUN)


def _judge(judge: Callable[[Ledger, Position], Verdict | str]) -> None:
    put(driver, "judge_batch", judge)


@mutation
def batch_job_is_decided_once() -> None:
    """A batch job that is started again runs again."""
    never(decision, Refusal.BATCH_DECIDED)
    plain: Any = driver.Driver._slot

    async def slot(self: Any, stored: Any, position: Position, batch: str) -> Any:
        return stored if batch else await plain(self, stored, position, batch)

    put(driver.Driver, "_slot", slot)


@mutation
def epoch_raised_before_cleanup() -> None:
    """Cleaning up, the running epoch counts as over."""

    def of(ledger: Ledger) -> Garbage:
        numbers = frozenset(record.number for record in ledger.records)
        return Garbage(ledger.ledger_id, ledger.epoch + 1, (*ledger.firsts, ledger.decided + 1), numbers)

    put(Garbage, "of", of)


@mutation
def garbage_by_ranges() -> None:
    """What has no record was never decided: so thinks whoever forgets that records leave the ledger."""
    put(Garbage, "undecided", lambda self, number, epoch: epoch < self.epoch and number not in self.unsettled)


@mutation
def token_on_outcomes() -> None:
    """Outcomes of an older coordinator are taken."""
    _no_fence(Authority.TOKEN)


@mutation
def epoch_on_outcomes() -> None:
    """Outcomes of an older driver's coordinator are taken."""
    _no_fence(Authority.EPOCH)


def _no_fence(authority: Authority) -> None:
    plain, check = machine._fence, coordinator.Coordinator._check_tenure

    def fence(ledger: Ledger, spoken: Authority, number: int) -> None:
        if spoken is not authority:
            plain(ledger, spoken, number)

    def check_tenure(self: coordinator.Coordinator, ledger: Ledger) -> None:
        if self._tenure.authority is not authority:
            check(self, ledger)

    put(machine, "_fence", fence)
    put(coordinator.Coordinator, "_check_tenure", check_tenure)


@mutation
def probe_on_takeover() -> None:
    """A new tenure commits what the last one had under way without asking the target."""
    put(machine, "_doubt", lambda ledger, authority: ledger)


@mutation
def unknown_is_not_failed() -> None:
    """An unknown outcome is tried again as if nothing had happened."""
    row("PARTS", (P.PENDING, K.UNKNOWN), P.PENDING)
    row("OWED", (C.DECIDED, P.IN_DOUBT), Action.COMMIT)


@mutation
def refused_is_not_final() -> None:
    """What a target turned down is dropped."""
    row("PARTS", (P.PENDING, K.REFUSED), P.GIVEN_UP)


@mutation
def held_until_released() -> None:
    """What is held is committed again without a word."""
    row("OWED", (C.DECIDED, P.HELD), Action.PROBE)


@mutation
def sink_order() -> None:
    """Checkpoints of one sink are committed side by side."""
    _owe(ordered=False)
    never(machine, Refusal.OUT_OF_ORDER)
    lane = coordinator._lane

    def own_lane(effect: Effect) -> coordinator.Lane:
        found = lane(effect)
        return replace(found, kind=f"commit {effect.number}") if found.kind == "commit" else found

    put(coordinator, "_lane", own_lane)


@mutation
def abort_newest_first() -> None:
    """An abort begins with the oldest checkpoint."""
    _owe(newest=False)


def _owe(ordered: bool = True, newest: bool = True) -> None:
    """`outstanding` without one of its rules."""
    plain = machine.outstanding

    def outstanding(ledger: Ledger) -> Iterator[Effect]:
        owed = list(plain(ledger))
        yield from (effect for effect in owed if newest or effect.action is not Action.FENCE)
        aborting = [record.number for record in ledger.records if record.state is C.ABORTING]
        for record in ledger.records:
            for sink, part in record.parts.items():
                action = OWED.get((record.state, part.state))
                free = action in (Action.COMMIT, Action.PROBE) and not ordered
                free = free or (action is Action.FENCE and not newest and record.number == aborting[0])
                effect = Effect(action or Action.HOLD, record.number, sink, part.authority)
                if free and (effect not in owed or not newest):
                    yield effect

    put(machine, "outstanding", outstanding)
    put(coordinator, "outstanding", outstanding)


@mutation
def max_pending() -> None:
    """Nobody counts the pending checkpoints."""
    never(decision, Refusal.NO_SLOT)
    put(driver.Driver, "_slot", _no_back_pressure(driver.Driver._slot))


@mutation
def slot_before_preparing() -> None:
    """The driver prepares first, and waits for a slot only when it decides."""
    put(driver.Driver, "_slot", _no_back_pressure(driver.Driver._slot))


def _no_back_pressure(plain: Any) -> Any:
    async def slot(self: Any, stored: Any, position: Position, batch: str) -> Any:
        settings = self._settings
        self._settings = replace(settings, max_pending=1_000_000)
        try:
            return await plain(self, stored, position, batch)
        finally:
            self._settings = settings

    return slot


@mutation
def older_ones_first() -> None:
    """The first batch does not wait for what older epochs left pending."""
    never(decision, Refusal.OLDER_PENDING)

    async def settled(self: Any, views: Any) -> None:
        stored = await self._read()
        while any(stored.ledger.recovered.get(a, 0) < self._settings.epoch for a in self._settings.authority.values()):
            self._check_epoch(stored.ledger)
            stored = await self._next(stored)

    put(driver.Driver, "_settled", settled)


@mutation
def recover_before_the_first_batch() -> None:
    """The first batch does not wait for `recover`."""
    never(decision, Refusal.NOT_RECOVERED)

    async def settled(self: Any, views: Any) -> None:
        stored = await self._read()
        while any(record.epoch < self._settings.epoch for record in stored.ledger.pending):
            self._check_epoch(stored.ledger)
            stored = await self._next(stored)

    put(driver.Driver, "_settled", settled)


@mutation
def remaining_life() -> None:
    """Nobody asks whether what is staged will live long enough."""
    never(decision, Refusal.EXPIRES_TOO_SOON)


@mutation
def losers_before_payload() -> None:
    """A committed checkpoint leaves the ledger before its losing attempts are removed."""
    plain = machine._fact
    put(machine, "_fact", lambda record: Fact.ALL_CLEANED if record.state is C.COMMITTED else plain(record))


@mutation
def abort_recorded_before_removal() -> None:
    """Staged data goes as soon as it is fenced, before the abort is on record."""
    row("OWED", (C.ABORTING, P.FENCED), Action.DISCARD)


@mutation
def fence_before_abort() -> None:
    """An abort is recorded at once, without making the target refuse a late commit."""
    plain = machine._HANDLERS[BeginAbort]

    def begin(ledger: Ledger, event: BeginAbort) -> Ledger:
        ledger = plain(ledger, event)
        for record in reversed(ledger.records):
            ours = all(part.authority is Authority.TOKEN for part in record.parts.values())
            if record.state is C.ABORTING and ours:
                parts = {sink: replace(part, state=P.FENCED) for sink, part in record.parts.items()}
                ledger = machine._settle(machine._put(ledger, replace(record, parts=parts)), record.number)
        return ledger

    row("_HANDLERS", BeginAbort, begin)


@mutation
def committed_is_never_aborted() -> None:
    """A checkpoint of which a sink is committed is aborted all the same."""
    put(machine, "_landed", lambda part: False)


@mutation
def landed_lifts_the_abort() -> None:
    """A part that had landed before its fence counts as aborted."""
    row("PARTS", (P.IN_DOUBT, K.COMMITTED), P.FENCED)
    row("PARTS", (P.PENDING, K.COMMITTED), P.FENCED)
    row("PARTS", (P.HELD, K.COMMITTED), P.FENCED)
    plain = machine._take

    def take(ledger: Ledger, outcome: Outcome, event: Report) -> Ledger:
        record = ledger.record(outcome.number)
        if record is None or record.state is not C.ABORTING:
            with_rows(_PLAIN)
            try:
                return plain(ledger, outcome, event)
            finally:
                with_rows(_FENCED)
        return plain(ledger, outcome, event)

    put(machine, "_take", take)


_LANDED = ((P.IN_DOUBT, K.COMMITTED), (P.PENDING, K.COMMITTED), (P.HELD, K.COMMITTED))
_PLAIN = dict.fromkeys(_LANDED, P.COMMITTED)
_FENCED = dict.fromkeys(_LANDED, P.FENCED)


def with_rows(rows: dict[tuple[PartState, OutcomeKind], PartState]) -> None:
    """Set rows of the part table."""
    for pair, state in rows.items():
        row("PARTS", pair, state)


@mutation
def abort_is_accepted_first() -> None:
    """A job goes on after an abort that nobody has accepted."""
    never(decision, Refusal.ABORTED)
    plain: Any = vars(driver)["check"]
    put(driver, "check", lambda *facts: tuple(found for found in plain(*facts) if found.reason != "Aborted"))


@mutation
def start_check_of_targets() -> None:
    """A driver starts whatever the targets say."""
    plain: Any = vars(driver)["check"]
    put(driver, "check", lambda ledger, source, targets: plain(ledger, source, {}))


@mutation
def start_check_of_the_source() -> None:
    """A driver starts whatever lies in the checkpoint location."""
    plain: Any = vars(driver)["check"]

    def check(ledger: Ledger, source: SourceView, targets: Any) -> Iterable[Any]:
        found: Iterable[Any] = plain(replace(ledger, last=None, decided=max(1, ledger.decided)), source, targets)
        return found

    put(driver, "check", check)


@mutation
def a_record_has_all_its_sinks_committed() -> None:
    """A checkpoint counts as committed when one of its sinks is."""
    plain = machine._fact

    def fact(record: Record) -> Fact | None:
        some = any(part.state is P.COMMITTED for part in record.parts.values())
        return Fact.ALL_COMMITTED if record.state is C.DECIDED and some else plain(record)

    put(machine, "_fact", fact)
