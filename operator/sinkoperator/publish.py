"""Writes a job's status: only what differs, not too often, and never over what somebody else wrote meanwhile.

`reconcile` calls it with the status that the plan made. What a later plan reads from the status (`urgent`) is written
at once and before anything is done; counters and times wait until the last write is some seconds old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkoperator.world import Key, World, key_of
from sinkruntime.environment import Environment
from sinkruntime.kube import SINK_JOB, Api, Object

#: A busy job's counters change with every checkpoint; the API server is written to this often at most.
PAUSE_SECONDS = 5.0


class Publisher:
    """See the module."""

    def __init__(self, api: Api, world: World, environment: Environment) -> None:
        self._api = api
        self._world = world
        self._clock = environment.clock
        self._written: dict[Key, float] = {}

    async def publish(self, body: Object, status: Mapping[str, Any], urgent: bool) -> tuple[Object, float]:
        """Write the status of the SinkJob `body`, if it differs.

        Answers the SinkJob after it, and after how many seconds to try again where it has to wait (else 0). Raises
        `Conflict` where the SinkJob has changed since it was read, and any other `ApiError`.
        """
        patch = difference(body.get("status") or {}, status)
        if not patch:
            return body, 0.0
        key, now = key_of(body), self._clock.monotonic()
        wait = self._written.get(key, -PAUSE_SECONDS) + PAUSE_SECONDS - now
        if not urgent and not tells(patch) and wait > 0:
            return body, wait
        version = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}}
        after = await self._api.patch(SINK_JOB, *key, {**version, "status": patch}, subresource="status")
        self._written[key] = now
        self._world.keep(after)
        return after, 0.0

    def forget(self, key: Key) -> None:
        """The job is gone, or another replica's."""
        self._written.pop(key, None)


def tells(patch: Mapping[str, Any]) -> bool:
    """Whether the patch holds what people wait for, and not only counts and times."""
    return bool(patch.keys() & {"phase", "conditions", "observedGeneration", "failure", "lastHandledAction"})


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) from one status to another; empty where they are equal."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = _plain(value)
        elif isinstance(value, Mapping) and isinstance(before[name], Mapping):
            inner = difference(before[name], value)
            if inner:
                patch[name] = inner
        elif before[name] != _plain(value):
            patch[name] = _plain(value)
    return patch


def _plain(value: Any) -> Any:
    """As JSON has it. A null in a status would delete the field that it stands in, so there is none."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
