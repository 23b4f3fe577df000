"""How commands show what they found: as text for people, or as JSON or YAML for programs.

A command makes one plain value (dicts, lists, text, numbers) and a text of it; nothing here reads or decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import yaml

#: Offsets of a source are shortened to this in tables; `explain` and JSON show them whole.
SHORT_CHARS = 36

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON or YAML for programs.",
)


def show(output: str, value: Any, text: str) -> None:
    """Print `value` as JSON or YAML, or `text`."""
    if output == "json":
        text = json.dumps(value, indent=2, ensure_ascii=False)
    elif output == "yaml":
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n")
    click.echo(text)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns side by side, as wide as their longest cell; the last one is never padded."""
    lines = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def fields(pairs: Sequence[tuple[str, object]], indent: str = "") -> str:
    """`name   value` lines; lines of a value that has several stand below each other, and empty values are left out."""
    shown = [(name, str(value)) for name, value in pairs if str(value) != ""]
    width = max((len(name) for name, _ in shown), default=0)
    lines = []
    for name, value in shown:
        first, *rest = value.split("\n")
        lines.append(f"{indent}{name.ljust(width)}  {first}")
        lines += [f"{indent}{' ' * width}  {line}" for line in rest]
    return "\n".join(lines)


def short(text: str) -> str:
    """In one line, the middle left out where it is long."""
    line = " ".join(text.split())
    if len(line) <= SHORT_CHARS:
        return line
    half = (SHORT_CHARS - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def time_text(milliseconds: int) -> str:
    """An instant as `2026-11-21T04:10:00Z`; "" for 0, which stands for never."""
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_text(seconds: float) -> str:
    """A span of time as the manifest writes it, rounded down: `45s`, `30m`, `7h`, `6d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds:g}s"


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """The entries that say something; 0 and false do."""
    return {key: item for key, item in value.items() if item is not None and item != "" and item != []}
