"""The driver's start: claim, the wait for older epochs, the start check and what a person accepts; its end."""

import asyncio
from collections.abc import Mapping

import pytest

from sinkruntime.errors import Fenced, Held, StartRefused
from sinkruntime.protocol.events import Accept, OutcomeKind, RaiseEpoch, RaiseToken, TargetView
from sinkruntime.protocol.ledger import Ledger, PartState
from sinkruntime.protocol.start import SourceView, StartReason
from tests.protocol.build import (
    NEW,
    TOKEN,
    after,
    committed,
    decided,
    opening,
    outcome,
    part_of,
    position,
    report,
)
from tests.unit.driver.world import World, nothing, play, soon


def test_a_driver_claims_its_epoch_and_may_ask_twice() -> None:
    async def scene(world: World) -> None:
        driver = world.driver()
        await driver.claim()
        await driver.claim()
        assert (await world.ledger()).claim == "driver-1"

    play(scene, after(NEW, RaiseEpoch(1)))


def test_a_claim_whose_answer_is_lost_is_known_again() -> None:
    async def scene(world: World) -> None:
        world.store.faults = ["lost-applied"]
        await world.driver().claim()
        assert (await world.ledger()).claim == "driver-1"

    play(scene, after(NEW, RaiseEpoch(1)))


def test_a_second_process_of_the_same_epoch_is_fenced() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(Fenced, match="AlreadyClaimed"):
            await world.driver(claimant="driver-1b").claim()

    play(scene)


def test_a_driver_of_an_older_epoch_is_fenced() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(Fenced, match="StaleEpoch"):
            await world.driver().claim()

    play(scene, after(NEW, RaiseEpoch(1), RaiseEpoch(2)))


def test_a_start_waits_for_older_checkpoints_and_for_recovery() -> None:
    async def scene(world: World) -> None:
        driver = world.driver(epoch=2, claimant="driver-2")
        asked = False

        async def views() -> Mapping[str, TargetView]:
            nonlocal asked
            asked = True
            return {}

        await world.happen(*opening(2)[:2])
        source = SourceView("ledger-1", "query-1", position(0), 0)
        start = asyncio.create_task(driver.start(source, views))
        await soon(lambda: world.store.waits == 1)
        await world.put(committed(await world.ledger(), 1, "a", "b"))
        await soon(lambda: world.store.waits == 2)
        assert not asked
        await world.happen(opening(2)[2])
        await asyncio.wait_for(start, 2.0)
        assert asked

    play(scene, decided(1))


def behind() -> Ledger:
    """Checkpoint 1 is committed, and sink `a` has evidence of it."""
    return after(committed(decided(1), 1, "a", "b"), *opening(2))


SOURCE = SourceView("ledger-1", "query-1", position(0), 0)


async def lost_rows() -> Mapping[str, TargetView]:
    return {"a": TargetView(0)}


def test_a_disagreement_stops_the_start_with_its_reason_and_advice() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(StartRefused) as caught:
            await world.driver(epoch=2, claimant="driver-2").start(SOURCE, lost_rows)
        assert caught.value.reason == StartReason.TARGET_BEHIND_LEDGER
        assert "restore the newer target" in caught.value.advice
        assert (await world.ledger()) == behind()

    play(scene, behind())


def test_a_person_accepts_a_disagreement_once_per_nonce() -> None:
    async def scene(world: World) -> None:
        accept = frozenset({"TargetBehindLedger"})
        driver = world.driver(epoch=2, claimant="driver-2", nonce=5, accept=accept)
        world.store.faults = ["lost-applied"]
        await driver.start(SOURCE, lost_rows)
        ledger = await world.ledger()
        assert ledger.sinks["a"].evidence == 0
        assert [(a.nonce, a.reason) for a in ledger.acceptances] == [(5, "TargetBehindLedger")]
        await world.happen(Accept(TOKEN, 1, 6, "X", views={"a": TargetView(3)}))
        with pytest.raises(StartRefused, match=r"recovery\.nonce above 5"):
            await driver.start(SOURCE, lost_rows)

    play(scene, behind())


