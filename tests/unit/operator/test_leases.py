"""Replicas that share shards over Leases, in virtual time: what is held when, and never by two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sinkoperator.membership import LeaseSettings
from sinkruntime.errors import ConfigurationError
from tests.unit.operator.lease_world import LEASE_SECONDS, NAMESPACE, TAKEOVER_SECONDS, World, settled_pair


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


# CONTRACTS 2.7, by name.


def test_defaults_15s_10s_2s() -> None:
    settings = LeaseSettings(NAMESPACE, "replica", "instance")
    assert (settings.lease_seconds, settings.renew_deadline_seconds, settings.retry_seconds) == (15.0, 10.0, 2.0)
    assert settings.shards == 16


@pytest.mark.parametrize(("lease", "deadline", "retry"), [(15, 15, 2), (15, 16, 2), (15, 2, 2), (15, 10, 0)])
def test_renew_deadline_lt_lease_duration(lease: float, deadline: float, retry: float) -> None:
    with pytest.raises(ConfigurationError, match="renew deadline"):
        LeaseSettings(NAMESPACE, "r", "i", 16, lease, deadline, retry)


@pytest.mark.parametrize("skew_hours", [-1, 1])
def test_observed_time_not_wall_clock(world: World, skew_hours: int) -> None:
    first, second = world.replica("first"), world.replica("second")
    second.clock.wall_offset_seconds = skew_hours * 3600.0
    first.start()
    second.start()
    world.run(60.0)
    assert world.settled()
    assert not any(what == "lost" for replica in (first, second) for _, what, _ in replica.worker.story)
    first.kill()
    assert world.until(world.settled, 60.0) <= TAKEOVER_SECONDS


def test_request_timeout_counts_against_deadline(world: World) -> None:
    """Renewals that hang: it stops 10 s after the last good one was sent, not 10 s after its request timed out."""
    alone = world.replica("alone", lease_seconds=30.0).start()
    world.run(5.0)
    alone.line.latency_max_seconds = 0.0
    world.run(5.0)
    before = alone.leases.own_lease
    renewed = alone.leases._member
    assert renewed is not None
    alone.line.answers_cut = True
    left = renewed._deadline - alone.clock.monotonic()
    assert left <= 10.0
    assert world.until(lambda: not alone.leases.holds(0), 11.0) <= left + 0.06
    assert world.until(lambda: alone.leases.own_lease != before, 1.0) <= 0.06
    assert alone.worker.active == set()


def test_the_deadline_counts_from_when_a_renewal_was_sent_not_from_its_answer(world: World) -> None:
    alone = world.replica("alone").start()
    world.run(5.0)
    alone.line.back_seconds = 4.0
    world.run(20.0)
    lease = world.server.objects[alone.leases.own_lease]["metadata"]["resourceVersion"]
    world.until(lambda: world.server.objects[alone.leases.own_lease]["metadata"]["resourceVersion"] != lease, 10.0)
    arrived = world.loop.time()
    world.run(3.5)  # this answer still comes, and no other
    alone.line.cut = True
    world.until(lambda: not alone.leases.holds(0), 20.0)
    assert world.loop.time() - arrived <= 10.0


def test_an_answer_read_after_the_deadline_revives_nothing(world: World) -> None:
    alone = world.replica("alone").start()
    world.run(5.0)
    alone.line.latency_max_seconds, alone.line.back_seconds = 0.0, 1.0
    world.run(5.0)
    name = alone.leases.own_lease
    before = world.server.objects[name]["metadata"]["resourceVersion"]
    world.until(lambda: world.server.objects[name]["metadata"]["resourceVersion"] != before, 4.0)
    world.loop.pause(alone.process)  # the one before was sent 3 s ago, this one is under way
    world.run(8.0)
    assert not alone.leases.holds(0)
    world.loop.wake(alone.process)
    world.run(0.5)
    assert not alone.leases.holds(0)
    assert [what for _, what, _ in alone.worker.story][-1] == "lost"


def test_release_on_shutdown(world: World) -> None:
    first, second = settled_pair(world)
    first.worker.stop_seconds = 3.0
    first.leases.leave()
    assert world.until(lambda: first.ended == "in order", 4.0) >= 3.0
    assert not any("replica-first" in name for name in world.server.objects)
    assert world.until(world.settled, 5.0) <= 2.5, "at once, without waiting for the lease duration"
    assert [what for _, what, _ in first.worker.story if what == "lost"] == []
    assert len(second.leases.held) == world.shards


def test_lost_lease_cancels_commits_before_expiry(world: World) -> None:
    first, second = settled_pair(world)
    shards = set(first.leases.held)
    begin = world.loop.time()
    first.line.cut = True
    world.until(lambda: bool(second.worker.active & shards), TAKEOVER_SECONDS)
    lost = [when for when, what, of in first.worker.story if what == "lost" and of == shards]
    taken = [when for when, what, of in second.worker.story if what == "taken" and of in shards]
    assert len(lost) == 1
    assert lost[0] - begin <= 10.0
    assert min(taken) - lost[0] >= LEASE_SECONDS - 10.0


def test_transitions_rise_with_each_takeover_yet_the_token_in_the_ledger_is_what_fences(world: World) -> None:
    """`transitions_is_fencing_token`: here it is not. A Lease may be deleted, and then it counts from nothing; so a
    takeover begins a tenure (`taken`), and the tenure raises the ledger's token."""
    first, second = settled_pair(world)
    shard = min(first.leases.held)
    spec = world.server.objects[f"sinkjob-shard-{shard}"]["spec"]
    before = int(spec.get("leaseTransitions", 0))
    first.kill()
    world.until(world.settled, 60.0)
    assert int(world.server.objects[f"sinkjob-shard-{shard}"]["spec"]["leaseTransitions"]) == before + 1
    assert [of for _, what, of in second.worker.story if what == "taken"].count(shard) == 1


