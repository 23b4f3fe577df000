"""The invariants I1 to I7 on random histories of the pure machine: several driver runs and coordinators, each of
which may be out of date, targets with evidence and fences, answers that get lost, aborts.

The ledger here is a value that each event replaces, as a compare-and-swap would; the shells have their own simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sinkruntime.protocol.events import (
    FENCING,
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
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.protocol.ledger import Part, Position, Record
from sinkruntime.protocol.machine import outstanding, step
from sinkruntime.protocol.position import NOWHERE
from sinkruntime.protocol.start import Verdict, judge_batch
from tests.protocol.build import NEW, TOKEN, offset

K = OutcomeKind
SINKS = ("a", "b")
pick = st.integers(0, 10**6)
often = st.sampled_from([True, True, True, False])
recent = st.sampled_from([0, 0, 0, 1, 2])  # 0: the newest actor; the others may not know that they are fenced


@dataclass
class Target:
    """One sink's target: what readers see, in order; the fence; the commits that are on their way."""

    visible: list[tuple[int, str]] = field(default_factory=list)  # (checkpoint, record id)
    fences: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def evidence(self) -> int:
        return self.visible[-1][0] if self.visible else 0

    def publish(self, record: Record, previous: int, order: tuple[int, int]) -> K:
        """The target's own atomic commit: it checks fence and predecessor."""
        if (record.number, record.record_id) in self.visible:
            return K.COMMITTED
        if order <= self.fences.get(record.number, (0, 0)) or self.evidence != previous:
            return K.REFUSED
        self.visible.append((record.number, record.record_id))
        return K.COMMITTED


@dataclass(frozen=True)
class Flight:
    """A commit that a coordinator has sent and that has not arrived yet."""

    token: int
    record: Record
    sink: str
    previous: int
    order: tuple[int, int]


@dataclass
class Run:
    """A driver process: what it has staged and not yet seen decided."""

    epoch: int
    name: str
    waiting: Decide | None = None


