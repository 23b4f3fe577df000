"""Each sink has a page, and its options table is that of the options themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkruntime.sink_pages import page_with_table
from sinkruntime.spec.sink_options import sink_types

PAGES = Path(__file__).parents[3] / "docs" / "sinks"
OURS = [name for name in sink_types() if name != "memory"]  # it is for tests only


@pytest.mark.parametrize("name", OURS)
def test_the_page_has_the_options_as_they_are(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert page == page_with_table(name, page), "run `python -m sinkruntime.sink_pages`"


def test_no_page_is_left_of_a_sink_that_is_gone() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(OURS)
