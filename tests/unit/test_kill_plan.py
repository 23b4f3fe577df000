"""The plan of a kill matrix keeps what the matrix promises, for any seed."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.killmatrix.aims import Instant, Pending, Step
from tests.killmatrix.plan import FULL, plan


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kills", [FULL, 60, 100])
def test_a_full_plan_has_every_step_on_both_sides_and_enough_random_instants(kills: int, seed: int) -> None:
    aims = plan(kills, seed)
    assert len(aims) == kills
    steps = Counter((aim.step, aim.side) for aim in aims if isinstance(aim, Step))
    assert steps == Counter((f"S{n}", side) for n in range(1, 15) for side in ("before", "after"))
    instants = [aim for aim in aims if not isinstance(aim, Step)]
    assert len(instants) >= 30
    assert sum(isinstance(aim, Pending) for aim in instants) >= 5


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kills", [1, 2, 10, 30])
def test_a_sample_has_as_many_kills_as_asked_for_and_mixes_both_kinds(kills: int, seed: int) -> None:
    aims = plan(kills, seed)
    assert len(aims) == kills
    assert sum(isinstance(aim, Step) for aim in aims) == (kills + 1) // 2


@pytest.mark.parametrize("seed", range(20))
def test_some_recoveries_are_killed_twice_in_a_row(seed: int) -> None:
    aims = plan(FULL, seed)
    recoveries = [isinstance(aim, Instant) and aim.after == "epoch" for aim in aims]
    assert any(first and second for first, second in pairwise(recoveries))


def test_a_seed_makes_one_plan_and_another_seed_another() -> None:
    assert plan(60, 1) == plan(60, 1)
    assert plan(60, 1) != plan(60, 2)
