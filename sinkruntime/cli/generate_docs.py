"""Writes the generated pages of `docs/`: `python -m sinkruntime.cli.generate_docs`, or `make docs`.

`docs/cli.md` is made of the commands' own help texts, `docs/manifest.md` of the models, the end of `docs/protocol.md`
of the protocol's table. Tests fail when a page is not what this makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sinkruntime.cli.main import cli
from sinkruntime.protocol import diagram
from sinkruntime.spec import reference

_HEAD = """\
<!-- Made by `make docs` from sinkruntime/cli; do not edit. -->
# The command line
"""


def cli_text() -> str:
    """The page about the command line."""
    return "\n".join([_HEAD, *_sections(cli, "sinkjob", None)])


def _sections(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=path if parent is None else command.name, parent=parent)
    context.terminal_width = 100
    context.help_option_names = ["-h", "--help"]
    yield f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _sections(command.commands[name], f"{path} {name}", context)


def main() -> None:
    """Write the pages."""
    Path("docs/cli.md").write_text(cli_text(), encoding="utf-8")
    protocol = Path("docs/protocol.md")
    protocol.write_text(diagram.updated(protocol.read_text(encoding="utf-8")), encoding="utf-8")
    reference.main()


if __name__ == "__main__":
    main()
