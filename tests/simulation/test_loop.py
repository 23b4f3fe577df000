"""The virtual loop: one order per seed, time that jumps, processes that die without a word."""

import asyncio
import random

from tests.simulation.loop import PROCESS, Process, SimLoop


def run(loop: SimLoop) -> None:
    loop.run(lambda: False, 10_000)
    loop.close()


def order(seed: int) -> list[str]:
    """The order in which three processes with two tasks each take their steps."""
    loop, seen = SimLoop(random.Random(seed)), []

    async def steps(name: str) -> None:
        for number in range(4):
            seen.append(f"{name}{number}")
            await asyncio.sleep(0)

    for name in "abc":
        process = Process(name, "test")
        for task in "xy":
            _ = loop.start(process, steps(name + task))
    run(loop)
    return seen


def test_the_same_seed_gives_the_same_order_and_others_give_others() -> None:
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_within_a_process_the_order_is_asyncios_own() -> None:
    mine = [step for step in order(3) if step.startswith("a")]
    assert mine == ["ax0", "ay0", "ax1", "ay1", "ax2", "ay2", "ax3", "ay3"]


def test_time_moves_only_when_nothing_can_run() -> None:
    loop, seen = SimLoop(random.Random(1)), []

    async def sleeper() -> None:
        await asyncio.sleep(3600.0)
        seen.append(("slept", loop.time()))

    async def worker() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        seen.append(("worked", loop.time()))

    for main in (sleeper(), worker()):
        _ = loop.start(Process("p", "test"), main)
    run(loop)
    assert seen == [("worked", 0.0), ("slept", 3600.0)]


def test_a_killed_process_runs_nothing_more_not_even_finally() -> None:
    loop, seen = SimLoop(random.Random(1)), []
    process = Process("p", "test")

    async def main() -> None:
        try:
            seen.append("begun")
            loop.kill(PROCESS.get())
            await asyncio.sleep(1.0)
            seen.append("went on")
        finally:
            if loop.time() < 5.0:
                seen.append("tidied up")

    async def later() -> None:
        await asyncio.sleep(10.0)

    _ = loop.start(process, main())
    _ = loop.start(Process("q", "test"), later())
    run(loop)
    assert seen == ["begun"]


def test_a_paused_process_goes_on_where_it_was() -> None:
    loop, seen = SimLoop(random.Random(1)), []
    process = Process("p", "test")

    async def main() -> None:
        await asyncio.sleep(1.0)
        seen.append(loop.time())

    async def warden() -> None:
        loop.pause(process)
        await asyncio.sleep(30.0)
        loop.wake(process)

    _ = loop.start(process, main())
    _ = loop.start(Process("q", "test"), warden())
    run(loop)
    assert seen == [30.0]


def test_what_was_sent_arrives_though_its_sender_is_dead() -> None:
    loop = SimLoop(random.Random(1))
    seen: list[str] = []

    async def main() -> None:
        loop.nature(5.0, seen.append, "arrived")
        loop.call_later(5.0, seen.append, "own timer")
        loop.kill(PROCESS.get())
        await asyncio.sleep(0)

    _ = loop.start(Process("p", "test"), main())
    run(loop)
    assert seen == ["arrived"]
