"""Replicas that share shards over Leases, in virtual time: what is held when, and never by two."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from sinkoperator.leases import VERBS
from sinkoperator.membership import LeaseSettings
from sinkruntime.errors import ConfigurationError
from tests.unit.operator.lease_world import NAMESPACE, Replica, World

LEASE_SECONDS = 15.0
#: The worst case that is promised: the lease duration, and 5 s.
TAKEOVER_SECONDS = LEASE_SECONDS + 5.0


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def settled_pair(world: World) -> tuple[Replica, Replica]:
    first, second = world.replica("first").start(), world.replica("second").start()
    world.run(5.0)
    assert world.settled()
    return first, second


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


# Faults.


@pytest.mark.parametrize("seed", range(10))
def test_takeover_takes_the_lease_duration_and_5_s_at_most(seed: int) -> None:
    with World(seed, shards=16) as world:
        first, second = world.replica("first"), world.replica("second")
        first.line.latency_max_seconds = second.line.latency_max_seconds = 0.4
        first.start()
        second.start()
        world.run(10.0 + 0.37 * seed)
        assert world.settled()
        first.kill()
        assert world.until(world.settled, 30.0) <= TAKEOVER_SECONDS


@pytest.mark.parametrize("seed", range(5))
def test_a_takeover_waits_for_nothing_but_the_lease(seed: int) -> None:
    """The last renewal is seen 2 s late at worst; then a look comes the moment the Lease expires."""
    with World(seed) as world:
        first, _ = settled_pair(world)
        world.run(0.41 * seed)
        first.kill()
        assert world.until(world.settled, 30.0) <= 2.0 + LEASE_SECONDS + 0.3


def test_a_shard_taken_by_a_write_without_an_answer_is_worked_on_after_the_next_look(world: World) -> None:
    alone = world.replica("alone").start()
    world.until(lambda: alone.leases.own_lease != "", 1.0)
    alone.line.answers_cut = True
    world.until(lambda: all(world.server.holder(shard) for shard in range(world.shards)), 3.0)
    alone.line.answers_cut = False
    assert alone.leases.held == frozenset()
    assert world.until(world.settled, 8.0) > 1.0


def test_a_replica_paused_while_it_takes_over_begins_nothing_when_it_wakes(world: World) -> None:
    first, second = settled_pair(world)
    shards = first.leases.held
    first.kill()
    second.line.back_seconds = 0.5
    world.until(lambda: not any(world.server.holder(shard).startswith("first") for shard in shards), 20.0)
    world.loop.pause(second.process)
    taken = len(second.worker.story)
    world.run(30.0)
    world.loop.wake(second.process)
    world.run(0.01)
    assert [what for _, what, _ in second.worker.story[taken:]][:1] == ["lost"]
    world.run(10.0)
    assert second.ended is None
    assert world.settled()


def test_loss_is_told_at_once_though_a_stop_clings(world: World) -> None:
    first, _ = settled_pair(world)
    first.worker.stop_seconds = first.worker.clings_seconds = 15.0
    begin = world.loop.time()
    first.line.cut = True
    first.leases.leave()
    world.run(12.0)
    assert [when - begin <= 10.0 for when, what, _ in first.worker.story if what == "lost"] == [True]
    world.run(20.0)
    assert first.ended == "in order"


def test_a_process_that_starts_again_in_the_same_pod_need_not_wait_for_its_own_lease(world: World) -> None:
    first = world.replica("pod", "pod-uid").start()
    world.run(5.0)
    first.kill()
    world.replica("pod", "pod-uid").start()
    assert world.until(world.settled, 5.0) <= 1.0
    assert len([name for name in world.server.objects if "replica" in name]) == 1


def test_a_paused_replica_knows_at_its_first_question_that_it_holds_nothing(world: World) -> None:
    first, second = settled_pair(world)
    shards = first.leases.held
    world.loop.pause(first.process)
    world.run(9.0)
    assert first.leases.held, "too short a pause to be taken for dead"
    world.run(1.0)
    assert first.leases.held == frozenset()
    assert not any(first.leases.holds(shard) for shard in shards)
    world.run(20.0)
    assert len(second.leases.held) == world.shards
    world.loop.wake(first.process)
    world.run(10.0)
    assert world.settled()
    assert [of for _, what, of in first.worker.story if what == "lost"] == [shards]


def test_a_short_pause_costs_nothing(world: World) -> None:
    first, second = settled_pair(world)
    world.loop.pause(first.process)
    world.run(7.0)
    world.loop.wake(first.process)
    world.run(30.0)
    assert not any(what == "lost" for replica in (first, second) for _, what, _ in replica.worker.story)


def test_a_replica_that_lost_its_lease_joins_again_as_a_new_one(world: World) -> None:
    first, _ = settled_pair(world)
    before = first.leases.own_lease
    first.line.cut = True
    world.run(30.0)
    assert first.leases.own_lease == ""
    first.line.cut = False
    world.run(20.0)
    assert world.settled()
    assert first.leases.own_lease not in ("", before)
    assert before not in world.server.objects


def test_an_outage_of_the_api_server_stops_all_and_all_go_on_after_it(world: World) -> None:
    first, second = settled_pair(world)
    first.line.cut = second.line.cut = True
    world.run(60.0)
    assert [len(replica.worker.active) for replica in (first, second)] == [0, 0]
    first.line.cut = second.line.cut = False
    assert world.until(world.settled, 30.0) <= 10.0


def test_a_stale_observer_does_not_take_over_what_lives(world: World) -> None:
    """It heard nothing for longer than the lease duration, but its line works again before its own deadline."""
    first, second = settled_pair(world)
    world.loop.pause(second.process)
    world.run(8.0)
    world.loop.wake(second.process)
    world.run(30.0)
    assert not any(what == "lost" for _, what, _ in first.worker.story)


@pytest.mark.parametrize(
    ("damage", "bound_seconds"),
    [
        (lambda server: server.objects.pop("sinkjob-shard-0"), 4.0),
        (lambda server: server.patch("sinkjob-shard-0", {"spec": {"holderIdentity": "bob"}}), 4.0),
        (lambda server: server.patch("sinkjob-shard-0", {"spec": {"holderIdentity": None}}), 4.0),
        (lambda server: server.objects["sinkjob-shard-0"].pop("spec"), 4.0),
        (lambda server: server.objects["sinkjob-shard-0"]["metadata"].pop("labels"), 4.0),
        (lambda server: [server.delete(name, "") for name in list(server.objects)], 8.0),
        (lambda server: [server.delete(name, "") for name in list(server.objects) if "replica" in name], 8.0),
        (lambda server: [body.pop("spec") for body in server.objects.values()], 8.0),
    ],
)
def test_leases_damaged_by_hand_are_put_right(
    world: World, damage: Callable[[object], object], bound_seconds: float
) -> None:
    settled_pair(world)
    world.judging = False  # the one case in which two may hold a shard, for a moment
    damage(world.server)
    world.run(bound_seconds)
    world.judging = True
    assert world.settled()
    world.run(40.0)
    assert world.settled()


def test_a_shard_lost_to_another_is_told_at_the_next_look(world: World) -> None:
    alone = world.replica("alone").start()
    world.run(5.0)
    world.server.create({"metadata": {"name": "sinkjob-replica-other"}, "spec": {"holderIdentity": "other"}})
    world.server.patch("sinkjob-shard-2", {"spec": {"holderIdentity": "other"}})
    world.run(2.5)
    assert [of for _, what, of in alone.worker.story if what == "lost"] == [frozenset({2})]
    assert not alone.leases.holds(2)


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_right_fails_at_the_start_and_is_named(world: World, verb: str) -> None:
    world.server.forbidden = {verb}
    replica = world.replica("replica").start()
    world.run(1.0)
    assert isinstance(replica.ended, ConfigurationError)
    assert f"may not {verb} leases.coordination.k8s.io in namespace {NAMESPACE}" in str(replica.ended)


def test_a_right_withdrawn_later_is_like_any_lost_lease(world: World) -> None:
    first, _ = settled_pair(world)
    world.server.forbidden = {"patch"}
    world.run(30.0)
    assert first.leases.held == frozenset()
    assert first.ended is None
    world.server.forbidden = set()
    world.run(30.0)
    assert world.settled()


@pytest.mark.parametrize("freed", ["released", "deleted"])
def test_a_watchs_hint_makes_it_look_at_once(world: World, freed: str) -> None:
    alone = world.replica("alone").start()
    world.run(4.1)
    name = "sinkjob-shard-0"
    if freed == "released":
        event = ("MODIFIED", world.server.patch(name, {"spec": {"holderIdentity": None}}))
    else:
        event = ("DELETED", world.server.objects.pop(name))
    alone.leases.hint(*event)
    world.run(0.3)
    assert world.server.holder(0) != ""


def test_hints_that_free_nothing_are_left_alone(world: World) -> None:
    alone = world.replica("alone").start()
    world.run(4.1)
    for body in world.server.objects.values():
        alone.leases.hint("MODIFIED", body)
    alone.leases.hint("DELETED", {"metadata": {"name": "kube-scheduler"}})
    assert not alone.leases._look.is_set()


def test_leaving_before_it_could_join_ends_too(world: World) -> None:
    replica = world.replica("replica")
    replica.line.cut = True
    replica.start()
    world.run(7.0)
    replica.leases.leave()
    world.run(20.0)
    assert replica.ended == "in order"


def test_a_lease_lost_while_leaving_ends_the_work_at_once(world: World) -> None:
    first, _ = settled_pair(world)
    first.worker.stop_seconds = 15.0
    first.line.cut = True
    first.leases.leave()
    world.run(12.0)
    assert first.worker.active == set()
    assert first.ended == "in order"


# Everything at once, by seed.

FAULTY_SECONDS = 150.0
HEALED_SECONDS = 30.0


def misfortune(world: World, dice: random.Random) -> None:
    """One fault, now."""
    living = [replica for replica in world.alive() if not replica.process.paused]
    if not living:
        return
    victim = dice.choice(living)
    kind = dice.choice(["crash", "pause", "cut", "answers", "noise", "leave", "slow stop"])
    seconds = dice.choice([1.0, 5.0, 9.0, 12.0, 20.0, 40.0])
    line = victim.line
    if kind == "crash":
        victim.kill()
        same_pod = dice.random() < 0.5
        instance = victim.settings.instance if same_pod else f"instance-{dice.getrandbits(64)}"
        world.loop.nature(dice.random() * 5.0, lambda: world.replica(victim.name, instance).start())
    elif kind == "pause":
        world.loop.pause(victim.process)
        world.loop.nature(seconds, world.loop.wake, victim.process)
    elif kind == "cut":
        line.cut = True
        world.loop.nature(seconds, lambda: setattr(line, "cut", False))
    elif kind == "answers":
        line.answers_cut = True
        world.loop.nature(seconds, lambda: setattr(line, "answers_cut", False))
    elif kind == "noise":
        line.lost_answers, line.lost_requests, line.refused = (dice.random() * 0.4 for _ in range(3))
        line.latency_max_seconds = dice.choice([0.05, 0.5, 3.0])
    elif kind == "leave":
        victim.leases.leave()
        world.loop.nature(seconds, lambda: world.replica(f"{victim.name}x", f"instance-{dice.getrandbits(64)}").start())
    else:
        victim.worker.stop_seconds = dice.choice([0.0, 1.0, 4.0, 30.0])


def heal(world: World) -> None:
    for replica in world.alive():
        world.loop.wake(replica.process)
        replica.connection.line.__init__()  # type: ignore[misc]
        replica.worker.stop_seconds = 0.0
        if isinstance(replica.ended, str):
            replica.kill()


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_no_shard_has_two_holders_and_in_the_end_each_has_one(seed: int) -> None:
    with World(seed, shards=seed % 7 + 1) as world:
        dice = random.Random(seed)
        for number in range(2 + seed % 3):
            replica = world.replica(f"r{number}", stop_seconds=5.0)
            replica.clock.speed = dice.uniform(0.9, 1.1)
            replica.clock.offset_seconds = dice.uniform(0.0, 1e6)
            replica.start()
        while world.loop.time() < FAULTY_SECONDS:
            world.run(dice.expovariate(0.25))
            misfortune(world, dice)
        world.run(41.0)  # what was begun ends
        heal(world)
        world.until(lambda: all(len(world.holders(shard)) == 1 for shard in range(world.shards)), HEALED_SECONDS)
        world.run(HEALED_SECONDS)
        assert world.settled()
        held = world.holding()
        world.run(30.0)
        assert world.holding() == held, "once settled, nothing moves"
