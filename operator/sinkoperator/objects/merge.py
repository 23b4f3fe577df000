"""Merges a pod of the user with ours, as `kubectl apply` does: mappings by key, lists of named things by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What tells the entries of a list apart, by the list's field; any other list is replaced whole.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def merged(below: Any, above: Any, field: str = "") -> Any:
    """`above` laid over `below`; neither is changed. Entries of `above` that are new come first."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        both = {name: merged(below[name], above[name], name) for name in above if name in below}
        return {**below, **above, **both}
    key = KEYS.get(field)
    if key is None or not (_keyed(below, key) and _keyed(above, key)):
        return above
    present = {entry[key]: entry for entry in below}
    wanted = {entry[key]: entry for entry in above}
    laid = [merged(present[name], entry) if name in present else entry for name, entry in wanted.items()]
    return [*laid, *(entry for name, entry in present.items() if name not in wanted)]


def _keyed(value: Any, key: str) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) and key in each for each in value)
