"""The registry of mutations: rules of the real code that can be taken out, by name. See `mutations`."""

from __future__ import annotations

from collections.abc import Callable

Patch = Callable[[], None]

#: By name; each takes its rule out of this process for good.
MUTATIONS: dict[str, Patch] = {}


def mutation(patch: Patch) -> Patch:
    """Register a mutation under its function's name."""
    MUTATIONS[patch.__name__] = patch
    return patch


def put(owner: object, name: str, value: object) -> None:
    """Put something else in the place of a function, method or table."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name} any more: mend the mutation")
    setattr(owner, name, value)
