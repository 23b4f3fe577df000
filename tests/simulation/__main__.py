"""Run the simulator: `python -m tests.simulation --seeds 1000 --from 0 [--jobs 2] [--mutation NAME | --mutations]`."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation import coverage, mutations, mutations_shells
from tests.simulation.teeth import MUTATIONS
from tests.simulation.trace import lines
from tests.simulation.world import run

#: Seeds that a worker takes at a time, so that a failure is told soon.
CHUNK = 50

#: With fewer seeds a count of zero says nothing.
SEEDS_FOR_ZEROS = 5000

#: Within how many seeds a mutation must be caught.
MUTATION_SEEDS = 2000


@dataclass(frozen=True, slots=True)
class Batch:
    """Seeds for a worker."""

    first: int
    beyond: int
    mutation: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker says: the first seed that failed, if one did, and the counts."""

    seeds: int
    failed: int | None
    violation: str
    hits: coverage.Hits


#: What this worker process counts; the modules register their mutations by being imported.
_hits: coverage.Hits = Counter()
_REGISTERED = (mutations, mutations_shells)


def _prepare(mutation: str) -> None:
    """In each worker, once."""
    logging.disable(logging.CRITICAL)
    gc.disable()  # a world is one big cycle; it is collected between worlds
    coverage.install(_hits)
    if mutation:
        MUTATIONS[mutation]()


def _work(batch: Batch) -> Outcome:
    """Run the seeds of a batch, up to the first that fails."""
    _hits.clear()
    for seed in range(batch.first, batch.beyond):
        result = run(seed)
        _hits.update({f"fault {kind}": count for kind, count in result.hits.items()})
        _hits.update({f"start {reason}": 1 for reason in result.world.person.heard})
        violation = result.violation
        del result
        if seed % 10 == 0:
            gc.collect()
        if violation is not None:
            return Outcome(seed - batch.first + 1, seed, violation, Counter(_hits))
    return Outcome(batch.beyond - batch.first, None, "", Counter(_hits))


def simulate(first: int, count: int, jobs: int, mutation: str = "") -> Iterator[Outcome]:
    """Outcomes of batches, in order of their seeds, until one fails."""
    chunk = max(1, min(CHUNK, count // jobs))
    batches = [Batch(at, min(at + chunk, first + count), mutation) for at in range(first, first + count, chunk)]
    if jobs == 1 and not mutation:
        _prepare("")
        yield from _until_failed(map(_work, batches))
        return
    with multiprocessing.get_context("fork").Pool(jobs, _prepare, (mutation,)) as pool:
        yield from _until_failed(pool.imap(_work, batches))


def _until_failed(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        yield outcome
        if outcome.failed is not None:
            return


def _seeds(first: int, count: int, jobs: int, mutation: str) -> int:
    """Run seeds; tell the first failure, or the counts."""
    began, hits, done = time.monotonic(), Counter[str](), 0
    for outcome in simulate(first, count, jobs, mutation):
        hits.update(outcome.hits)
        done += outcome.seeds
        if outcome.failed is not None:
            _tell(outcome, mutation)
            return 1
    zeros = coverage.report(hits)
    print(f"{done} seeds from {first}: no violation, {time.monotonic() - began:.0f} s on {jobs} processes")
    if zeros and count >= SEEDS_FOR_ZEROS:
        print(f"never hit: {', '.join(zeros)}")
        return 1
    return 0


def _tell(outcome: Outcome, mutation: str) -> None:
    """The seed first, then how to see it again, then what happened last."""
    seed = outcome.failed
    assert seed is not None
    also = f" --mutation {mutation}" if mutation else ""
    print(f"seed {seed}: {outcome.violation}")
    print(f"again: python -m tests.simulation --seeds 1 --from {seed} --jobs 1{also}")
    logging.disable(logging.CRITICAL)
    if mutation:
        MUTATIONS[mutation]()
    result = run(seed)
    print(f"job: {result.world.shape}")
    for line in list(lines(result.world.trace))[-60:]:
        print(line)
    print(f"seed {seed}: {result.violation} (step {result.steps}, {result.seconds:.1f} s)")


def _mutations(first: int, jobs: int, names: list[str]) -> int:
    """Take out one rule after another; each must be caught."""
    survivors = []
    for name in names:
        seeds = 0
        for outcome in simulate(first, MUTATION_SEEDS, jobs, name):
            seeds += outcome.seeds
            if outcome.failed is not None:
                print(f"{name}: caught by seed {outcome.failed}: {outcome.violation[:150]}", flush=True)
                break
        else:
            survivors.append(name)
            print(f"{name}: SURVIVED {seeds} seeds", flush=True)
    print(f"{len(names) - len(survivors)} of {len(names)} mutations caught")
    return 1 if survivors else 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="take out this rule")
    parser.add_argument("--mutations", action="store_true", help="take out each rule in turn; each must be caught")
    arguments = parser.parse_args()
    if arguments.mutations:
        return _mutations(arguments.first, arguments.jobs, list(MUTATIONS))
    return _seeds(arguments.first, arguments.seeds, arguments.jobs, arguments.mutation)


if __name__ == "__main__":
    sys.exit(main())
