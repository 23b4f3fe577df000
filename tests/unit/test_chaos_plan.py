"""The plan of a chaos run: what the seed decides, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.plan import ALONE, KINDS, ROUNDS, TOGETHER, PlanError, plan


def test_each_kind_and_each_pair_is_killed_as_often_as_is_asked_for() -> None:
    kills = plan((*ALONE, *TOGETHER), ROUNDS, seed=1)
    assert {frozenset(kill.kinds) for kill in kills} == {frozenset(kind.split("+")) for kind in (*ALONE, *TOGETHER)}
    assert set(Counter(kill.kinds for kill in kills).values()) == {ROUNDS}


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    assert plan(ALONE, ROUNDS, seed=7) == plan(ALONE, ROUNDS, seed=7)
    assert plan(ALONE, ROUNDS, seed=7) != plan(ALONE, ROUNDS, seed=8)


def test_an_api_server_is_stopped_in_one_round_and_killed_in_the_next() -> None:
    assert [kill.dice % 2 for kill in plan(["apiserver"], 4, seed=3)] == [0, 1, 0, 1]


def test_what_needs_the_api_server_is_struck_before_it() -> None:
    (kill,) = plan(["node+executor"], 1, seed=1)
    assert kill.kinds == ("executor", "node")
    assert KINDS[-2:] == ("apiserver", "node")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("drivers", "'drivers' is none of pause, executor"),
        ("driver+driver", "names a kind twice"),
        ("", "'' is none of"),
    ],
)
def test_a_kind_that_is_none_is_refused(kind: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan([kind], 1, seed=1)
