"""`change` and `read` on a store that answers late, wrongly, or not at all."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from sinkruntime.environment import Environment
from sinkruntime.errors import AnswerLost, InDoubt, LedgerConflict, LedgerCorrupt, LedgerUnavailable
from sinkruntime.ledger.change import change, patiently, read
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.ledger.store import Stored
from sinkruntime.protocol.events import ClaimEpoch, Event, RaiseEpoch, Refusal, Refused
from sinkruntime.protocol.ledger import Ledger
from tests.unit.ledger.contract import NEW


class FastClock:
    """Each look at it is so many seconds later."""

    def __init__(self, seconds: float) -> None:
        self._times = count(0.0, seconds)

    def wall(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        return next(self._times)


def patient(seconds_per_look: float = 0.001) -> Environment:
    return Environment(FastClock(seconds_per_look), random.Random(1))


class FaultyStore(MemoryLedgerStore):
    """Plays a list of faults, one per write, then works. `lost-applied` and `lost` differ in what happened."""

    def __init__(self, writes: Sequence[str] = (), reads: Sequence[str] = ()) -> None:
        super().__init__()
        self.writes, self.reads = list(writes), list(reads)
        self.replaced = 0

    async def load(self) -> Stored | None:
        fault = self.reads.pop(0) if self.reads else ""
        if fault == "unavailable":
            raise LedgerUnavailable("no route")
        if fault == "lost":
            raise AnswerLost("no answer")
        return await super().load()

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        fault = self.writes.pop(0) if self.writes else ""
        self.replaced += 1
        if fault == "unavailable":
            raise LedgerUnavailable("no route")
        if fault == "lost":
            raise AnswerLost("no answer")
        if fault == "faster":
            present = await super().load()
            assert present is not None
            await super().replace(replace(present.ledger, token=present.ledger.token + 1), present.version)
        written = await super().replace(ledger, version)
        if fault == "lost-applied":
            raise AnswerLost("no answer")
        return written


def raise_to_one(ledger: Ledger) -> Event | None:
    return None if ledger.epoch else RaiseEpoch(1)


def play(
    store: FaultyStore, make: Callable[[Ledger], Event | None] = raise_to_one, environment: Environment | None = None
) -> Stored:
    async def run() -> Stored:
        if store.text is None:
            await store.create(NEW)
        return await change(store, make, environment or patient(), 10.0)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("writes", "tries"),
    [
        ([], 1),
        (["lost-applied"], 1),
        (["lost"], 2),
        (["lost", "lost-applied"], 2),
        (["unavailable", "unavailable"], 3),
        (["faster", "faster"], 3),
        (["lost", "faster", "lost-applied"], 3),
    ],
)
def test_a_change_happens_exactly_once_whatever_the_store_answers(writes: list[str], tries: int) -> None:
    store = FaultyStore(writes)
    done = play(store)
    assert (done.ledger.epoch, done.ledger.firsts) == (1, (1,))
    assert done.ledger.token == writes.count("faster"), "nobody's change is lost"
    assert store.replaced == tries
    assert asyncio.run(store.load()) == done


def test_a_store_that_cannot_be_read_for_a_while_is_waited_for() -> None:
    assert play(FaultyStore(reads=["unavailable", "lost"])).ledger.epoch == 1


def test_nothing_is_written_where_nothing_is_left_to_do() -> None:
    store = FaultyStore()
    assert play(store, lambda ledger: None).ledger == NEW
    assert store.replaced == 0


def test_a_refused_event_is_raised_and_not_tried_again() -> None:
    store = FaultyStore()
    with pytest.raises(Refused) as caught:
        play(store, lambda ledger: ClaimEpoch(7, "p"))
    assert caught.value.refusal is Refusal.STALE_EPOCH
    assert store.replaced == 0


@pytest.mark.parametrize("fault", ["lost", "unavailable", "faster"])
def test_when_the_time_is_over_the_change_is_in_doubt(fault: str) -> None:
    store = FaultyStore([fault] * 1000)
    with pytest.raises(InDoubt, match="10 s"):
        play(store, environment=patient(seconds_per_look=2.0))
    assert 1 <= store.replaced < 10


def test_when_the_time_is_over_a_ledger_that_cannot_be_read_is_in_doubt() -> None:
    with pytest.raises(InDoubt, match="could not be read for 10 s"):
        play(FaultyStore(reads=["unavailable"] * 1000), environment=patient(seconds_per_look=2.0))


def test_a_decision_in_doubt_is_chained_to_its_cause() -> None:
    with pytest.raises(InDoubt) as caught:
        play(FaultyStore(["lost"] * 1000), environment=patient(seconds_per_look=2.0))
    assert isinstance(caught.value.__cause__, AnswerLost)


def test_a_ledger_that_is_gone_is_corrupt() -> None:
    async def run() -> None:
        await read(MemoryLedgerStore(), patient(), 10.0)

    with pytest.raises(LedgerCorrupt, match="gone"):
        asyncio.run(run())


def test_a_conflict_is_an_answer_not_a_failure() -> None:
    async def run() -> None:
        store = MemoryLedgerStore()
        first = await store.create(NEW)
        await store.replace(NEW, first.version)
        with pytest.raises(LedgerConflict):
            await store.replace(NEW, first.version)

    asyncio.run(run())


def test_what_may_be_done_twice_is_done_until_it_answers() -> None:
    faults: list[Exception] = [LedgerUnavailable("no route"), AnswerLost("no answer")]

    async def work() -> str:
        if faults:
            raise faults.pop(0)
        return "done"

    assert asyncio.run(patiently(work, "it failed", patient(), 10.0)) == "done"
    faults += [LedgerUnavailable("no route")] * 100
    with pytest.raises(InDoubt, match="it failed for 10 s: no route"):
        asyncio.run(patiently(work, "it failed", patient(3.0), 10.0))
    faults[:] = [LedgerCorrupt("torn")]
    with pytest.raises(LedgerCorrupt):
        asyncio.run(patiently(work, "it failed", patient(), 10.0))


@pytest.mark.parametrize("asked", [0.0, 0.3])
def test_the_pause_that_a_store_asks_for_is_kept(asked: float) -> None:
    tries: list[float] = []

    async def work() -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise LedgerUnavailable("busy", retry_after_seconds=asked)

    asyncio.run(patiently(work, "it failed", patient(), 10.0))
    assert (tries[1] - tries[0] >= 0.3) == (asked > 0)
