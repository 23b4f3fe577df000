"""`python -m benchmarks SUITE [--rounds N] [--scale X] [--only a,b]`; exit code 1 when a figure is short of its bar."""

from __future__ import annotations

import logging

import click

from benchmarks import operators, runtime, tables, transactional

SUITES = {
    "runtime": (runtime.run, runtime.NAMES),
    "operator": (operators.run, operators.NAMES),
    "tables": (tables.run, tables.NAMES),
    "transactional": (transactional.run, transactional.NAMES),
}


@click.command()
@click.argument("suite", type=click.Choice(sorted(SUITES)))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--scale", default=1.0, show_default=True, type=click.FloatRange(0.001, 100), help="Rows, checkpoints, jobs."
)
@click.option("--only", default="", help="Measurements, separated by commas; left out: all.")
def main(suite: str, rounds: int, scale: float, only: str) -> None:
    """Run a suite: one line a figure, `NAME min median bar ok|SHORT`."""
    run, names = SUITES[suite]
    wanted = [name for name in only.split(",") if name]
    if unknown := sorted(set(wanted) - set(names)):
        raise click.BadParameter(f"{', '.join(unknown)}: not of {', '.join(names)}", param_hint="--only")
    logging.basicConfig(level=logging.WARNING)
    if not run(rounds, scale, wanted):
        raise SystemExit(1)


main()
