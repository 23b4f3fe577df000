"""What the probes answer, and what they are not fooled by."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from sinkoperator.health import Health
from sinkoperator.web import serve
from sinkruntime.environment import Environment


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 0.0


class Leases:
    own_lease = "sinkjob-replica-me"
    lives = True


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.leases = Leases()
        self.health = Health(self.leases, Environment(self.clock, Environment.real().random))
        self.age = 0.0
        self.health.watch("Pod", lambda: self.age)

    def echo(self, name: str = "sinkjob-replica-me", event: str = "MODIFIED") -> None:
        self.health.lease_seen(event, {"metadata": {"name": name}})

    def live(self, seconds: int, echo: bool = True) -> None:
        """Let time pass, with an echo every 2 s, and a probe now and then."""
        for second in range(seconds):
            self.clock.now += 1.0
            if echo and second % 2:
                self.echo()
            self.health.alive()


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.live(300)
    return bench


def test_a_replica_whose_watch_echoes_is_alive(bench: Bench) -> None:
    report = bench.health.alive()
    assert report.good
    assert report.facts["lease"] == "sinkjob-replica-me"
    assert report.facts["echo_age_seconds"] <= 2.0


def test_a_watch_that_does_not_echo_our_own_writes_is_told(bench: Bench) -> None:
    bench.live(30, echo=False)
    assert bench.health.alive().good
    bench.live(1, echo=False)
    (problem,) = bench.health.alive().problems
    assert "has not shown our own for 31 s" in problem
    bench.echo()
    assert bench.health.alive().good


@pytest.mark.parametrize(("name", "event"), [("sinkjob-replica-other", "MODIFIED"), ("sinkjob-replica-me", "DELETED")])
def test_other_leases_and_deletions_are_no_echo(bench: Bench, name: str, event: str) -> None:
    for _ in range(40):
        bench.clock.now += 1.0
        bench.echo(name, event)
    assert not bench.health.alive().good


def test_a_silent_watch_is_told_only_if_the_api_server_took_our_writes_all_the_while(bench: Bench) -> None:
    bench.age = 181.0
    (problem,) = bench.health.alive().problems
    assert problem == "the watch on Pod has told nothing for 181 s, though the API server takes our writes"
    bench.leases.lives = False
    assert bench.health.alive().good


def test_an_api_server_that_is_down_is_no_reason_to_start_again(bench: Bench) -> None:
    bench.leases.lives, bench.leases.own_lease = False, ""
    bench.age = 500.0
    bench.live(500, echo=False)
    assert bench.health.alive().good
    bench.leases.lives, bench.leases.own_lease = True, "sinkjob-replica-new"
    bench.age = 1000.0
    bench.live(29, echo=False)
    assert bench.health.alive().good, "the watches have time to come back"
    bench.live(3, echo=False)
    assert not bench.health.alive().good


def test_a_replica_is_ready_when_all_it_needs_is_there(bench: Bench) -> None:
    synced = {"pods": False}
    bench.health.need("jobs", lambda: True)
    bench.health.need("pods", lambda: synced["pods"])
    report = bench.health.ready()
    assert (report.good, report.problems) == (False, ("not yet: pods",))
    synced["pods"] = True
    assert bench.health.ready().good


def get(port: int, path: str, seconds: float = 5.0) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_pages_answer_200_or_503_with_the_reason(bench: Bench) -> None:
    async def ask() -> list[tuple[int, Any]]:
        async with serve(bench.health.pages(), 0, "127.0.0.1") as port:
            good = [await asyncio.to_thread(get, port, path) for path in ("/healthz", "/readyz")]
            bench.health.need("jobs", lambda: False)
            bench.age = 1000.0
            return good + [await asyncio.to_thread(get, port, path) for path in ("/healthz", "/readyz")]

    answers = asyncio.run(ask())
    assert [status for status, _ in answers] == [200, 200, 503, 503]
    assert answers[0][1]["watch_age_seconds"] == {"Pod": 0.0}
    assert "the watch on Pod" in answers[2][1]["problems"][0]
    assert answers[3][1]["problems"] == ["not yet: jobs"]


def test_a_loop_that_hangs_answers_nothing_and_is_known_afterwards() -> None:
    health = Health(Leases(), Environment.real())

    async def ask_while_it_hangs() -> None:
        """The request is sent from another thread, after the loop began to hang."""
        beat = asyncio.create_task(health.beat())
        async with serve(health.pages(), 0, "127.0.0.1") as port:
            await asyncio.sleep(0)

            def late() -> None:
                time.sleep(0.2)
                get(port, "/healthz", 0.5)

            asked = asyncio.get_running_loop().run_in_executor(None, late)
            time.sleep(1.5)
            with pytest.raises(OSError, match="timed out"):
                await asked
            await asyncio.sleep(0.01)
            assert health.late_seconds > 0.3
        beat.cancel()

    asyncio.run(ask_while_it_hangs())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_probes_are_answered_at_addresses_of_both_families(address: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def scene() -> None:
        async with serve({}, 0) as port:
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            await writer.wait_closed()

    asyncio.run(scene())
