"""One round on one sink's part of one checkpoint: commit, probe, fence or remove, and what came of it.

The coordinator starts it and persists its outcome. Three outcomes of a commit and no fourth: committed, refused,
unknown; an error that may pass is progress with nothing new. What raises or runs out of time is unknown, for the
target may have done it all the same. It never retries by itself and never touches the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sinkruntime.api import (
    Answer,
    CommitRequest,
    CommitterBase,
    Lineage,
    SinkAggregatedCommitter,
    SinkCommitter,
)
from sinkruntime.coordinator.handle import SinkHandle
from sinkruntime.coordinator.runner import NotStarted, OutOfTime
from sinkruntime.coordinator.settings import SINK_GAUGES, CommitSettings, Metrics
from sinkruntime.coordinator.wishes import COMMITTABLE_LOST, IN_DOUBT
from sinkruntime.crashpoints import reached
from sinkruntime.driver.staging import Written
from sinkruntime.errors import AnswerLost, LedgerError, LedgerUnavailable, SinkjobError
from sinkruntime.ledger.payloads import Item, load_payload, pack, store_payloads
from sinkruntime.ledger.store import LedgerStore
from sinkruntime.protocol.events import Action, Outcome, OutcomeKind
from sinkruntime.protocol.ledger import Part, Record

log = logging.getLogger(__name__)

#: Longer texts of sinks are cut: the ledger must stay small.
MESSAGE_CHARACTERS_MAX = 1000

DONE = frozenset({Answer.COMMITTED, Answer.ALREADY_COMMITTED})


@dataclass(frozen=True, slots=True)
class Work:
    """What to do: `action` on the part of `sink` in `record`; `previous` is the evidence that the ledger expects."""

    action: Action
    record: Record
    sink: str
    previous: int
    failures: int  # of this part in a row, in this tenure
    order: tuple[int, int] = (0, 0)  # the token or epoch, and a count that only grows: fences tell rounds by it

    @property
    def part(self) -> Part:
        """The part as the ledger had it."""
        return self.record.parts[self.sink]


class Attempt:
    """A round on one part."""

    def __init__(
        self, work: Work, handle: SinkHandle, store: LedgerStore, settings: CommitSettings, metrics: Metrics
    ) -> None:
        self._work = work
        self._handle = handle
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._timeout_seconds = settings.timeout_of(work.failures)
        self._done: set[int] = set(_indexes(work.part.done))
        # Of this round: the handle drops its own when a call hangs, perhaps one of another lane's.
        self._committer: SinkCommitter | None = None
        self._aggregated: SinkAggregatedCommitter | None = None
        self._doubt = ("", "")  # why the target cannot tell, as a probe said

    async def run(self) -> Outcome:
        """Do it. Errors of the sink are outcomes; only errors of ours are raised."""
        try:
            items = await load_payload(
                self._store, self._work.part.payload
            )  # before a worker is taken: it may need one
            async with self._handle.used(self._timeout_seconds):
                self._committer, self._aggregated = self._handle.committer, self._handle.aggregated
                return await self._act(await self._requests(items))
        except (LedgerUnavailable, AnswerLost) as error:
            return self._outcome(OutcomeKind.PROGRESS, error.reason, error.message)
        except LedgerError as error:
            return self._outcome(OutcomeKind.REFUSED, error.reason, error.message)
        except Exception as error:  # noqa: BLE001  (a sink may raise anything; what a commit raises is caught there)
            return self._not_started(error)

    async def _act(self, requests: list[CommitRequest]) -> Outcome:
        actions = {
            Action.COMMIT: self._commit,
            Action.PROBE: self._probe_and_commit,
            Action.HOLD: self._look,
            Action.FENCE: self._fence,
            Action.CLEAN: self._clean,
            Action.DISCARD: self._discard,
        }
        return await actions[self._work.action](requests)

    async def _requests(self, items: Sequence[Item]) -> list[CommitRequest]:
        sink = self._handle.sink
        reader = sink.committable_serializer
        values = [(lineage, reader.deserialize(written.version, written.data)) for lineage, written in items]
        merged = await self._handle.call(lambda: sink.pre_commit(values), self._timeout_seconds)
        return [self._request(value, lineage) for lineage, value in merged]

    def _request(self, value: object, lineage: Lineage) -> CommitRequest:
        work = self._work
        probing = work.action is not Action.COMMIT
        return CommitRequest(value, lineage, work.previous, work.failures, may_have_landed=probing, order=work.order)

    async def _combine(self, requests: Sequence[CommitRequest]) -> CommitRequest:
        aggregated = self._aggregated
        assert aggregated is not None, "asked only where there is such a tier"
        reached("S9", "before")
        ordered = sorted(requests, key=lambda request: request.lineage.subtask)
        values = [(request.lineage, request.committable) for request in ordered]
        combined = await self._handle.call(lambda: aggregated.combine(values), self._timeout_seconds)
        reached("S9", "after")
        record = self._work.record
        return self._request(combined, Lineage(record.number, record.epoch, 0, 1, 0))

    async def _commit(self, requests: list[CommitRequest]) -> Outcome:
        """The committers, in parallel over what is not done; then, when all are, the aggregated one."""
        if self._committer is not None:
            await self._in_chunks(self._committer.commit, [requests[i] for i in self._open(requests)])
            self._done |= {i for i, request in enumerate(requests) if request.answer in DONE}
            if self._open(requests):
                return await self._fold(requests)
        if self._aggregated is None:
            evidence = bool(requests) and self._committer is not None
            return self._outcome(OutcomeKind.COMMITTED, evidence=evidence)
        one = await self._combine(requests)
        reached("S10", "before")
        await self._call(self._aggregated.commit, [one], Answer.COMMITTED)
        reached("S10", "after")
        return await self._fold_one(one, requests)

    async def _probe_and_commit(self, requests: list[CommitRequest]) -> Outcome:
        """Ask first; commit what the target does not have."""
        aggregated = self._aggregated
        if aggregated is not None and self._committer is None:
            one = await self._combine(requests)
            reached("S10", "before")
            await self._call(aggregated.restore_commit, [one], Answer.COMMITTED)
            reached("S10", "after")
            return await self._fold_one(one, requests)
        found = await self._probe(requests)
        part = self._work.part
        if self._doubt[0] == IN_DOUBT and part.reason == COMMITTABLE_LOST:
            # Released after it was held: it was lost before any of it could land, and nothing was tried since.
            return self._outcome(OutcomeKind.REFUSED, part.reason, part.message)
        if found is not OutcomeKind.ABSENT:
            return self._outcome(found, *self._doubt, evidence=found is OutcomeKind.COMMITTED)
        for request in requests:
            request.answer = None
        return await self._commit(requests)

    async def _probe(self, requests: list[CommitRequest]) -> OutcomeKind:
        """What the target has: the aggregated evidence speaks for all, else each writer's own."""
        if self._aggregated is not None:
            one = await self._combine(requests)
            await self._call(self._aggregated.probe, [one], Answer.ABSENT)
            if one.answer in DONE:
                return OutcomeKind.COMMITTED
            if one.answer is not Answer.ABSENT:
                return self._doubted(one)
        if self._committer is None:
            return OutcomeKind.ABSENT
        asked = [requests[i] for i in self._open(requests)]
        await self._in_chunks(self._committer.probe, asked, default=Answer.ABSENT, label=False)
        doubted = [request for request in asked if request.answer not in DONE and request.answer is not Answer.ABSENT]
        if doubted:
            return self._doubted(doubted[0])
        self._done |= {i for i, request in enumerate(requests) if request.answer in DONE}
        landed = not self._open(requests) and self._aggregated is None
        return OutcomeKind.COMMITTED if landed and requests else OutcomeKind.ABSENT

    def _doubted(self, request: CommitRequest) -> OutcomeKind:
        self._doubt = (request.reason, request.message)
        return OutcomeKind.UNKNOWN

    async def _look(self, requests: list[CommitRequest]) -> Outcome:
        """At a held part: it may have landed after all. Nothing is committed."""
        found = await self._probe(requests)
        if found is OutcomeKind.COMMITTED:
            return self._outcome(OutcomeKind.COMMITTED, evidence=True)
        part = self._work.part
        return self._outcome(OutcomeKind.REFUSED, part.reason, part.message)

    async def _fence(self, requests: list[CommitRequest]) -> Outcome:
        """Make a late commit fail, in every tier; a part that landed is committed after all."""
        found = await self._probe(requests)
        if found is not OutcomeKind.ABSENT:
            return self._outcome(found, *self._doubt, evidence=found is OutcomeKind.COMMITTED)
        if self._done:
            message = "some writers' committables are visible already, so it cannot be aborted"
            return self._outcome(OutcomeKind.PROGRESS, "PartlyLanded", message)
        asked = list(requests)
        if self._committer is not None:
            await self._in_chunks(self._committer.fence, requests, default=Answer.FENCED, label=False)
        if self._aggregated is not None:
            one = await self._combine(requests)
            await self._call(self._aggregated.fence, [one], Answer.FENCED)
            asked = [*asked, one] if self._committer is not None else [one]
        if all(request.answer is Answer.FENCED for request in asked):
            return self._outcome(OutcomeKind.FENCED)
        worst = next(request for request in asked if request.answer is not Answer.FENCED)
        return self._outcome(OutcomeKind.UNKNOWN, worst.reason, worst.message)

    async def _clean(self, requests: list[CommitRequest]) -> Outcome:
        """Post-commit hook, then the losing attempts' staged data. A failing hook is told and changes nothing."""
        record, sink = self._work.record, self._handle.sink
        values = [(request.lineage, request.committable) for request in requests]
        try:
            await self._handle.call(lambda: sink.post_commit(record.number, values), self._timeout_seconds)
        except Exception:
            log.warning("post-commit of checkpoint %d of sink %s failed", record.number, self._work.sink, exc_info=True)
        reached("S13", "before")
        outcome = await self._remove()
        reached("S13", "after")
        return outcome

    async def _discard(self, requests: list[CommitRequest]) -> Outcome:
        """What an aborted part staged."""
        for tier in self._tiers:
            asked = requests if tier is self._committer else [await self._combine(requests)]
            error = await self._call(tier.abort, asked, Answer.ABSENT)
            if error is not None:
                return self._outcome(OutcomeKind.UNKNOWN, "AbortFailed", error)
        return await self._remove()

    async def _remove(self) -> Outcome:
        record = self._work.record
        for tier in self._tiers:
            try:
                clean = partial(tier.clean, record.number, record.epoch)
                gauges = await self._handle.call(clean, self._timeout_seconds, alone=True) or {}
                for name in SINK_GAUGES & gauges.keys():
                    self._metrics.put(name, gauges[name], self._work.sink)
            except Exception as error:  # noqa: BLE001  (a sink may raise anything; it is tried again)
                return self._outcome(OutcomeKind.UNKNOWN, "CleanFailed", _text(error))
        return self._outcome(OutcomeKind.CLEANED)

    async def _in_chunks(
        self,
        function: Callable[[Sequence[CommitRequest]], None],
        requests: Sequence[CommitRequest],
        default: Answer = Answer.COMMITTED,
        label: bool = True,
    ) -> None:
        """Call it with chunks of the requests, some at a time."""
        lanes = self._settings.parallel_chunks
        size = max(1, min(self._settings.chunk_size, -(-len(requests) // lanes)))
        limit = asyncio.Semaphore(lanes)

        async def one(chunk: Sequence[CommitRequest]) -> None:
            async with limit:
                if label:
                    reached("S10", "before")
                await self._call(function, chunk, default, alone=False)
                if label:
                    reached("S10", "after")

        await asyncio.gather(*(one(requests[at : at + size]) for at in range(0, len(requests), size)))

    async def _call(
        self,
        function: Callable[[Sequence[CommitRequest]], None],
        requests: Sequence[CommitRequest],
        default: Answer,
        alone: bool = True,
    ) -> str | None:
        """Call a committer; each request has an answer afterwards. Returns the error's text, if there was one.

        The committer works on copies: a call that runs out of time goes on, and must not answer any more.
        """
        copies = [replace(request, answer=None) for request in requests]
        error: str | None = None
        try:
            await self._handle.call(partial(function, copies), self._timeout_seconds, alone=alone)
        except NotStarted as caught:
            error, default = str(caught), Answer.RETRY_LATER
        except OutOfTime as caught:
            error, default = str(caught), Answer.UNKNOWN
            copies = [replace(request, answer=None) for request in requests]  # the late ones are nobody's
        except Exception as caught:
            log.debug("a committer raised", exc_info=True)
            error, default = _text(caught), Answer.UNKNOWN
        for request, copy in zip(requests, copies, strict=True):
            request.committable, request.evidence = copy.committable, copy.evidence
            request.reply(copy.answer or default, copy.reason, copy.message or (error or ""))
        return error

    @property
    def _tiers(self) -> tuple[CommitterBase, ...]:
        return tuple(tier for tier in (self._committer, self._aggregated) if tier is not None)

    def _open(self, requests: Sequence[CommitRequest]) -> list[int]:
        return [index for index in range(len(requests)) if index not in self._done]

    async def _fold_one(self, one: CommitRequest, requests: list[CommitRequest]) -> Outcome:
        if one.answer in DONE:
            return self._outcome(OutcomeKind.COMMITTED, evidence=one.evidence)
        kind = _worst([one])
        return self._outcome(kind, one.reason, one.message)

    async def _fold(self, requests: list[CommitRequest]) -> Outcome:
        """One outcome of many answers: unknown outweighs refused, refused outweighs another try."""
        missing = [requests[index] for index in self._open(requests)]
        kind = _worst(missing)
        worst = next(request for request in missing if _worst([request]) is kind)
        outcome = self._outcome(kind, worst.reason, worst.message)
        if not any(request.answer is Answer.UPDATE_AND_RETRY_LATER for request in requests):
            return outcome
        writer = self._handle.sink.committable_serializer
        packed = pack(
            [(r.lineage, Written(writer.version, writer.serialize(r.committable))) for r in requests],
        )
        try:
            # In the ledger it may take the room of the one that it replaces, and no more.
            old = self._work.part.payload
            left = old.size_bytes if old is not None and old.inline is not None else 0
            stored = await store_payloads(self._store, self._work.record.epoch, {"": packed}, left)
        except LedgerError as error:  # the update is lost, as if the process had died here: ask the target first
            return replace(outcome, kind=OutcomeKind.UNKNOWN, reason=error.reason, message=error.message)
        return replace(outcome, payload=stored[""])

    def _not_started(self, error: Exception) -> Outcome:
        """Nothing was sent: it may be tried again, unless the sink says that trying is of no use."""
        reason = error.reason if isinstance(error, SinkjobError) else type(error).__name__
        final = isinstance(error, ValueError)  # a committable that this release cannot read
        kind = OutcomeKind.REFUSED if final else OutcomeKind.PROGRESS
        return self._outcome(kind, reason, _text(error))

    def _outcome(self, kind: OutcomeKind, reason: str = "", message: str = "", evidence: bool = False) -> Outcome:
        done = _ranges(self._done)
        at, said = self._work.record.number, self._settings.hide(message)[:MESSAGE_CHARACTERS_MAX]
        return Outcome(at, self._work.sink, kind, evidence, done, None, reason, said)


def _worst(requests: Sequence[CommitRequest]) -> OutcomeKind:
    answers = {request.answer for request in requests}
    if Answer.UNKNOWN in answers:
        return OutcomeKind.UNKNOWN
    if Answer.REFUSED in answers:
        return OutcomeKind.REFUSED
    return OutcomeKind.COMMITTED if answers <= DONE else OutcomeKind.PROGRESS


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, SinkjobError) else f"{type(error).__name__}: {error}"


def _indexes(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [index for first, last in ranges for index in range(first, last + 1)]


def _ranges(indexes: set[int]) -> tuple[tuple[int, int], ...]:
    """Sorted, disjoint, inclusive ranges."""
    found: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return tuple(found)