class Protocol(RuleBasedStateMachine):
    """Actors send events from what they knew when they last looked."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = NEW
        self.targets = {sink: Target() for sink in SINKS}
        self.runs: list[Run] = []
        self.tokens: list[int] = []
        self.flights: list[Flight] = []
        self.staged: set[tuple[int, int, str]] = set()  # (checkpoint, epoch, record id)
        self.decided: dict[int, Record] = {}
        self.aborted: set[int] = set()
        self.serial = count(1)
        self.rounds = count(1)

    def send(self, event: Event) -> Refusal | None:
        """One compare-and-swap; nothing changes where it is refused."""
        before = self.ledger
        try:
            after, effects = step(before, event)
        except Refused as refused:
            assert self.ledger == before
            return refused.refusal
        assert set(effects) <= set(outstanding(after))
        assert (after.epoch, after.token, after.decided) >= (before.epoch, before.token, before.decided)
        assert after.firsts[: len(before.firsts)] == before.firsts, "ranges are kept for ever"
        self.ledger = after
        for abort in after.aborts:
            self.aborted |= set(range(abort.first, abort.last + 1))
        return None

    # --- driver runs

    @initialize()
    def the_job_starts(self) -> None:
        self.an_epoch_is_raised()
        self.a_process_claims(0)
        self.a_token_is_raised()
        self.recover(1, final=False)

    @rule(in_order=often)
    def an_epoch_begins(self, in_order: bool) -> None:
        self.an_epoch_is_raised()
        if in_order:
            self.a_process_claims(0)
            self.recover(self.ledger.token, final=False)

    def an_epoch_is_raised(self) -> None:
        assert self.send(RaiseEpoch(self.ledger.epoch + 1)) is None
        self.runs.append(Run(self.ledger.epoch, f"process-{next(self.serial)}"))

    @precondition(lambda self: self.runs)
    @rule(which=recent)
    def a_process_claims(self, which: int) -> None:
        run = self.runs[-1 - which % min(3, len(self.runs))]
        refusal = self.send(ClaimEpoch(run.epoch, run.name))
        assert (refusal is None) == (run.epoch == self.ledger.epoch and self.ledger.claim == run.name)

    @precondition(lambda self: self.runs)
    @rule(which=recent)
    def a_second_process_starts_under_the_same_epoch(self, which: int) -> None:
        twin = Run(self.runs[-1 - which % len(self.runs)].epoch, f"process-{next(self.serial)}")
        self.runs.insert(0, twin)

    @precondition(lambda self: self.runs)
    @rule(which=recent, at_once=often)
    def a_driver_stages(self, which: int, at_once: bool) -> None:
        run = self.runs[-1 - which % len(self.runs)]
        last = self.ledger.last.position if self.ledger.last else Position("query-1", -1, NOWHERE, NOWHERE)
        batch = last.batch_id + 1
        place = Position("query-1", batch, last.end, offset(batch))
        assert judge_batch(self.ledger, place) is Verdict.RUN
        number, identity = self.ledger.decided + 1, f"record-{next(self.serial)}"
        record = Record(number, identity, run.epoch, "rev-1", place, {sink: Part() for sink in SINKS})
        self.staged.add((number, run.epoch, identity))
        run.waiting = Decide(record, run.name, max_pending=3, commit_timeout_seconds=60.0)
        if at_once:
            self.decide(run, answered=True)

    @precondition(lambda self: self.tokens)
    @rule(batches=st.integers(1, 3), finished=st.booleans())
    def batches_flow(self, batches: int, finished: bool) -> None:
        """The newest driver and coordinator do what they should, as far as the ledger lets them."""
        if any(not abort.accepted for abort in self.ledger.aborts):
            self.send(Accept(TOKEN, self.ledger.token, next(self.serial), "Aborted"))
        self.a_process_claims(0)
        self.recover(self.ledger.token, final=False)
        for _ in range(batches):
            self.a_driver_stages(0, at_once=True)
            self.nothing_goes_wrong_for_a_while(8 if finished else 2)

    @precondition(lambda self: any(run.waiting for run in self.runs))
    @rule(which=pick, answered=st.booleans())
    def a_driver_decides(self, which: int, answered: bool) -> None:
        waiting = [run for run in self.runs if run.waiting]
        self.decide(waiting[which % len(waiting)], answered)

    def decide(self, run: Run, answered: bool) -> None:
        event = run.waiting
        assert event is not None
        before = self.ledger
        refusal = self.send(event)
        if refusal is None:
            assert (run.epoch, run.name) == (before.epoch, before.claim), "I4"
            assert event.record.number not in self.decided
            self.decided[event.record.number] = event.record
            if not answered:
                assert self.send(event) is Refusal.NOT_NEXT, "its own record: sent again it lands once"
            run.waiting = None
        elif run.epoch < before.epoch:
            assert refusal in FENCING
            run.waiting = None

    # --- coordinators

    @rule()
    def a_token_is_raised(self) -> None:
        token = self.ledger.token + 1
        assert self.send(RaiseToken(token, f"coordinator-{token}")) is None
        self.tokens.append(token)

    def working(self, which: int) -> int:
        """The token of one of the last coordinators, who may not know that it is fenced."""
        return self.tokens[-1 - which % len(self.tokens)]

    def owed(self, *actions: Action) -> list[Effect]:
        return [effect for effect in outstanding(self.ledger) if effect.action in actions and effect.authority is TOKEN]

    def told(self, token: int, effect: Effect, kind: K) -> None:
        outcome = Outcome(effect.number, effect.sink, kind, evidence=kind is K.COMMITTED)
        refusal = self.send(Report(TOKEN, token, (outcome,)))
        if token < self.ledger.token:
            assert refusal is Refusal.STALE_TOKEN, "I4"

    @precondition(lambda self: self.tokens)
    @rule(which=recent, what=pick)
    def a_coordinator_works(self, which: int, what: int) -> None:
        """Probe, and send a commit where the target has none; looks and fences need no second step."""
        token = self.working(which)
        owed = self.owed(Action.COMMIT, Action.PROBE, Action.FENCE, Action.HOLD)
        if owed:
            self.act(token, owed[what % len(owed)])

    def act(self, token: int, effect: Effect) -> None:
        record, target = self.ledger.record(effect.number), self.targets[effect.sink]
        assert record is not None
        order = (token, next(self.rounds))
        landed = (record.number, record.record_id) in target.visible
        if landed and effect.action is not Action.COMMIT:
            self.told(token, effect, K.COMMITTED)
        elif effect.action is Action.FENCE:
            target.fences[record.number] = max(order, target.fences.get(record.number, (0, 0)))
            self.told(token, effect, K.FENCED)
        elif effect.action is not Action.HOLD and token == self.ledger.token:
            previous = self.ledger.sinks[effect.sink].evidence
            self.flights.append(Flight(token, record, effect.sink, previous, order))

    @precondition(lambda self: self.tokens)
    @rule(rounds=st.integers(1, 8))
    def nothing_goes_wrong_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            owed = self.owed(Action.COMMIT, Action.PROBE, Action.FENCE, Action.CLEAN, Action.DISCARD)
            if owed:
                self.heal(owed[0])

    @precondition(lambda self: self.flights)
    @rule(which=pick, answer=st.sampled_from(["known", "lost", "late", "refused"]))
    def a_commit_arrives(self, which: int, answer: str) -> None:
        flight = self.flights.pop(which % len(self.flights))
        effect = Effect(Action.COMMIT, flight.record.number, flight.sink)
        if answer == "refused":
            self.told(flight.token, effect, K.REFUSED)
            return
        if answer == "late":
            self.told(flight.token, effect, K.UNKNOWN)
        made = self.targets[flight.sink].publish(flight.record, flight.previous, flight.order)
        if answer != "late":
            self.told(flight.token, effect, made if answer == "known" else K.UNKNOWN)

    @precondition(lambda self: self.tokens)
    @rule(which=recent)
    def held_parts_are_released(self, which: int) -> None:
        self.send(Release(TOKEN, self.working(which)))

    @precondition(lambda self: self.tokens and self.ledger.pending)
    @rule(which=recent, first=pick)
    def a_person_aborts(self, which: int, first: int) -> None:
        pending = self.ledger.pending
        self.send(BeginAbort(self.working(which), pending[first % len(pending)].number, "ann", "why"))

    @precondition(lambda self: self.tokens)
    @rule(which=recent, what=pick)
    def something_is_cleaned(self, which: int, what: int) -> None:
        owed = self.owed(Action.CLEAN, Action.DISCARD)
        if owed:
            self.clean(self.working(which), owed[what % len(owed)])

    def clean(self, token: int, effect: Effect) -> None:
        """Remove what lies staged under (checkpoint, epoch); the last sink's clean-up takes the shared artefact."""
        record = self.ledger.record(effect.number)
        assert record is not None
        self.told(token, effect, K.CLEANED)
        if self.ledger.record(effect.number) is None:
            self.staged -= {key for key in self.staged if key[:2] == (record.number, record.epoch)}

    @precondition(lambda self: self.tokens)
    @rule(which=recent, final=st.booleans())
    def recovery_runs(self, which: int, final: bool) -> None:
        self.recover(self.working(which), final)

    def recover(self, token: int, final: bool) -> None:
        garbage = Garbage.of(self.ledger)
        self.staged = {
            (number, epoch, identity)
            for number, epoch, identity in self.staged
            if not (garbage.undecided(number, epoch) or garbage.settled(number, epoch))
        }
        self.send(NoteRecovered(TOKEN, token, self.ledger.epoch, final))

    @precondition(lambda self: self.tokens)
    @rule(which=recent)
    def payloads_are_removed(self, which: int) -> None:
        numbers = tuple(effect.number for effect in self.owed(Action.REMOVE_PAYLOADS))
        self.send(Forget(self.working(which), numbers))

    # --- invariants

    @invariant()
    def each_decided_checkpoint_is_visible_at_most_once_and_in_order(self) -> None:  # I1
        for target in self.targets.values():
            numbers = [number for number, _ in target.visible]
            assert numbers == sorted(set(numbers))

    @invariant()
    def nothing_undecided_or_aborted_is_visible(self) -> None:  # I2
        for target in self.targets.values():
            for number, identity in target.visible:
                assert self.decided[number].record_id == identity
                assert number not in self.aborted

    @invariant()
    def no_decided_checkpoint_is_lost(self) -> None:  # I3
        for number in self.decided:
            everywhere = all(number in dict(target.visible) for target in self.targets.values())
            assert self.ledger.record(number) is not None or everywhere or number in self.aborted

    @invariant()
    def the_numbers_have_no_gap(self) -> None:  # I5
        assert sorted(self.decided) == list(range(1, self.ledger.decided + 1))

    @invariant()
    def what_will_be_committed_is_still_there(self) -> None:  # I7
        for record in self.ledger.pending:
            assert (record.number, record.epoch, record.record_id) in self.staged

    def teardown(self) -> None:
        """I6 and the end of I7: faults stop; within bounded steps nothing is pending, and no garbage is left."""
        while self.flights:
            flight = self.flights.pop()
            self.targets[flight.sink].publish(flight.record, flight.previous, flight.order)
        self.runs.clear()
        assert self.send(RaiseEpoch(self.ledger.epoch + 1)) is None
        self.a_token_is_raised()
        assert self.send(Release(TOKEN, self.ledger.token)) is None
        for _ in range(200):
            owed = self.owed(Action.COMMIT, Action.PROBE, Action.FENCE, Action.CLEAN, Action.DISCARD)
            if not owed:
                break
            self.heal(owed[0])
        assert self.ledger.records == ()
        self.recover(self.ledger.token, final=True)
        assert self.staged == set()
        for target in self.targets.values():
            seen = [number for number, _ in target.visible]
            assert seen == [number for number in sorted(self.decided) if number not in self.aborted]

    def heal(self, effect: Effect) -> None:
        token = self.ledger.token
        if effect.action in (Action.CLEAN, Action.DISCARD):
            self.clean(token, effect)
            return
        before = len(self.flights)
        self.act(token, effect)
        if len(self.flights) > before:
            flight = self.flights.pop()
            made = self.targets[flight.sink].publish(flight.record, flight.previous, flight.order)
            assert made is K.COMMITTED, "a commit of the present tenure on what it has seen is never turned down"
            self.told(token, effect, made)


Protocol.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestProtocol = Protocol.TestCase
