"""Which faults a seed has, how often, and what was hit: the dice of a run.

Each seed draws a subset of the kinds ("swarm"), for a run with every fault at once gets nowhere and so tests little.
`world`, `ledger`, `targets` and the actors ask `hit`; after `heal` the answer is always no.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

#: Kinds that come with a call: the rate at which they do when the seed has them.
RATES = {
    "store.unavailable": 0.02,  # a window in which nobody reaches the ledger
    "store.conflict": 0.04,  # someone else changed the object's metadata
    "store.lost_before": 0.04,  # no answer, and it did not happen
    "store.lost_after": 0.05,  # no answer, and it happened
    "store.late": 0.04,  # no answer, and it arrives later, perhaps after its sender's death
    "store.duplicated": 0.05,  # it arrives twice
    "store.slow": 0.15,
    "store.no_hint": 0.3,  # a watch that says nothing
    "store.false_hint": 0.2,  # a watch that says too much
    "call.slow": 0.15,  # perhaps beyond the time limit
    "call.hangs": 0.08,  # beyond the time limit, with or without an effect, now or later
    "call.raises_before": 0.05,
    "call.raises_after": 0.05,
    "call.dies_within": 0.02,  # its process dies after some of its effects
    "target.unavailable": 0.06,
    "target.lost_answer": 0.06,
    "target.refused": 0.04,
    "task.crash": 0.05,  # staging fails midway, and is tried again
    "task.fatal": 0.03,  # staging fails for good: the driver raises
    "task.speculative": 0.2,  # a second attempt, whose result Spark does not keep
    "task.zombie": 0.08,  # such an attempt that stages long afterwards
    "task.short_life": 0.1,  # what is staged will expire soon
    "task.lineage": 0.02,  # a result is missing, or there twice
    "step.pause": 0.02,  # a process stops for a while in the middle of something
    "step.kill": 0.015,  # a process dies in the middle of something
}

#: How often an event with its own moment comes then.
EVENT_RATE = 0.15

#: Kinds that come by themselves: the weight with which each is drawn.
EVENTS = {
    "kill.driver": 5,
    "kill.operator": 4,
    "pause.driver": 4,
    "pause.operator": 4,
    "lease.lost": 4,
    "lease.split": 3,
    "driver.twin": 2,
    "driver.epoch_skipped": 2,
    "person.abort": 3,
    "person.impatient": 1,
    "person.abandon": 2,
    "person.retry": 3,
    "target.hold": 4,
    "target.vanish": 1,
    "target.rollback": 1,
    "target.replaced": 1,
    "target.ahead": 2,
    "spark.restored": 2,
    "spark.restored_late": 2,
    "spark.deleted": 1,
    "spark.deleted_late": 1,
    "clock.skew": 2,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed's job looks like."""

    sinks: tuple[tuple[str, str, bool, bool], ...]  # (name, tier, in the driver, staged in place)
    batches: int
    subtasks_max: int
    max_pending: int
    operators: int
    chunk_size: int
    inline_bytes_max: int
    states: bool
    life_seconds: float | None
    commit_timeout_seconds: float
    batch_job: bool
    careless: bool  # a driver that does not look before it decides: the ledger itself must refuse
    through_codec: bool
    stubborn: bool  # nobody accepts anything after the faults have stopped


def draw_shape(rng: random.Random) -> Shape:
    """The job of a seed."""
    count = rng.choice((1, 2, 2, 2, 3))
    sinks = tuple(
        (
            f"s{index}",
            rng.choice(("committer", "aggregated", "both")),
            rng.random() < 0.35,
            rng.random() < 0.3,
        )
        for index in range(count)
    )
    batch_job = rng.random() < 0.06
    return Shape(
        sinks=sinks,
        batches=1 if batch_job else rng.randint(3, 8),
        subtasks_max=rng.randint(1, 3),
        max_pending=rng.choice((1, 1, 2, 3, 4)),
        operators=rng.choice((1, 2)),
        chunk_size=rng.choice((1, 2, 64)),
        inline_bytes_max=rng.choice((0, 0, 200, 65536)),
        states=rng.random() < 0.4,
        life_seconds=rng.choice((15.0, 40.0, 90.0)) if rng.random() < 0.25 else None,
        commit_timeout_seconds=rng.choice((2.0, 5.0)),
        batch_job=batch_job,
        careless=rng.random() < 0.1,
        through_codec=rng.random() < 0.03,
        stubborn=rng.random() < 0.3,
    )


class Dice:
    """Draws and counts."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.healed = False
        self.hits: Counter[str] = Counter()
        scale = rng.choice((0.0, 0.5, 1.0, 1.0, 2.0))
        self._rates = {kind: rate * scale for kind, rate in RATES.items() if rng.random() < 0.5}
        events = {kind: weight for kind, weight in EVENTS.items() if rng.random() < 0.4}
        self._events = list(events)
        self._weights = list(events.values())

    def hit(self, kind: str) -> bool:
        """Whether this fault comes now."""
        rate = self._rates.get(kind)
        if rate is None or self.healed or self.rng.random() >= rate:
            return False
        self.hits[kind] += 1
        return True

    def has(self, kind: str) -> bool:
        """Whether the seed has faults of this kind, and they go on."""
        return kind in self._rates and not self.healed

    def hit_event(self, kind: str, rate: float = EVENT_RATE) -> bool:
        """Whether an event that has its own moment comes at this one."""
        if self.healed or kind not in self._events or self.rng.random() >= rate:
            return False
        self.hits[kind] += 1
        return True

    def event(self) -> str | None:
        """The next thing that happens by itself."""
        return self.rng.choices(self._events, self._weights)[0] if self._events and not self.healed else None

    def seconds(self, mean: float) -> float:
        """A time that is mostly short and sometimes long."""
        return self.rng.expovariate(1.0 / mean)
