"""The committer of the `hudi` sink: whole checkpoints, in order, each as one commit on the table's timeline.

Called by the coordinator. It makes `<instant>.commit.requested` and `<instant>.inflight`, publishes the staged files,
which no reader takes for a part of the table yet, and then creates `<instant>.commit`, which makes all of them count at
once. It opens no data file, and keeps nothing between two calls.

Why a checkpoint is committed once: its instant is the one that its writers claimed (`claims`), and stands in the
decided committable; so every committer of it, however late, creates the same file name if absent. Only one creation
succeeds. The evidence is inside that file, so it moves with the data; the previous checkpoint was looked up before, and
can only have moved on since by this very file. The requested file is created if absent, too, and names the very data
files: should two committables of one checkpoint ever meet, only the files of one are published under the instant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    Lineage,
    SinkAggregatedCommitter,
    SinkIdentity,
)
from sinkruntime.errors import TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.hudi import metadata
from sinkruntime.sinks.hudi.claims import Claims
from sinkruntime.sinks.hudi.instants import Instants
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.place import Table
from sinkruntime.sinks.hudi.timeline import Proof, Timeline, commit_path, proof_of
from sinkruntime.storage.answers import answering
from sinkruntime.storage.base import Standing
from sinkruntime.storage.names import origin_of


class HudiCommitter(SinkAggregatedCommitter):
    """Commits checkpoints to one table."""

    def __init__(self, options: Options, table: Table, identity: SinkIdentity) -> None:
        self._options = options
        self._table = table
        self._identity = identity
        self._instants = Instants(table, identity)

    def open(self) -> None:
        self._table.open()

    def close(self) -> None:
        self._table.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        """The files of all writers. Their instants agree, for they were claimed; `commit` looks all the same."""
        ordered = [committable for _, committable in sorted(committables, key=lambda pair: pair[0].subtask)]
        if not ordered:
            return {"files": [], "reserved": []}
        return {
            "instants": sorted({item["instant"] for item in ordered}),
            "bases": sorted({item["base"] for item in ordered if "base" in item}),
            "schema": ordered[0]["schema"],
            "reserved": [item["reserved"] for item in ordered if item["reserved"] is not None],
            "files": [file for item in ordered for file in item["files"]],
        }

    # --- commit

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["files"]:
                self._nothing(request)
                continue
            with answering(request):
                self._commit(request)

    def _nothing(self, request: CommitRequest) -> None:
        """A checkpoint without rows leaves no evidence."""
        request.evidence = False
        request.reply(Answer.COMMITTED)
        with answering(request):
            self._settle(request.committable)

    def _commit(self, request: CommitRequest) -> None:
        timeline = Timeline.read(self._table)
        proof = proof_of(self._table, timeline, self._identity)
        if answer_by_evidence(request, proof.checkpoint):
            if request.answer is Answer.ALREADY_COMMITTED:
                self._settle(request.committable)  # of a committer that died before it did so
            return
        instant = self._check(request, timeline, proof)
        lost = self._instants.begin(instant, self._content(request))
        if lost:
            request.reply(Answer.REFUSED, "NameTaken", f"{lost} is there with other content; nothing was replaced")
            return
        found = self._publish(request, instant)
        bad = {standing: paths for standing, paths in found.items() if standing not in _DONE}
        if bad:
            self._turn_down(request, instant, bad)
            return
        self._table.settle(request.committable["files"])  # they survive a power cut before the commit does
        reserved = next(iter(request.committable["reserved"]), None)
        standing = self._table.complete(reserved, commit_path(instant), self._content(request), request.order)
        self._answer(request, instant, standing)

    def _check(self, request: CommitRequest, timeline: Timeline, proof: Proof) -> str:
        """The instant to commit at. Raises `TargetError` where it cannot be."""
        (instant, *others) = request.committable["instants"]
        if others:
            raise TargetError("InstantsDiffer", f"writers of one checkpoint have the instants {[instant, *others]}")
        if instant <= proof.instant:
            message = f"instant {instant} is not after {proof.instant}, at which checkpoint {proof.checkpoint} stands"
            raise TargetError("InstantOutOfOrder", message)
        bases = request.committable["bases"]
        if bases and bases != [timeline.last_change]:
            message = f"staged upon instant {' and '.join(bases)}, and the table is at {timeline.last_change or 'none'}"
            raise TargetError("StaleBase", f"{message}: another writer has changed it")
        self._instants.refuse_others(timeline)
        return str(instant)

    def _content(self, request: CommitRequest) -> bytes:
        value = request.committable
        extra = {**metadata.evidence(self._identity, request.lineage), "schema": value["schema"]}
        return metadata.commit(value["files"], self._options.write.value.upper(), extra)

    def _publish(self, request: CommitRequest, instant: str) -> dict[Standing, list[str]]:
        files = request.committable["files"]
        for partition in dict.fromkeys(file["partition"] for file in files):
            path = f"{partition}/.hoodie_partition_metadata".lstrip("/")
            self._table.add(path, metadata.partition(instant, partition))
        found: dict[Standing, list[str]] = {}
        for file in files:
            found.setdefault(self._table.publish(file, request.order), []).append(file["path"])
        return found

    def _turn_down(self, request: CommitRequest, instant: str, bad: dict[Standing, list[str]]) -> None:
        """Files are not there, or not ours. Without them nobody can complete the instant, so it is rolled back, unless
        another committer has completed it and removed what was staged."""
        if self._table.read(commit_path(instant)) is not None:
            request.reply(Answer.ALREADY_COMMITTED)
            return
        if taken := bad.get(Standing.TAKEN):
            request.reply(Answer.REFUSED, "NameTaken", f"{taken[0]} is there with other content; nothing was replaced")
        else:
            paths = [path for some in bad.values() for path in some]
            message = f"{len(paths)} files are neither staged nor in place, first {paths[0]}"
            request.reply(Answer.REFUSED, "CommittableLost", message)
        self._instants.take_back(instant)

    def _answer(self, request: CommitRequest, instant: str, standing: Standing) -> None:
        if standing in _DONE:
            request.reply(Answer.COMMITTED if standing is Standing.PUBLISHED else Answer.ALREADY_COMMITTED)
            self._settle(request.committable)
        elif standing is Standing.FENCED:
            request.reply(Answer.REFUSED, "Fenced", f"instant {instant} is fenced: an abort was begun")
        elif standing is Standing.TAKEN:
            path = commit_path(instant)
            request.reply(Answer.REFUSED, "NameTaken", f"{path} is there with other content; nothing was replaced")
        else:
            message = f"what was staged for {commit_path(instant)} is gone"
            request.reply(Answer.REFUSED, "CommittableLost", message)

    def _settle(self, value: Committable) -> None:
        self._table.settle([*value["files"], *value["reserved"]])

    # --- the rest

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        proof = self._proof()
        for request in requests:
            landed = request.lineage.checkpoint <= proof.checkpoint
            request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """The file that would be linked last is fenced: without it a late commit completes nothing."""
        sure = True
        for request in requests:
            for reserved in request.committable["reserved"]:
                self._table.fence(reserved, request.order, request.may_have_landed)
            sure = sure and (self._options.is_local or not request.may_have_landed)
        # Looked at after the fence: a commit that came before it is seen, one that comes after it fails.
        proof = self._proof()
        for request in requests:
            if request.lineage.checkpoint <= proof.checkpoint:
                request.reply(Answer.ALREADY_COMMITTED)
            elif sure:
                request.reply(Answer.FENCED)
            else:
                message = "S3 cannot turn down a commit that may be under way"
                request.reply(Answer.UNKNOWN, "CannotFence", message)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        """First what could still be committed goes, then what was published of it."""
        proof = self._proof()
        for request in requests:
            value = request.committable
            for item in [*value["reserved"], *value["files"]]:
                self._table.discard(item)
            if request.lineage.checkpoint > proof.checkpoint:
                for instant in value.get("instants", ()):
                    self._instants.roll_back(instant, [file["path"] for file in value["files"]])

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id != self._identity.ledger_id:
            return
        over = _over(garbage)
        self._remove(over)
        self._instants.recover(over)
        Claims(self._table, self._identity).forget(self._proof().checkpoint)

    def clean(self, checkpoint: int, epoch: int) -> None:
        self._remove(lambda origin: origin == (checkpoint, epoch))
        Claims(self._table, self._identity).forget(checkpoint)

    def _remove(self, condition: Callable[[tuple[int, int]], bool]) -> None:
        found = [(entry, origin_of(entry.name)) for entry in self._table.staged()]
        self._table.remove([entry for entry, origin in found if origin is not None and condition(origin)])

    def _proof(self) -> Proof:
        return proof_of(self._table, Timeline.read(self._table), self._identity)


_DONE = (Standing.PUBLISHED, Standing.LANDED)


def _over(garbage: Garbage) -> Callable[[tuple[int, int]], bool]:
    return lambda origin: garbage.undecided(*origin) or garbage.settled(*origin)
