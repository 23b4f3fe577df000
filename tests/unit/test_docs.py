"""Links in the repository's pages lead somewhere: to a file, and to a heading where they name one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_layout import ROOT, repository_files

PAGES = [file for file in repository_files() if file.suffix == ".md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def broken(page: Path, text: str) -> Iterator[str]:
    """The relative links of a page that lead nowhere."""
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT)
        known = target.is_dir() or target in FILES or target == page
        if not (inside and known) or (anchor and anchor not in anchors(text if target == page else target.read_text())):
            yield link


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings (of equal ones the first)."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


FILES = frozenset(repository_files())


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_link_leads_somewhere(page: Path) -> None:
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "# A `b.c[]` d\n[x](nowhere.md) [x](#a-bc-d) [x](#e) [x](../outside.md) [x](docs/) [x](https://x.y/z#q)"
    assert list(broken(ROOT / "README.md", text)) == ["nowhere.md", "#e", "../outside.md"]
