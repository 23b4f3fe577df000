"""Which kills a matrix has, from their number and a seed. Pure."""

from __future__ import annotations

import random

from tests.killmatrix.aims import Aim, Instant, Pending, Side, Step

SIDES: tuple[Side, ...] = ("before", "after")
STEPS = [Step(f"S{number}", side, 1) for number in range(1, 15) for side in SIDES]

#: A full matrix has every step, and so many random instants at least.
RANDOM_MIN = 30
FULL = len(STEPS) + RANDOM_MIN

#: Of the random instants: one in so many falls between decision and commit, one in so many into a recovery.
PENDING_EVERY = 4
RECOVERY_EVERY = 4


def plan(kills: int, seed: int) -> list[Aim]:
    """The aims, in a random order that the seed decides: all steps and random instants, or a sample of both."""
    chance = random.Random(f"plan {seed}")
    if kills >= FULL:
        steps, instants = len(STEPS), kills - len(STEPS)
    else:
        steps = (kills + 1) // 2
        instants = kills - steps
    blocks: list[list[Aim]] = [[_counted(step, chance)] for step in chance.sample(STEPS, steps)]
    blocks += _random(instants, chance)
    chance.shuffle(blocks)
    return [aim for block in blocks for aim in block]


def bulk_plan(kills: int, seed: int) -> list[Aim]:
    """Random instants only; few checkpoints pass between two kills, for each is large."""
    chance = random.Random(f"plan {seed}")
    return [aim for block in _random(kills, chance, pending_max=1) for aim in block]


def _counted(step: Step, chance: random.Random) -> Step:
    return Step(step.step, step.side, chance.randint(1, 3))


def _random(number: int, chance: random.Random, pending_max: int = 6) -> list[list[Aim]]:
    """Blocks of random instants. One block is killed in a row: somewhere, then once or twice in its recovery."""
    blocks: list[list[Aim]] = []
    left = number
    for at in range(number):
        if left <= 0:
            break
        if at % PENDING_EVERY == 0:
            block: list[Aim] = [Pending(chance.randint(1, pending_max), chance.choice((0.0, chance.random() * 0.003)))]
        elif at % PENDING_EVERY == 1:
            block = [Instant("start", chance.random() * 10.0)]
        else:
            block = [Instant("decision", chance.random() * 2.5)]
        if at % RECOVERY_EVERY == 0:
            again = min(left - 1, 2 if at % (2 * RECOVERY_EVERY) == 0 else 1)
            block += [Instant("epoch", chance.random() * 1.5) for _ in range(again)]
        blocks.append(block)
        left -= len(block)
    return blocks
