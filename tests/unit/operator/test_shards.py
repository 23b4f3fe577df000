"""What one look at the Leases means, and what a replica does about it: without I/O, without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkoperator.shards import Names, Sightings, View, garbage, plan_moves, shard_of, view_of

NAMES = Names()
LEASE_SECONDS = 15.0


def lease(name: str, holder: str | None = None, renewed: str = "") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {k: v for k, v in spec.items() if v}}


def replica(identity: str, renewed: str = "1") -> dict[str, Any]:
    return lease(NAMES.replica(identity), identity, renewed)


def shard(number: int, holder: str | None) -> dict[str, Any]:
    return lease(NAMES.shard(number), holder)


def look(sightings: Sightings, at: float, *leases: dict[str, Any], me: str = "me", shards: int = 4) -> View:
    return view_of(sightings.look(leases, at, at), me, NAMES, shards, LEASE_SECONDS)


def test_a_job_has_the_same_shard_in_every_process_and_release() -> None:
    assert [shard_of("data", name, 16) for name in ("a", "b", "c")] == [15, 10, 1]
    assert shard_of("a", "b-c", 16) != shard_of("a-b", "c", 16)


def test_jobs_spread_over_the_shards() -> None:
    counts = [0] * 16
    for number in range(1600):
        counts[shard_of("data", f"job-{number}", 16)] += 1
    assert min(counts) > 60


def test_names_are_read_back_and_others_are_not_ours() -> None:
    assert NAMES.identity_in("sinkjob-replica-a-b") == "a-b"
    assert NAMES.number_in("sinkjob-shard-12") == 12
    for other in ("sinkjob-shard-", "sinkjob-shard-x", "sinkjob-shard-01", "sinkjob-shard--1", "kube-scheduler"):
        assert NAMES.number_in(other) is None
    assert NAMES.identity_in("sinkjob-shard-1") == ""


def test_a_shard_is_free_without_a_holder_or_when_the_holders_lease_is_gone() -> None:
    view = look(Sightings(), 0.0, shard(0, None), shard(1, "gone"), shard(2, "other"), replica("other"))
    assert view.holders == {2: "other"}
    assert view.live == {"me", "other"}


def test_a_holder_lives_until_its_lease_was_seen_unchanged_for_the_lease_duration() -> None:
    sightings = Sightings()
    leases = (shard(0, "other"), replica("other"))
    look(sightings, 100.0, *leases)
    assert look(sightings, 114.9, *leases).holders == {0: "other"}
    assert look(sightings, 115.0, *leases).holders == {}


def test_a_renewal_starts_the_time_again() -> None:
    sightings = Sightings()
    look(sightings, 0.0, shard(0, "other"), replica("other", "1"))
    look(sightings, 14.0, shard(0, "other"), replica("other", "2"))
    assert look(sightings, 28.0, shard(0, "other"), replica("other", "2")).holders == {0: "other"}


def test_a_renewal_counts_from_when_a_watch_has_shown_it() -> None:
    sightings = Sightings()
    look(sightings, 0.0, shard(0, "other"), replica("other", "1"))
    sightings.note(replica("other", "2"), 0.1)
    leases = (shard(0, "other"), replica("other", "2"))
    assert look(sightings, 2.0, *leases).holders == {0: "other"}
    assert look(sightings, 15.0, *leases).holders == {0: "other"}
    assert look(sightings, 15.1, *leases).holders == {}


def test_a_watch_that_repeats_a_lease_does_not_make_it_younger() -> None:
    sightings = Sightings()
    leases = (shard(0, "other"), replica("other"))
    look(sightings, 0.0, *leases)
    sightings.note(replica("other"), 10.0)
    assert look(sightings, 15.0, *leases).holders == {}


def test_an_older_state_that_a_watch_shows_late_only_makes_the_takeover_later() -> None:
    sightings = Sightings()
    leases = (shard(0, "other"), replica("other", "2"))
    look(sightings, 0.0, *leases)
    sightings.note(replica("other", "1"), 5.0)
    look(sightings, 6.0, *leases)
    assert look(sightings, 20.9, *leases).holders == {0: "other"}
    assert look(sightings, 21.0, *leases).holders == {}


@pytest.mark.parametrize("written", ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", "no time at all"])
def test_the_time_in_a_lease_is_never_read(written: str) -> None:
    sightings = Sightings()
    assert look(sightings, 0.0, shard(0, "other"), replica("other", written)).holders == {0: "other"}
    assert look(sightings, 15.0, shard(0, "other"), replica("other", written)).holders == {}


def test_a_slow_answer_never_makes_a_lease_look_older_than_it_is() -> None:
    sightings = Sightings()
    leases = (shard(0, "other"), replica("other"))
    sightings.look(leases, 0.0, 4.0)  # renewed at 3.9, just before the answer
    seen = sightings.look(leases, 18.9, 30.0)
    assert seen[NAMES.replica("other")].unchanged_seconds == pytest.approx(14.9)


def test_a_lease_without_a_spec_has_no_holder() -> None:
    body = {"metadata": {"name": NAMES.shard(0)}}
    assert Sightings().look([body], 0.0, 0.0)[NAMES.shard(0)].holder == ""


def test_own_shards_stay_own_while_the_own_lease_is_missing() -> None:
    assert look(Sightings(), 0.0, shard(0, "me")).of("me") == {0}


def test_alone_a_replica_takes_all() -> None:
    assert sorted(plan_moves(View(frozenset({"me"}), {}), "me", 4).take) == [0, 1, 2, 3]


def test_a_replica_gives_back_what_is_over_its_share_and_takes_nothing() -> None:
    moves = plan_moves(View(frozenset({"me", "other"}), dict.fromkeys(range(5), "me")), "me", 5)
    assert moves.give_back == (3, 4)
    assert moves.take == ()


def test_what_is_being_given_back_is_not_exchanged_for_something_else() -> None:
    view = View(frozenset({"me", "other"}), dict.fromkeys(range(5), "me"))
    assert plan_moves(view, "me", 5, frozenset({0})).give_back == (4, 0)


@given(st.lists(st.text("abc", min_size=1), min_size=1, max_size=7, unique=True), st.integers(1, 100), st.data())
def test_replicas_that_see_the_same_come_to_even_shares(members: list[str], shards: int, data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.sampled_from(["", *members]), min_size=shards, max_size=shards))
    holders = {number: owner for number, owner in enumerate(owners) if owner}
    for _ in range(2):  # give back, take
        everyone = View(frozenset(members), dict(holders))
        for me in members:
            moves = plan_moves(everyone, me, shards)
            for number in moves.give_back:
                assert holders.pop(number) == me
        everyone = View(frozenset(members), dict(holders))
        for me in members:
            wanted = plan_moves(View(everyone.live, dict(holders)), me, shards)  # one after the other: compare-and-swap
            holders.update(dict.fromkeys(wanted.take, me))
    counts = [sum(owner == me for owner in holders.values()) for me in members]
    assert sum(counts) == shards
    assert max(counts) - min(counts) <= 1


def test_leases_of_dead_replicas_and_their_shards_beyond_our_last_one_are_garbage() -> None:
    sightings = Sightings()
    leases = (replica("dead"), shard(0, "dead"), shard(9, "dead"), shard(3, ""), replica("me"))
    seen = sightings.look(leases, 0.0, 0.0)
    assert [lease.name for lease in garbage(seen, view_of(seen, "me", NAMES, 4, LEASE_SECONDS), NAMES, 4)] == []
    seen = sightings.look(leases, 15.0, 15.0)
    view = view_of(seen, "me", NAMES, 4, LEASE_SECONDS)
    assert [lease.name for lease in garbage(seen, view, NAMES, 4)] == [NAMES.replica("dead"), NAMES.shard(9)]


def test_a_live_replicas_shards_beyond_our_last_one_are_left_alone() -> None:
    """While replicas with different `--shards` run side by side."""
    sightings = Sightings()
    sightings.look((shard(9, "other"), replica("other", "1")), 0.0, 0.0)
    seen = sightings.look((shard(9, "other"), replica("other", "2")), 15.0, 15.0)
    assert garbage(seen, view_of(seen, "me", NAMES, 4, LEASE_SECONDS), NAMES, 4) == []
