"""Writes the generated parts of `docs/operator.md`: `python -m sinkoperator.reference`, or `make docs`.

Options, metrics and the reasons of `recovery.accept` are as the code has them; what they are for is written by hand
around them. A test fails when a part is not what this makes. It starts nothing and connects to nothing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from sinkoperator.metrics import OperatorMetrics
from sinkoperator.settings import command
from sinkruntime.environment import Environment
from sinkruntime.protocol.start import ADVICE

PAGE = Path("docs/operator.md")
COLUMNS = 110


def options() -> str:
    """The command line's own help."""
    made = command(lambda settings: 0)
    context = click.Context(made, info_name="python -m sinkoperator", auto_envvar_prefix="SINKJOB")
    context.terminal_width = context.max_content_width = COLUMNS
    context.help_option_names = ["-h", "--help"]
    return f"```text\n{made.get_help(context)}\n```"


def metrics() -> str:
    """Every series that the operator has, by the name under which Prometheus stores it."""
    rows = []
    for family in OperatorMetrics(Environment.real()).registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {_labels(family.name)} | {family.documentation} |")
    return "\n".join(["| name | kind | labels | what it tells |", "| --- | --- | --- | --- |", *sorted(rows)])


def _labels(family: str) -> str:
    """Of a family that has no value yet: only the library's own index of names knows them."""
    registry = OperatorMetrics(Environment.real()).registry
    found = registry._names_to_collectors[family]
    return ", ".join(f"`{name}`" for name in found._labelnames)  # type: ignore[attr-defined]


def acceptances() -> str:
    """What the start check may find, and what can be done about it."""
    rows = [f"| `{reason}` | {advice} |" for reason, advice in ADVICE.items()]
    return "\n".join(["| reason | what you can do, and what accepting means |", "| --- | --- |", *rows])


PARTS = {"options": options, "metrics": metrics, "acceptances": acceptances}


def updated(page: str) -> str:
    """The page with its generated parts made anew. Raises ValueError where the markers of one are missing."""
    for name, make in PARTS.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"expected {begin!r} and {end!r} in the page")
        head, tail = pattern.split(page)
        page = f"{head}{begin}\n{make()}\n{end}{tail}"
    return page


def main(path: Path = PAGE) -> None:
    """Write the page."""
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
