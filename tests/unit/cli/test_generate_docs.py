"""docs/cli.md is what the commands' help texts make of it."""

from pathlib import Path

from sinkruntime.cli.generate_docs import cli_text

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_the_page_is_what_the_help_texts_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_text(), "make docs"
