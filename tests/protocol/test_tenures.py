"""Epochs, claims, tokens: who may write to the ledger."""

from dataclasses import replace

import pytest

from sinkruntime.protocol.events import (
    Action,
    BeginAbort,
    ClaimEpoch,
    Effect,
    Event,
    Forget,
    NoteRecovered,
    OutcomeKind,
    RaiseEpoch,
    RaiseToken,
    Refusal,
    Release,
    Report,
)
from sinkruntime.protocol.ledger import Authority, Part, PartState
from sinkruntime.protocol.machine import outstanding, step
from tests.protocol.build import (
    EPOCH,
    NEW,
    TOKEN,
    after,
    committed,
    decided,
    decision,
    outcome,
    part_of,
    refused,
    report,
    running,
)


def test_an_epoch_is_raised_by_one_and_unclaimed() -> None:
    ledger, effects = step(NEW, RaiseEpoch(1))
    assert ledger == replace(NEW, epoch=1, firsts=(1,))
    assert effects == (
        Effect(Action.RECOVER, 1, authority=Authority.TOKEN),
        Effect(Action.RECOVER, 1, authority=Authority.EPOCH),
    )


def test_raising_the_epoch_ends_the_range_of_the_one_before() -> None:
    ledger = after(decided(1, 2), RaiseEpoch(2))
    assert (ledger.epoch, ledger.claim, ledger.firsts) == (2, "", (1, 3))
    assert after(ledger, RaiseEpoch(3)).firsts == (1, 3, 3)


@pytest.mark.parametrize("epoch", [0, 2, 4])
def test_an_epoch_is_never_skipped_or_raised_twice(epoch: int) -> None:
    assert refused(after(NEW, RaiseEpoch(1), RaiseEpoch(2)), RaiseEpoch(epoch)) is Refusal.STALE_EPOCH


def test_the_first_process_claims_the_epoch() -> None:
    ledger = after(NEW, RaiseEpoch(1))
    claimed, effects = step(ledger, ClaimEpoch(1, "p"))
    assert claimed == replace(ledger, claim="p")
    assert effects == ()
    assert after(claimed, ClaimEpoch(1, "p")) == claimed, "a claim whose answer was lost is sent again"


def test_a_second_process_cannot_claim_the_epoch() -> None:
    assert refused(after(NEW, RaiseEpoch(1), ClaimEpoch(1, "p")), ClaimEpoch(1, "q")) is Refusal.ALREADY_CLAIMED


def test_an_older_epoch_cannot_be_claimed_any_more() -> None:
    assert refused(after(NEW, RaiseEpoch(1), RaiseEpoch(2)), ClaimEpoch(1, "p")) is Refusal.STALE_EPOCH


def test_a_token_is_raised_by_one_and_names_its_holder() -> None:
    ledger, effects = step(NEW, RaiseToken(1, "pod-a"))
    assert ledger == replace(NEW, token=1, holder="pod-a")
    assert effects == ()


@pytest.mark.parametrize("token", [0, 1, 3])
def test_a_token_is_never_skipped_or_raised_twice(token: int) -> None:
    assert refused(after(NEW, RaiseToken(1, "pod-a")), RaiseToken(token, "pod-b")) is Refusal.STALE_TOKEN


def test_a_new_coordinator_doubts_every_pending_part_of_its_own_authority() -> None:
    sinks = {"a": Part(), "b": Part(authority=EPOCH)}
    ledger = decided(1, 2, sinks=sinks)
    taken = after(ledger, RaiseToken(2, "coordinator-2"))
    states = {(r.number, sink): part.state for r in taken.records for sink, part in r.parts.items()}
    assert states == {
        (1, "a"): PartState.IN_DOUBT,
        (2, "a"): PartState.IN_DOUBT,
        (1, "b"): PartState.PENDING,
        (2, "b"): PartState.PENDING,
    }
    assert part_of(after(ledger, RaiseEpoch(2)), 1, "b").state is PartState.IN_DOUBT
    assert part_of(after(ledger, RaiseEpoch(2)), 1, "a").state is PartState.PENDING


