"""The patch from one status to the next."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkoperator.publish import difference, tells

VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
STATUSES = st.dictionaries(st.text(max_size=2), VALUES, max_size=4)


def merged(before: Any, patch: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), value)
    return after


@given(STATUSES, STATUSES)
def test_the_patch_leads_to_the_status(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merged(before, difference(before, after)) == after


@given(STATUSES)
def test_an_equal_status_is_not_written(status: dict[str, Any]) -> None:
    assert difference(status, MappingProxyType(status)) == {}


def test_only_what_differs_is_written() -> None:
    before = {"phase": "Running", "commit": {"pending": 1, "inDoubt": 0}, "driver": {"podName": "a"}}
    after = {"phase": "Running", "commit": {"pending": 2, "inDoubt": 0}}

    assert difference(before, after) == {"commit": {"pending": 2}, "driver": None}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"commit": {"pending": 2}}, False),
        ({"executors": {"running": 1}}, False),
        ({"phase": "Failed"}, True),
        ({"conditions": []}, True),
    ],
)
def test_people_wait_for_phases_and_not_for_counts(patch: dict[str, Any], said: bool) -> None:
    assert tells(patch) is said
