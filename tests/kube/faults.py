"""An `Api` whose k-th write goes wrong: the process dies before it or after it, or its answer is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, cast

from sinkruntime.kube import Api, Unanswered

WRITES = frozenset({"create", "replace", "patch", "delete"})


class Fault(Enum):
    """What happens at the write."""

    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"
    ANSWER_LOST = "answer lost"  # it was done
    NEVER_ARRIVED = "never arrived"  # it was not done, and nobody can tell


class Died(BaseException):
    """The process that made the write is dead."""


class Faults:
    """Counts the writes of all `Api`s that it wraps, and lets the `at`-th go wrong (0: none)."""

    def __init__(self, at: int = 0, fault: Fault = Fault.DIES_AFTER) -> None:
        self.writes: list[str] = []
        self._at = at
        self._fault = fault

    def wrap(self, api: Api) -> Api:
        """The same, with its writes counted."""
        return cast(Api, _Wrapped(api, self))

    async def write(self, what: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """One write."""
        self.writes.append(what)
        if len(self.writes) != self._at:
            return await make()
        if self._fault is Fault.DIES_BEFORE:
            raise Died(what)
        if self._fault is Fault.NEVER_ARRIVED:
            raise Unanswered(f"{what}: a fault of the test's")
        answer = await make()
        if self._fault is Fault.ANSWER_LOST:
            raise Unanswered(f"{what}: a fault of the test's, it was done")
        raise Died(f"after {what}: {answer!r:.60}")


class _Wrapped:
    def __init__(self, api: Api, faults: Faults) -> None:
        self._api = api
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name not in WRITES:
            return found

        async def write(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._faults.write(f"{name} {kind.name}", lambda: found(kind, *args, **kwargs))

        return write
