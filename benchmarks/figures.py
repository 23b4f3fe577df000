"""What a suite is made of: measurements that run in rounds, and the figures that are read off their rounds.

The suites make `Measurement`s, `run_suite` runs them and prints one line a figure. It measures nothing itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

#: By the name of a series (`ours`, `theirs`, …), its value in one round.
Round = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a suite: how it is read off the rounds, and what it has to keep.

    `series` is compared with the series `against`, or stands for itself where that is "". `judged` says which of the
    two columns is held against the bar; `at_least` turns the comparison round.
    """

    name: str
    bar: float
    series: str
    against: str = ""
    at_least: bool = False
    judged: str = "min"

    def value(self, rounds: Sequence[Round], pick: Callable[[Sequence[float]], float]) -> float:
        """The figure, with `pick` (min or median) of each series; a ratio is that of the picked values."""
        mine = pick([values[self.series] for values in rounds])
        return mine / pick([values[self.against] for values in rounds]) if self.against else mine

    def line(self, rounds: Sequence[Round]) -> tuple[str, bool]:
        """`NAME min median bar ok|SHORT`, and whether it is ok."""
        least, middle = self.value(rounds, min), self.value(rounds, median)
        judged = least if self.judged == "min" else middle
        good = judged >= self.bar if self.at_least else judged <= self.bar
        return f"{self.name} {least:.3f} {middle:.3f} {self.bar:g} {'ok' if good else 'SHORT'}", good


class Measurement(Protocol):
    """Something that can be measured again and again."""

    name: str
    figures: Sequence[Figure]
    warm_up: bool  # whether a round is run and dropped first

    def prepare(self) -> None:
        """Make the input; not measured."""

    def round(self, index: int) -> Round:
        """Measure every series once; which goes first alternates with `index`."""


def run_suite(measurements: Sequence[Measurement], rounds: int) -> bool:
    """Run all, print the figures to standard output and progress to standard error; whether every figure is ok."""
    good = True
    for measurement in measurements:
        say(f"{measurement.name}: preparing")
        measurement.prepare()
        if measurement.warm_up:
            say(f"{measurement.name}: warm-up, dropped: {_text(_measured(measurement, 0))}")
        taken = []
        for index in range(rounds):
            taken.append(_measured(measurement, index))
            say(f"{measurement.name}: round {index + 1} of {rounds}: {_text(taken[-1])}")
        for figure in measurement.figures:
            line, fine = figure.line(taken)
            print(line, flush=True)
            good = good and fine
    return good


def in_turn(index: int, series: Sequence[str]) -> Sequence[str]:
    """The series in the order of this round: each goes first equally often, and follows each other one."""
    shift = (index // 2) % len(series)
    turned = [*series[shift:], *series[:shift]]
    return turned if index % 2 == 0 else turned[::-1]


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _measured(measurement: Measurement, index: int) -> Round:
    os.sync()  # what the former round left to be written is not to be waited for in this one
    return measurement.round(index)


def _text(values: Round) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())
