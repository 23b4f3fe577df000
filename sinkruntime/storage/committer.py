"""The committers of sinks that put files into a storage, whose evidence is a marker there. The first publishes each
writer's files, in parallel; the second, alone and after it, moves the evidence from the previous checkpoint.

Called by the coordinator, by way of the `file` and `hive` sinks. They know a storage only by its interface, and keep
nothing between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.storage.answers import answering
from sinkruntime.storage.base import Item, Standing, Storage
from sinkruntime.storage.marker import Marker, read_marker, write_marker
from sinkruntime.storage.names import origin_of


class _Committer(CommitterBase):
    """What both tiers share: the storage and the evidence."""

    def __init__(self, storage: Storage, identity: SinkIdentity) -> None:
        self._storage = storage
        self._identity = identity

    def open(self) -> None:
        self._storage.open()

    def close(self) -> None:
        self._storage.close()

    def _marker(self) -> Marker:
        return read_marker(self._storage, self._identity)[0]


class FileCommitter(_Committer, SinkCommitter):
    """Publishes the files of each committable; files, not committables, are atomic."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        with answering(*requests):  # nothing is sent before the evidence is known
            marker = self._marker()
            self._storage.settle([item for request in requests for item in self._commit(request, marker)])

    def _commit(self, request: CommitRequest, marker: Marker) -> list[Item]:
        return [] if answer_by_evidence(request, marker.checkpoint) else self._publish(request)

    def _publish(self, request: CommitRequest) -> list[Item]:
        """Publish what is staged; answer; the items that are visible now."""
        found: dict[Standing, list[Item]] = {standing: [] for standing in Standing}
        with answering(request):
            for item in request.committable["files"]:
                found[self._storage.publish(item, request.order)].append(item)
            _answer(request, found)
        return found[Standing.PUBLISHED] + found[Standing.LANDED]

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        marker = self._marker()
        for request in requests:
            if request.lineage.checkpoint <= marker.checkpoint:
                request.reply(Answer.ALREADY_COMMITTED)
                continue
            standings = {self._storage.standing(item, request.order) for item in request.committable["files"]}
            request.reply(*_probed(request, standings))

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        marker = self._marker()
        for request in requests:
            self._fence(request, marker)

    def _fence(self, request: CommitRequest, marker: Marker) -> None:
        if request.lineage.checkpoint <= marker.checkpoint:
            request.reply(Answer.ALREADY_COMMITTED)
            return
        items = request.committable["files"]
        fenced = [self._storage.fence(item, request.order, request.may_have_landed) for item in items]
        # Looked at after the fence: a commit that came before it is seen, one that comes after it fails.
        if any(self._storage.standing(item, request.order) is Standing.LANDED for item in items):
            request.reply(Answer.ALREADY_COMMITTED)
        elif all(fenced):
            request.reply(Answer.FENCED)
        else:
            message = "S3 cannot turn down a completion that may be under way"
            request.reply(Answer.UNKNOWN, "CannotFence", message)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            for item in request.committable["files"]:
                self._storage.discard(item)

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id == self._identity.ledger_id:
            self._remove(lambda origin: garbage.undecided(*origin) or garbage.settled(*origin))

    def clean(self, checkpoint: int, epoch: int) -> None:
        self._remove(lambda origin: origin == (checkpoint, epoch))

    def _remove(self, condition: Callable[[tuple[int, int]], bool]) -> None:
        found = [(entry, origin_of(entry.name)) for entry in self._storage.staged()]
        self._storage.remove([entry for entry, origin in found if origin is not None and condition(origin)])


class EvidenceCommitter(_Committer, SinkAggregatedCommitter):
    """Moves the evidence, one checkpoint at a time. An empty checkpoint leaves none."""

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        files = [[item["path"], item["size"]] for _, committable in ordered for item in committable["files"]]
        return {"files": files}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["files"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request), self._storage.exclusive():
                self._move(request)

    def _move(self, request: CommitRequest) -> None:
        marker, document = read_marker(self._storage, self._identity)
        checkpoint = request.lineage.checkpoint
        if answer_by_evidence(request, marker.checkpoint):
            return
        moved = Marker(checkpoint, marker.checkpoint, self._before_evidence(request, marker))
        if write_marker(self._storage, self._identity, moved, document):
            request.reply(Answer.COMMITTED)
        else:
            request.reply(Answer.RETRY_LATER, "EvidenceMoved", "another committer moved the evidence at the same time")

    def _before_evidence(self, request: CommitRequest, marker: Marker) -> int:
        """What else makes the checkpoint visible, after its files, and may be done twice; the marker's `log`."""
        return marker.log

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        marker = self._marker()
        for request in requests:
            landed = request.lineage.checkpoint <= marker.checkpoint
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """The files are fenced one by one; without them the evidence does not move."""
        marker = self._marker()
        for request in requests:
            landed = request.lineage.checkpoint <= marker.checkpoint
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.FENCED)


def _answer(request: CommitRequest, found: dict[Standing, list[Item]]) -> None:
    """What the standings of a committable's files after a commit mean for it."""
    if taken := found[Standing.TAKEN]:
        message = f"{taken[0]['path']} is there with other content; nothing was replaced"
        request.reply(Answer.REFUSED, "NameTaken", message)
    elif fenced := found[Standing.FENCED]:
        request.reply(Answer.REFUSED, "Fenced", f"{fenced[0]['path']} is fenced: an abort was begun")
    elif gone := found[Standing.GONE]:
        request.reply(*_gone(request, [item["path"] for item in gone]))
    else:
        request.reply(Answer.COMMITTED if found[Standing.PUBLISHED] else Answer.ALREADY_COMMITTED)


def _gone(request: CommitRequest, paths: Sequence[str]) -> tuple[Answer, str, str]:
    """Neither staged nor visible: lost, unless it may have been visible, and a consumer has taken it."""
    message = f"{len(paths)} files are neither staged nor in place, first {paths[0]}"
    if request.may_have_landed:
        return Answer.UNKNOWN, "InDoubt", f"{message}: lost, or taken away by a consumer"
    return Answer.REFUSED, "CommittableLost", message


def _probed(request: CommitRequest, standings: set[Standing]) -> tuple[Answer, str, str]:
    if standings <= {Standing.LANDED}:
        return Answer.ALREADY_COMMITTED, "", ""
    if Standing.GONE in standings and request.may_have_landed:
        return _gone(request, [item["path"] for item in request.committable["files"]])
    return Answer.ABSENT, "", ""
