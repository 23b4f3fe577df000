"""The committers of the `memory` sink. Called by the coordinator; they hold no state but their connection."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    CommitterBase,
    Lineage,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkIdentity,
)
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.memory.session import Fault, Options, Session
from sinkruntime.sinks.memory.target import Publication, StagedKey, Verdict

#: What a verdict of the target means for the request.
_ANSWERS: Mapping[Verdict, tuple[Answer, str]] = {
    Verdict.PUBLISHED: (Answer.COMMITTED, ""),
    Verdict.ALREADY: (Answer.ALREADY_COMMITTED, ""),
    Verdict.FENCED: (Answer.REFUSED, "Fenced"),
    Verdict.LOST: (Answer.REFUSED, "CommittableLost"),
    Verdict.BEHIND: (Answer.REFUSED, "TargetBehindLedger"),
    Verdict.AHEAD: (Answer.REFUSED, "TargetAheadOfLedger"),
}


class MemoryCrash(Exception):
    """A commit that landed, and whose process died before it could say so."""


class _Committer(CommitterBase):
    """What both tiers do; they differ in what a request publishes."""

    publishes = True
    proves = True

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity

    def open(self) -> None:
        self.session = Session(self._options, self._identity)

    def keys(self, committable: Committable) -> tuple[StagedKey, ...]:
        return (StagedKey(**committable["key"]),)

    def part(self, lineage: Lineage) -> int | None:
        return lineage.subtask

    def _publication(self, request: CommitRequest) -> Publication:
        return Publication(
            owner=self.session.owner,
            checkpoint=request.lineage.checkpoint,
            part=self.part(request.lineage),
            keys=self.keys(request.committable) if self.publishes else (),
            previous=request.previous,
            order=request.order,
            proves=self.proves,
        )

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if self._options.delay:
                time.sleep(self._options.delay.seconds)
            self._commit(request)

    def _commit(self, request: CommitRequest) -> None:
        options, session = self._options, self.session
        if session.due("retry", options.retries):
            request.reply(Answer.RETRY_LATER, "Injected")
            return
        if session.due("update", options.updates):
            request.update(self.updated(request.committable), "injected")
            return
        if session.due("refuse", options.refusals):
            request.reply(Answer.REFUSED, "Injected")
            return
        publication = self._publication(request)
        fault, verdict = session.call("commit", _subject(request), lambda: session.target.publish(publication))
        if session.due("crash", options.crashes):
            raise MemoryCrash(_subject(request))
        self._answer(request, fault, verdict)
        if session.due("lose", options.lost_answers):
            request.reply(Answer.UNKNOWN, "Injected")

    def updated(self, committable: Committable) -> Committable:
        return {**committable, "updates": committable["updates"] + 1}

    def _answer(self, request: CommitRequest, fault: Fault, verdict: Verdict | None) -> None:
        if verdict is not None and fault is Fault.NONE:
            answer, reason = _ANSWERS[verdict]
            request.reply(answer, reason, f"checkpoint {request.lineage.checkpoint}: {verdict}" if reason else "")
        else:
            request.reply(*_FAULT_ANSWERS[fault], "injected")

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            landed = partial(self.session.target.landed, self._publication(request))
            fault, known = self.session.call("probe", _subject(request), landed)
            answer = Answer.ALREADY_COMMITTED if known else Answer.ABSENT
            request.reply(answer if fault is Fault.NONE else Answer.UNKNOWN)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            fence = partial(self.session.target.fence, self._publication(request))
            fault, fenced = self.session.call("fence", _subject(request), fence)
            answer = Answer.FENCED if fenced else Answer.ALREADY_COMMITTED
            request.reply(answer if fault is Fault.NONE else Answer.UNKNOWN)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            mine = frozenset(self.keys(request.committable))
            self.session.must(
                "abort", _subject(request), partial(self.session.target.remove, mine.__contains__, "abort")
            )

    def recover(self, garbage: Garbage) -> None:
        def undecided(key: StagedKey) -> bool:
            late = garbage.undecided(key.checkpoint, key.epoch) or garbage.settled(key.checkpoint, key.epoch)
            return key.owner == self.session.owner and key.ledger_id == garbage.ledger_id and late

        self.session.must(
            "recover", str(garbage.epoch), lambda: self.session.target.remove(undecided, "recover")
        )  # fmt: skip

    def clean(self, checkpoint: int, epoch: int) -> None:
        def losing(key: StagedKey) -> bool:
            return key.owner == self.session.owner and (key.checkpoint, key.epoch) == (checkpoint, epoch)

        self.session.must("clean", str(checkpoint), lambda: self.session.target.remove(losing, "clean"))


_FAULT_ANSWERS: Mapping[Fault, tuple[Answer, str]] = {
    Fault.UNAVAILABLE: (Answer.RETRY_LATER, "Unavailable"),
    Fault.LOST_ANSWER: (Answer.UNKNOWN, "AnswerLost"),
    Fault.REFUSED: (Answer.REFUSED, "Injected"),
}


def _subject(request: CommitRequest) -> str:
    return f"{request.lineage.checkpoint}/{request.lineage.subtask}"


class MemoryCommitter(_Committer, SinkCommitter):
    """Publishes one writer's rows at a time."""


class MemoryAggregatedCommitter(_Committer, SinkAggregatedCommitter):
    """Publishes a checkpoint's rows at once; beside a committer it only moves the evidence."""

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        return {"items": [committable["key"] for _, committable in ordered], "updates": 0}

    def keys(self, committable: Committable) -> tuple[StagedKey, ...]:
        return tuple(StagedKey(**key) for key in committable["items"])

    def part(self, lineage: Lineage) -> int | None:
        return None

    def _commit(self, request: CommitRequest) -> None:
        if not request.committable["items"]:
            request.evidence = False
            request.reply(Answer.COMMITTED)
            return
        super()._commit(request)
