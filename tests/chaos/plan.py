"""Which kills a run has, in which order, from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: What can be killed. Struck in this order where several are killed together: the last two take the API server along.
KINDS = ("pause", "executor", "driver", "committer", "replicas", "apiserver", "node")
ALONE = KINDS
TOGETHER = ("driver+committer", "executor+pause", "driver+replicas", "committer+apiserver", "driver+node")
#: What each kind is killed at least.
ROUNDS = 5
RELEASE_SECONDS_MAX = 3.0


class PlanError(Exception):
    """What was asked for is no plan; the message says why."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill. `release_seconds`: how long the target stays held after it; `dice` decides whatever has a choice."""

    kinds: tuple[str, ...]
    release_seconds: float
    dice: int

    @property
    def name(self) -> str:
        """Its kinds, as they are asked for."""
        return "+".join(self.kinds)


def plan(kinds: Sequence[str], rounds: int, seed: int) -> list[Kill]:
    """Each of the kinds (`a+b`: together) `rounds` times: in rounds, each in an order of its own. Raises PlanError."""
    wanted = [_parts(kind) for kind in kinds]
    chance = random.Random(f"chaos {seed}")
    kills: list[Kill] = []
    for number in range(rounds):
        chance.shuffle(wanted)
        kills += [
            Kill(parts, round(chance.random() * RELEASE_SECONDS_MAX, 2), chance.randrange(1000) * 2 + number % 2)
            for parts in wanted
        ]
    return kills


def _parts(kind: str) -> tuple[str, ...]:
    parts = kind.split("+")
    unknown = [part for part in parts if part not in KINDS]
    if unknown:
        raise PlanError(f"KINDS: {unknown[0]!r} is none of {', '.join(KINDS)}")
    if len(set(parts)) < len(parts):
        raise PlanError(f"KINDS: {kind} names a kind twice")
    return tuple(sorted(parts, key=KINDS.index))
