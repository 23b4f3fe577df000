"""Names stay within what a label and a host name may have, and differ where jobs do."""

from __future__ import annotations

import re

import pytest

from sinkruntime.kube.names import NAME_LENGTH_MAX, bounded, labels, ledger_name, payload_prefix, selector


def test_short_names_are_plain() -> None:
    assert ledger_name("flights") == "flights-ledger"
    assert payload_prefix("flights") == "flights-payload"


@pytest.mark.parametrize("length", range(50, 64))
def test_long_names_fit_and_stay_apart(length: int) -> None:
    first, second = "a" * length + "x", "a" * length + "y"
    names = {bounded(job, suffix) for job in (first, second) for suffix in ("ledger", "payload", "driver-12")}
    assert len(names) == 6
    for name in names:
        assert len(name) <= NAME_LENGTH_MAX
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_the_selector_finds_what_the_labels_mark() -> None:
    marks = labels("flights", "payload")
    assert all(
        marks[name] == value for name, value in (part.split("=") for part in selector("flights", "payload").split(","))
    )
