"""One sink's committers as the coordinator holds them: opened when first needed, dropped after a hung call.

`attempt` calls it. It never looks into a committable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from sinkruntime.api import CommitterBase, Sink, SinkAggregatedCommitter, SinkCommitter
from sinkruntime.coordinator.runner import OutOfTime, Runner

log = logging.getLogger(__name__)

T = TypeVar("T")


class SinkHandle:
    """The committers of one sink, made by its factory in this process."""

    def __init__(self, sink: Sink, runner: Runner) -> None:
        self.sink = sink
        self._runner = runner
        self._committer: SinkCommitter | None = None
        self._aggregated: SinkAggregatedCommitter | None = None
        self._open = False
        self._opening = asyncio.Lock()
        self._alone = asyncio.Lock()

    async def open(self, timeout_seconds: float) -> None:
        """Make and open the committers unless they are open. An error here had no effect on any commit."""
        async with self._opening:
            if self._open:
                return
            committer, aggregated = self.sink.create_committer(), self.sink.create_aggregated_committer()
            opened: list[CommitterBase] = []
            try:
                for tier in (committer, aggregated):
                    if tier is not None:
                        await self._runner.call(tier.open, timeout_seconds)
                        opened.append(tier)
            except Exception:
                await self._close(opened, timeout_seconds)  # it is tried again, and must not pile up connections
                raise
            self._committer, self._aggregated, self._open = committer, aggregated, True

    @asynccontextmanager
    async def used(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Open for one round. Between two rounds nothing is called: whoever holds it elsewhere may close it then."""
        await self.open(timeout_seconds)
        yield

    @property
    def committer(self) -> SinkCommitter | None:
        """The tier per writer; None where the sink has none, or before `open`."""
        return self._committer

    @property
    def aggregated(self) -> SinkAggregatedCommitter | None:
        """The global tier; None where the sink has none, or before `open`."""
        return self._aggregated

    @property
    def tiers(self) -> tuple[CommitterBase, ...]:
        """Both tiers that there are, the one per writer first."""
        return tuple(tier for tier in (self._committer, self._aggregated) if tier is not None)

    async def call(self, function: Callable[[], T], timeout_seconds: float, *, alone: bool = False) -> T:
        """Run one call of a committer; `alone`: never two such at a time. After a hung call the committers go."""
        if not alone:
            return await self._limited(function, timeout_seconds)
        async with self._alone:
            return await self._limited(function, timeout_seconds)

    async def _limited(self, function: Callable[[], T], timeout_seconds: float) -> T:
        try:
            return await self._runner.call(function, timeout_seconds)
        except OutOfTime:
            self._committer = self._aggregated = None
            self._open = False
            raise

    async def close(self, timeout_seconds: float) -> None:
        """Close what is open; an error is logged, for nothing depends on it."""
        tiers, self._open = self.tiers, False
        self._committer = self._aggregated = None
        await self._close(tiers, timeout_seconds)

    async def _close(self, tiers: Sequence[CommitterBase], timeout_seconds: float) -> None:
        for tier in tiers:
            try:
                await self._runner.call(tier.close, timeout_seconds)
            except Exception:
                log.warning("closing a committer of sink %s failed", self.sink.identity.sink, exc_info=True)