def test_accepting_one_reason_does_not_accept_another() -> None:
    async def scene(world: World) -> None:
        driver = world.driver(epoch=2, claimant="driver-2", nonce=1, accept=frozenset({"TargetReplaced"}))
        with pytest.raises(StartRefused, match="TargetBehindLedger"):
            await driver.start(SOURCE, lost_rows)

    play(scene, behind())


def held(reason: str = "QuotaExceeded") -> Ledger:
    refusal = outcome(1, "a", OutcomeKind.REFUSED, reason=reason, message="no room")
    return after(decided(1), report(refusal), *opening(2))


def test_a_held_checkpoint_of_an_older_epoch_stops_the_start_with_its_reason() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(StartRefused) as caught:
            await world.driver(epoch=2, claimant="driver-2").start(SOURCE, nothing)
        assert caught.value.reason == "QuotaExceeded"
        assert "checkpoint 1 of sink a is held: no room" in caught.value.message

    play(scene, held())


@pytest.mark.parametrize("word", ["CommittableLost", "AbandonPending"])
def test_a_held_checkpoint_that_a_person_has_spoken_of_is_waited_for(word: str) -> None:
    async def scene(world: World) -> None:
        driver = world.driver(epoch=2, claimant="driver-2", accept=frozenset({word}))
        start = asyncio.create_task(driver.start(SOURCE, nothing))
        await soon(lambda: world.store.waits == 1)
        start.cancel()

    play(scene, held("CommittableLost"))


@pytest.mark.parametrize("why", ["spent", "partly committed"])
def test_a_word_to_abandon_that_cannot_be_followed_is_not_waited_for(why: str) -> None:
    async def scene(world: World) -> None:
        driver = world.driver(epoch=2, claimant="driver-2", nonce=1, accept=frozenset({"AbandonPending"}))
        with pytest.raises(Held, match="checkpoint 1 of sink a is held: no room"):
            await asyncio.wait_for(driver.start(SOURCE, nothing), 2.0)

    spent = after(held(), Accept(TOKEN, 1, 1, "AbandonPending"))
    play(scene, spent if why == "spent" else committed(held(), 1, "b"))


def test_a_checkpoint_held_for_its_target_is_tried_again_when_a_person_accepts_the_target() -> None:
    async def scene(world: World) -> None:
        accept = frozenset({"TargetBehindLedger"})
        driver = world.driver(epoch=2, claimant="driver-2", nonce=1, accept=accept)
        start = asyncio.create_task(driver.start(SOURCE, lost_rows))
        await soon(lambda: world.store.waits == 1)
        ledger = await world.ledger()
        assert part_of(ledger, 1, "a").state is PartState.IN_DOUBT
        assert [(a.nonce, a.reason) for a in ledger.acceptances] == [(1, "TargetBehindLedger")]
        start.cancel()

    play(scene, held("TargetBehindLedger"))


def test_a_start_in_a_newer_epoch_is_fenced() -> None:
    async def scene(world: World) -> None:
        await world.happen(RaiseEpoch(2))
        with pytest.raises(Fenced):
            await world.driver().start(SourceView(), nothing)

    play(scene)


def test_drained_waits_until_nothing_is_pending_or_something_is_held() -> None:
    async def scene(world: World) -> None:
        driver = world.driver()
        task = asyncio.create_task(driver.drained())
        await soon(lambda: world.store.waits == 1)
        assert not task.done()
        await world.happen(report(outcome(1, "a", OutcomeKind.REFUSED, reason="X")))
        assert (await asyncio.wait_for(task, 2.0)).pending

    play(scene, decided(1))


def test_drained_waits_for_clean_ups_too_but_not_for_long() -> None:
    async def scene(world: World) -> None:
        task = asyncio.create_task(world.driver().drained())
        await soon(lambda: world.store.waits == 1)
        world.clock.now += 3600.0
        await world.happen(RaiseToken(2, "coordinator-2"))
        assert (await asyncio.wait_for(task, 2.0)).records != ()
        cleaned = (outcome(1, sink, OutcomeKind.CLEANED) for sink in "ab")
        await world.happen(report(*cleaned, token=2))
        assert (await asyncio.wait_for(world.driver().drained(), 2.0)).records == ()

    play(scene, committed(decided(1), 1, "a", "b"))