def test_token_strictly_increases(world: World) -> None:
    """Each tenure of a shard is told once, by `taken`, also to a replica that had the shard before."""
    alone = world.replica("alone").start()
    for _ in range(3):
        world.run(5.0)
        assert world.settled()
        alone.line.cut = True
        world.run(20.0)
        assert not alone.leases.held
        alone.line.cut = False
    world.run(20.0)
    tenures = [of for _, what, of in alone.worker.story if what == "taken"]
    assert [tenures.count(shard) for shard in range(world.shards)] == [4] * world.shards


def test_clock_skew_irrelevant(world: World) -> None:
    """Wall clocks an hour apart, one of them at a standstill; monotonic clocks with other beginnings and speeds."""
    first, second, third = (world.replica(name) for name in ("first", "second", "third"))
    first.clock.wall_offset_seconds, first.clock.offset_seconds = 3600.0, 1e6
    second.clock.stopped = True
    second.clock.speed = 1.1
    third.clock.wall_offset_seconds, third.clock.speed = -3600.0, 0.9
    for replica in world.replicas:
        replica.start()
    world.run(120.0)
    assert world.settled()
    assert not any(what == "lost" for replica in world.replicas for _, what, _ in replica.worker.story)


# Sharing.


@pytest.mark.parametrize(("replicas", "shards"), [(1, 1), (2, 16), (3, 16), (5, 3)])
def test_live_replicas_share_evenly(replicas: int, shards: int) -> None:
    with World(shards=shards) as world:
        for number in range(replicas):
            world.replica(f"r{number}").start()
        world.run(10.0)
        assert world.settled()


def test_a_new_replica_gets_its_share_only_after_the_work_was_stopped(world: World) -> None:
    first = world.replica("first").start()
    world.run(5.0)
    first.worker.stop_seconds = 4.0
    second = world.replica("second").start()
    world.until(lambda: len(second.leases.held) == 2, 12.0)
    for shard in second.leases.held:
        stopped = next(when for when, what, of in first.worker.story if what == "stopped" and of == shard)
        taken = next(when for when, what, of in second.worker.story if what == "taken" and of == shard)
        assert stopped < taken <= stopped + 2.3
    world.run(1.0)
    assert world.settled()


@pytest.mark.parametrize("trouble", ["hangs", "fails"])
def test_work_that_does_not_stop_is_cut_off_then_given_back(world: World, trouble: str) -> None:
    first = world.replica("first", stop_seconds=5.0).start()
    world.run(5.0)
    first.worker.stop_seconds = 1000.0 if trouble == "hangs" else 0.1
    first.worker.fails_to_stop = True
    world.replica("second").start()
    world.run(15.0)
    assert world.settled()
    assert [what for _, what, _ in first.worker.story].count("lost") == 2


def test_it_holds_a_shard_while_it_stops_it(world: World) -> None:
    first = world.replica("first").start()
    world.run(5.0)
    first.worker.stop_seconds = 4.0
    first.leases.leave()
    world.run(3.0)
    assert len(first.leases.held) == world.shards
    world.run(2.0)
    assert first.leases.held == frozenset()


def test_idle_replicas_write_only_their_own_lease_however_many_shards() -> None:
    with World(shards=100) as world:
        world.replica("first").start()
        world.replica("second").start()
        world.run(20.0)
        assert world.settled()
        before = world.server.writes
        world.run(60.0)
        assert world.server.writes - before <= 2 * 31


def test_another_number_of_shards_does_not_disturb_those_in_common() -> None:
    """During a roll-out of `--shards`; each maps jobs in its own way, and the tokens fence."""
    with World(shards=4) as world:
        old, new = world.replica("old"), world.replica("new", shards=8)
        old.start()
        new.start()
        world.run(40.0)
        assert all(len(world.holders(shard)) == 1 for shard in range(4))
        new.leases.leave()
        world.run(5.0)
        assert old.leases.held == frozenset(range(4))
        assert sorted(name for name in world.server.objects if "shard" in name) == [
            f"sinkjob-shard-{number}" for number in range(4)
        ], "those beyond the last one are garbage"
