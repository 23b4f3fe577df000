"""Times single functions of the product while it runs as it is: wraps them for the length of a `with`.

The measurements use it to tell the protocol's own cost from the staging. It never changes what a function does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any


class Stopwatch:
    """Wraps attributes of classes or modules; `seconds` has the length of each call by name, in order."""

    def __init__(self, *functions: tuple[object, str]) -> None:
        self._functions = [(owner, name, getattr(owner, name)) for owner, name in functions]
        self.seconds: dict[str, list[float]] = {name: [] for _, name in functions}

    def __enter__(self) -> Stopwatch:
        for owner, name, function in self._functions:
            setattr(owner, name, self._timed(name, function))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for owner, name, function in self._functions:
            setattr(owner, name, function)

    def total(self, name: str) -> float:
        """Seconds in all calls of `name`."""
        return sum(self.seconds[name])

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        taken = self.seconds[name]

        @wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            result = await function(*arguments, **named)
            taken.append(time.perf_counter() - begun)
            return result

        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            result = function(*arguments, **named)
            taken.append(time.perf_counter() - begun)
            return result

        return awaited if iscoroutinefunction(function) else called