def test_a_takeover_leaves_what_is_known_as_it_is() -> None:
    ledger = after(
        decided(1), report(outcome(1, "a", OutcomeKind.COMMITTED), outcome(1, "b", OutcomeKind.REFUSED, reason="X"))
    )
    assert after(ledger, RaiseToken(2, "coordinator-2")).records == ledger.records


def test_a_takeover_owes_the_same_and_probes_first() -> None:
    ledger = committed(decided(1, 2), 1, "a")
    before = [(e.action, e.number, e.sink) for e in outstanding(ledger) if e.action is not Action.RECOVER]
    taken = after(ledger, RaiseToken(2, "coordinator-2"))
    owed = [(e.action, e.number, e.sink) for e in outstanding(taken) if e.action is not Action.RECOVER]
    assert before == [(Action.COMMIT, 1, "b"), (Action.COMMIT, 2, "a")]
    assert owed == [(Action.PROBE, 1, "b"), (Action.PROBE, 2, "a")]


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (Report(TOKEN, 1, ()), Refusal.STALE_TOKEN),
        (Report(EPOCH, 1, ()), Refusal.STALE_EPOCH),
        (Report(TOKEN, 3, ()), Refusal.STALE_TOKEN),
        (Release(TOKEN, 1), Refusal.STALE_TOKEN),
        (Release(EPOCH, 3), Refusal.STALE_EPOCH),
        (BeginAbort(1, 1, "ann", "why"), Refusal.STALE_TOKEN),
        (Forget(1, (1,)), Refusal.STALE_TOKEN),
        (NoteRecovered(TOKEN, 1, 2, final=True), Refusal.STALE_TOKEN),
        (NoteRecovered(EPOCH, 1, 1, final=True), Refusal.STALE_EPOCH),
        (decision(1, epoch=1, claimant="driver-1"), Refusal.STALE_EPOCH),
    ],
)
def test_nothing_is_taken_from_an_older_epoch_or_token(event: Event, refusal: Refusal) -> None:
    assert refused(running(epoch=2, token=2), event) is refusal


def test_a_part_takes_outcomes_only_under_its_own_authority() -> None:
    ledger = decided(1, sinks={"a": Part(), "b": Part(authority=EPOCH)})
    assert refused(ledger, report(outcome(1, "b", OutcomeKind.COMMITTED))) is Refusal.STALE_TOKEN
    assert refused(ledger, Report(EPOCH, 1, (outcome(1, "a", OutcomeKind.COMMITTED),))) is Refusal.STALE_TOKEN
    both = after(ledger, Report(EPOCH, 1, (outcome(1, "b", OutcomeKind.COMMITTED),)))
    assert part_of(both, 1, "b").state is PartState.COMMITTED


def test_recovery_is_owed_until_it_ran_with_the_older_processes_gone() -> None:
    ledger = after(NEW, RaiseToken(1, "c"), RaiseEpoch(1))
    noted, effects = step(ledger, NoteRecovered(TOKEN, 1, 1, final=False))
    assert noted == replace(ledger, recovered={TOKEN: 1})
    assert effects == ()
    assert Effect(Action.RECOVER, 1, authority=TOKEN) in outstanding(noted)
    closed = after(noted, NoteRecovered(TOKEN, 1, 1, final=True))
    assert closed == replace(noted, closed={TOKEN: 1})
    assert list(outstanding(closed)) == [Effect(Action.RECOVER, 1, authority=EPOCH)]


def test_recovery_noted_late_never_takes_back_a_newer_note() -> None:
    ledger = after(running(epoch=2), NoteRecovered(TOKEN, 1, 2, final=True), NoteRecovered(TOKEN, 1, 1, final=True))
    assert (ledger.recovered[TOKEN], ledger.closed[TOKEN]) == (2, 2)


def test_recovery_of_an_epoch_that_is_not_raised_cannot_be_noted() -> None:
    assert refused(running(), NoteRecovered(TOKEN, 1, 2, final=False)) is Refusal.STALE_EPOCH


def test_an_event_that_brings_nothing_new_has_no_effects() -> None:
    ledger = decided(1)
    _, effects = step(ledger, Release(TOKEN, 1))
    assert effects == ()
    assert after(ledger, Release(TOKEN, 1)) == ledger
