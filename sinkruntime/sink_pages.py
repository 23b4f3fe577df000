"""Writes the options tables of `docs/sinks/<type>.md` from the sinks' options: `python -m sinkruntime.sink_pages`.

Run by people; a test fails when a page's table is not what this makes. Everything else on a page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sinkruntime.spec.sink_options import load_sink_class

BEGIN = "<!-- options: made by `python -m sinkruntime.sink_pages` -->"
END = "<!-- end of options -->"


def page_with_table(type_name: str, page: str) -> str:
    """The page with its table made anew. Raises ValueError where it has no place for one."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page of {type_name} needs the lines {BEGIN} and {END}")
    options = load_sink_class(type_name, ()).Options
    lines = ["| option | default | meaning |", "| --- | --- | --- |", *_rows(options, "")]
    return "\n".join([f"{head}{BEGIN}", *lines, f"{END}{tail}"])


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, f"{path}.")
        else:
            yield f"| `{path}` | {_default(field)} | {(field.description or '').replace('|', chr(92) + '|')} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.default
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main(directory: Path) -> None:
    """Rewrite the tables of all pages."""
    for path in sorted(directory.glob("*.md")):
        path.write_text(page_with_table(path.stem, path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/sinks"))
