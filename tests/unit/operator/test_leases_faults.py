"""Leases when something goes wrong: one fault at a time, then all of them by seed, then healed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from sinkoperator.leases import VERBS
from sinkruntime.errors import ConfigurationError
from tests.unit.operator.lease_world import LEASE_SECONDS, NAMESPACE, TAKEOVER_SECONDS, Server, World, settled_pair


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


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
@pytest.mark.parametrize(("watched", "late_seconds"), [(True, 0.0), (False, 2.0)], ids=["watched", "only looks"])
def test_a_takeover_waits_for_nothing_but_the_lease(seed: int, watched: bool, late_seconds: float) -> None:
    """The last renewal is seen at once; without a watch, 2 s late at worst. A look comes when the Lease expires."""
    with World(seed) as world:
        first, second = settled_pair(world)
        second.line.watch_cut = not watched
        world.run(0.41 * seed)
        first.kill()
        assert world.until(world.settled, 30.0) <= late_seconds + LEASE_SECONDS + 0.3


@pytest.mark.parametrize("after_seconds", [1.0, 5.0, 14.0])
def test_a_takeover_does_not_wait_for_a_replica_that_has_just_come(world: World, after_seconds: float) -> None:
    """The dead one's successor saw it for the first time when it was dead already, and takes part of its shards."""
    first, _ = settled_pair(world)
    first.kill()
    world.run(after_seconds)
    world.replica("first", "another pod").start()
    assert world.until(world.settled, 30.0) <= LEASE_SECONDS - after_seconds + 0.5


@pytest.mark.parametrize("late_seconds", [1.0, 7.0, 14.0])
def test_a_watch_that_lags_takes_nobody_for_dead(world: World, late_seconds: float) -> None:
    first, second = settled_pair(world)
    for replica in (first, second):
        replica.line.watch_seconds = late_seconds
    before = world.holding()
    world.run(60.0)
    assert world.holding() == before
    first.kill()
    world.until(world.settled, 2 * TAKEOVER_SECONDS)


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


def test_a_look_that_is_answered_while_it_is_paused_begins_nothing_when_it_wakes(world: World) -> None:
    """The look shows shards that it took by writes whose answers were lost; by now it is too late for them."""
    alone = world.replica("alone").start()
    world.until(lambda: alone.leases.own_lease != "", 1.0)
    alone.line.answers_cut = True
    world.until(lambda: all(world.server.holder(shard) for shard in range(world.shards)), 3.0)
    alone.line.answers_cut = False
    alone.line.back_seconds = 0.5
    read = world.server.reads
    world.until(lambda: world.server.reads > read, 8.0)
    world.loop.pause(alone.process)
    world.run(12.0)
    world.loop.wake(alone.process)
    world.run(0.1)
    assert alone.worker.story == []


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
    world: World, damage: Callable[[Server], object], bound_seconds: float
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
    world.replica("alone").start()
    world.run(4.1)
    name = "sinkjob-shard-0"
    if freed == "released":
        world.server.patch(name, {"spec": {"holderIdentity": None}})
    else:
        world.server.delete(name, "")
    world.run(0.3)
    assert world.server.holder(0) != ""


def test_hints_that_free_nothing_are_left_alone(world: World) -> None:
    alone = world.replica("alone").start()
    world.run(4.1)
    for body in world.server.objects.values():
        alone.leases.hint("MODIFIED", body)
    alone.leases.hint("DELETED", {"metadata": {"name": "kube-scheduler"}})
    assert not alone.leases._look.is_set()


@pytest.mark.parametrize("request_name", ["list", "create"])
def test_an_error_that_was_not_foreseen_ends_it_and_all_is_lost(world: World, request_name: str) -> None:
    """The process ends with it, and starts again: better than a replica that holds shards and does nothing."""
    replica = world.replica("replica").start()
    world.run(5.0)
    if request_name == "create":
        world.server.delete("sinkjob-shard-0", "")

    def broken(*_: object) -> None:
        raise ValueError("not foreseen")

    setattr(world.server, request_name, broken)
    world.run(3.0)
    assert isinstance(replica.ended, ValueError)
    assert replica.worker.active == set()
    assert not replica.leases.held


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
    kind = dice.choice(["crash", "pause", "cut", "answers", "noise", "leave", "slow stop", "watch"])
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
    elif kind == "watch":
        line.watch_cut, line.watch_seconds = dice.random() < 0.3, dice.choice([0.0, 2.0, 14.0])
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
