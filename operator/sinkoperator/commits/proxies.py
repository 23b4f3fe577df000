"""A sink as the coordinator sees it in the operator: every call goes to a worker process.

`handle` makes and opens them. A method does not do its work, it returns a `Remote`, which `WorkerRunner` awaits: the
coordinator calls committers through its runner only. Committables are `Packed`; nothing here looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from sinkoperator.commits import frames
from sinkoperator.commits.frames import BadFrame, Json, Packed
from sinkoperator.commits.process import Worker, WorkerGone
from sinkruntime.api import (
    Answer,
    CommitRequest,
    CommitterBase,
    Guarantee,
    Lineage,
    Offer,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkIdentity,
    SinkWriter,
    WriterContext,
)
from sinkruntime.coordinator.runner import NotStarted
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.serializers import Serializer

T = TypeVar("T")

#: Answers after which a fresh opening may help: a rotated secret, a broken connection.
SUSPICIOUS = frozenset({Answer.REFUSED, Answer.RETRY_LATER, Answer.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Remote:
    """One call of a worker, not yet begun; `finish` makes the result of its answer."""

    worker: Worker
    operation: str
    arguments: Json
    finish: Callable[[Any], Any]

    async def run(self, timeout_seconds: float) -> Any:
        """Call; raises as `Worker.call`."""
        try:
            value = await self.worker.call(self.operation, self.arguments, timeout_seconds)
        except NotStarted:
            raise
        except Exception:
            self.worker.suspect = True
            raise
        try:
            return self.finish(value)
        except BadFrame as error:
            self.worker.kill(f"it answered nonsense: {error}")
            raise WorkerGone("WorkerGone", f"the worker process answered nonsense: {error}") from error


class WorkerRunner:
    """The coordinator's runner in the operator. `holds` is asked right before each call is sent: a replica that has
    lost its Lease issues nothing more."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    async def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """See `Runner`."""
        made = function()
        assert isinstance(made, Remote), "the coordinator calls proxies only"
        if not self._holds():
            raise NotStarted("this replica does not work on the job any more")
        return cast(T, await made.run(timeout_seconds))


class PackedSerializer:
    """Passes written committables through, in the version that the worker writes."""

    def __init__(self, version: int) -> None:
        self.version = version

    def serialize(self, value: Packed) -> bytes:
        """The bytes as they are."""
        return value.data

    def deserialize(self, version: int, data: bytes) -> Packed:
        """The bytes as they are; the worker reads them."""
        return Packed(version, data)


class _Proxy(CommitterBase):
    tier = ""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        return self._ask("commit", requests)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        return self._ask("probe", requests)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        return self._ask("fence", requests)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        return self._ask("abort", requests)

    def recover(self, garbage: Garbage) -> None:
        return self._tell("recover", {"garbage": frames.garbage_to(garbage)})

    def clean(self, checkpoint: int, epoch: int) -> None:
        arguments = {"tier": self.tier, "checkpoint": checkpoint, "epoch": epoch}
        return _later(Remote(self._worker, "clean", arguments, frames.gauges_from))

    def _ask(self, operation: str, requests: Sequence[CommitRequest]) -> None:
        def finish(value: Any) -> None:
            frames.take_answers(requests, value)
            if any(request.answer in SUSPICIOUS for request in requests):
                self._worker.suspect = True

        arguments = {"tier": self.tier, "requests": [frames.request_to(request) for request in requests]}
        return _later(Remote(self._worker, operation, arguments, finish))

    def _tell(self, operation: str, arguments: Json) -> None:
        return _later(Remote(self._worker, operation, {"tier": self.tier, **arguments}, lambda value: None))


def _later(remote: Remote) -> None:
    """What a method returns in place of its result; `WorkerRunner` knows."""
    return cast(None, remote)


class ProxyCommitter(_Proxy, SinkCommitter):
    """The tier per writer."""

    tier = "committer"


class ProxyAggregated(_Proxy, SinkAggregatedCommitter):
    """The global tier."""

    tier = "aggregated"

    def combine(self, committables: Sequence[tuple[Lineage, Packed]]) -> Packed:
        arguments = {"pairs": frames.pairs_to(committables)}
        return cast(Packed, Remote(self._worker, "combine", arguments, frames.packed_from))

    def restore_commit(self, requests: Sequence[CommitRequest]) -> None:
        return self._ask("restore_commit", requests)


class Unread(BaseModel):
    """The options are read in the worker."""


class ProxySink(Sink):
    """A sink of a revision. `worker` is the one that has it open."""

    Options = Unread
    summary = "a sink in a worker process"

    def __init__(self, identity: SinkIdentity, revision: str) -> None:
        super().__init__(Unread(), identity)
        self.revision = revision
        self.worker: Worker | None = None

    @property
    def committable_serializer(self) -> Serializer:  # type: ignore[override]  # of this sink, not of the class
        """Asked after the sink was opened."""
        return PackedSerializer(self._opened.facts["version"])

    @property
    def _opened(self) -> Worker:
        assert self.worker is not None, "opened by its handle"
        return self.worker

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        """Nobody asks here; the least."""
        return Offer(Guarantee.AT_LEAST_ONCE, "a proxy")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Never called: writers run in executors."""
        raise TypeError("a proxy of the operator has no writer")

    def pre_commit(self, committables: Sequence[tuple[Lineage, Packed]]) -> Sequence[tuple[Lineage, Packed]]:
        arguments = {"pairs": frames.pairs_to(committables)}
        return cast("list[tuple[Lineage, Packed]]", Remote(self._opened, "pre_commit", arguments, frames.pairs_from))

    def post_commit(self, checkpoint: int, committables: Sequence[tuple[Lineage, Packed]]) -> None:
        arguments = {"checkpoint": checkpoint, "pairs": frames.pairs_to(committables)}
        return _later(Remote(self._opened, "post_commit", arguments, lambda value: None))
