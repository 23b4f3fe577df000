"""A sample of seeds and of mutations; `make sim` runs many more."""

import gc
import logging
from collections.abc import Iterator

import pytest

from tests.simulation import coverage
from tests.simulation.__main__ import simulate
from tests.simulation.teeth import MUTATIONS, put
from tests.simulation.trace import digest
from tests.simulation.world import run

#: Rules whose absence shows within a few seeds.
QUICK = (
    "epoch_is_one_processs",
    "garbage_by_ranges",
    "payload_before_the_decision",
    "resource_version",
    "unknown_is_not_done",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 100])
def test_no_seed_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + 100):
        result = run(seed)
        assert result.violation is None, f"python -m tests.simulation --seeds 1 --from {seed} --jobs 1"
        del result
        if seed % 10 == 0:
            gc.collect()


def test_a_seed_repeats_itself_whatever_ran_before() -> None:
    first = digest(run(7).world.trace)
    run(8)
    assert digest(run(7).world.trace) == first
    assert digest(run(8).world.trace) != first


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    failed = [outcome for outcome in simulate(0, 300, 1, name) if outcome.failed is not None]
    assert failed, f"{name} survived"


def test_there_are_mutations_enough_and_each_says_what_it_takes_out() -> None:
    assert len(MUTATIONS) >= 25
    assert all(patch.__doc__ for patch in MUTATIONS.values())


def test_a_mutation_of_what_is_not_there_any_more_is_an_error() -> None:
    with pytest.raises(AttributeError, match="mend the mutation"):
        put(coverage, "no_such_thing", None)


def test_what_cannot_be_reached_is_named_with_a_reason() -> None:
    assert set(coverage.UNREACHED) <= set(coverage.expected())
    assert all(coverage.UNREACHED.values())
