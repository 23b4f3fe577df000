"""What a coordinator tells: counters and log lines; how long it waits; the runner that bounds each call."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.cli.secrecy import conceal
from sinkruntime.coordinator.reports import worth_telling
from sinkruntime.coordinator.runner import ABANDONED_MAX, OutOfTime, ThreadRunner, TooManyAbandoned
from sinkruntime.coordinator.settings import CommitSettings
from sinkruntime.job.sinks import commit_settings
from sinkruntime.protocol.events import Outcome, OutcomeKind
from sinkruntime.protocol.ledger import Authority, Ledger, Part, PartState
from sinkruntime.spec.delivery import Commit
from sinkruntime.spec.options_from import Secrets
from tests.protocol.build import part_of
from tests.unit.coordinator.world import FAST, Said, World, play, settled


def held(ledger: Ledger) -> bool:
    return part_of(ledger, 1, "a").state is PartState.HELD


def refuse(operation: str, request: CommitRequest) -> Said:
    return Answer.REFUSED if operation == "commit" else None


def test_the_counters_tell_attempts_successes_failures_and_what_is_pending() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.RETRY_LATER if operation == "commit" and request.retries < 2 else None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)
            world.target.say = refuse
            await world.decide(2)
            await world.until(lambda ledger: part_of(ledger, 2, "a").state is PartState.HELD)
            await world.until(lambda ledger: world.metrics.get("held") == 1)

    metrics = play(scene).metrics
    assert (metrics.get("commit_attempts", "a"), metrics.get("commit_successes", "a")) == (4, 1)
    assert metrics.get("commit_failures", "a") == 3
    assert metrics.get("pending") == 1
    assert abs(metrics.get("last_commit_seconds", "a") - time.time()) < 60


def test_what_a_committer_raises_comes_into_the_ledger_without_any_secret() -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        raise OSError("postgres://me:hunter2hunter2@host refused")

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").message != "")
        assert part_of(ledger, 1, "a").message == "OSError: postgres://me:***@host refused"

    conceal([Secrets({"password": "hunter2hunter2"})])
    try:
        play(scene, settings=replace(commit_settings(Commit()), backoff_first_seconds=0.001))
    finally:
        conceal([])


def test_the_ledger_tells_why_a_part_does_not_come_forward_once_per_reason() -> None:
    async def scene(world: World) -> None:
        world.target.say = lambda operation, request: Answer.RETRY_LATER if operation == "commit" else None
        await world.begin()
        async with world.working():
            await world.decide(1)
            ledger = await world.until(lambda ledger: part_of(ledger, 1, "a").reason != "")
            part = part_of(ledger, 1, "a")
            assert (part.state, part.reason, part.message) == (PartState.PENDING, "Said", "as the test says")
            before = world.store.version
            tries = world.target.count("commit")
            while world.target.count("commit") < tries + 5:
                await asyncio.sleep(0.005)
            assert world.store.version == before
            world.target.say = lambda operation, request: None
            await world.until(settled)

    play(scene)


def test_one_failure_that_passes_is_not_written() -> None:
    """As many writes as of a run without any failure."""

    def once(operation: str, request: CommitRequest) -> Said:
        return Answer.RETRY_LATER if operation == "commit" and request.retries == 0 else None

    def writes(say: Callable[[str, CommitRequest], Said]) -> int:
        async def scene(world: World) -> None:
            world.target.say = say
            await world.begin()
            async with world.working():
                await world.until(lambda ledger: ledger.closed.get(Authority.TOKEN, 0) == 1)
                await world.decide(1)
                await world.until(settled)

        return play(scene).store.version

    assert writes(once) == writes(lambda operation, request: None)


@pytest.mark.parametrize("state", [PartState.IN_DOUBT, PartState.HELD])
def test_what_is_in_doubt_or_held_is_never_made_pending_by_a_failure_to_begin(state: PartState) -> None:
    failed = Outcome(1, "a", OutcomeKind.PROGRESS, reason="SecretNotFound")
    assert not worth_telling(Part(state=state), failed, 9)
    assert worth_telling(Part(), failed, 2)
    assert not worth_telling(Part(), failed, 1)
    assert not worth_telling(Part(reason="CommittableLost"), failed, 2)


def test_each_round_is_one_structured_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def say(operation: str, request: CommitRequest) -> Said:
        return Answer.RETRY_LATER if operation == "commit" and request.retries == 0 else None

    async def scene(world: World) -> None:
        world.target.say = say
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    with caplog.at_level(logging.INFO):
        play(scene)
    told = [record.__dict__["sinkjob"] for record in caplog.records if "sinkjob" in record.__dict__]
    common = {"checkpoint": 1, "epoch": 1, "sink": "a"}
    assert told == [
        {**common, "attempt": 0, "outcome": "progress", "reason": "Said"},
        {**common, "attempt": 1, "outcome": "committed", "reason": ""},
        {**common, "attempt": 0, "outcome": "cleaned", "reason": ""},
    ]


def test_backoff_grows_up_to_a_bound_and_is_jittered() -> None:
    settings = CommitSettings(backoff_first_seconds=0.2, backoff_max_seconds=30.0)
    assert [settings.backoff_after(n, 0.0) for n in (1, 2, 3, 8, 9, 500)] == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    assert settings.backoff_after(2, 0.999) == pytest.approx(0.2, rel=0.01)


def test_the_time_limit_doubles_per_attempt_up_to_a_bound() -> None:
    settings = CommitSettings(timeout_seconds=60.0, timeout_max_seconds=1800.0)
    assert [settings.timeout_of(n) for n in (0, 1, 4, 5, 900)] == [60.0, 120.0, 960.0, 1800.0, 1800.0]


def test_a_hung_call_ends_in_time_and_too_many_stop_new_ones() -> None:
    go = threading.Event()

    async def scene() -> None:
        runner = ThreadRunner()
        for _ in range(ABANDONED_MAX):
            with pytest.raises(OutOfTime):
                await runner.call(lambda: go.wait(5.0), 0.001)
        with pytest.raises(TooManyAbandoned):
            await runner.call(lambda: 1, 1.0)
        go.set()
        for _ in range(500):
            await asyncio.sleep(0.002)
            try:
                assert await runner.call(lambda: 1, 1.0) == 1
            except TooManyAbandoned:
                continue
            return
        raise AssertionError("it never recovered")

    asyncio.run(scene())


def test_what_a_call_raises_is_raised_where_it_was_awaited() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        asyncio.run(ThreadRunner().call(fail, 1.0))


def test_a_call_in_vain_is_not_held_against_its_sink() -> None:
    """A committer that cannot connect is tried again, and closes what it had opened."""

    async def scene(world: World) -> None:
        opens: list[int] = []

        def create(make: Callable[[], Any], fails: int) -> Callable[[], Any]:
            def created() -> Any:
                tier = make()

                def opened() -> None:
                    opens.append(1)
                    if len(opens) <= fails:
                        raise ConnectionError("no route")

                tier.open = opened
                return tier

            return created

        sink = world.sinks["a"]
        sink.create_aggregated_committer = create(sink.create_aggregated_committer, 3)  # type: ignore[method-assign]
        await world.begin()
        async with world.working():
            await world.decide(1)
            await world.until(settled)

    world = play(scene, tiers={"a": "both"}, settings=FAST)
    assert world.target.count("close", "a") == 4, "three in vain, and one at the end"
