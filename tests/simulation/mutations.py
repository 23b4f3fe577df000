"""Rules taken out one at a time, to show that the simulator would notice."""

from __future__ import annotations

MUTATIONS: dict[str, object] = {}


def apply(name: str) -> None:
    """Take out a rule in this process, for good."""
