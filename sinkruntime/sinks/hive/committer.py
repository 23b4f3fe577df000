"""The committers of the `hive` sink. The first moves each writer's files into place, in parallel; the second, alone and
after it, adds the partitions that are missing, puts success files, and moves the evidence from the previous checkpoint.

Called by the coordinator. The evidence is the marker in the table's directory: the metastore has no compare-and-swap
that both Hive 3.1 and 4.0 know. Everything before it may be done twice. Never changes or drops a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
from sinkruntime.errors import TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.hive.metastore import Metastore, connected
from sinkruntime.sinks.hive.options import Options
from sinkruntime.sinks.hive.table import Place, check_partitions, locate, located, to_partition
from sinkruntime.storage.answers import answering
from sinkruntime.storage.base import Storage
from sinkruntime.storage.committer import EvidenceCommitter, FileCommitter
from sinkruntime.storage.marker import Marker, read_marker

SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class Target:
    """The table as it is at this moment, for one call of a committer."""

    metastore: Metastore
    place: Place
    storage: Storage


class _Committer(CommitterBase):
    """What both tiers share: the way to the table. Nothing is kept between two calls."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity

    @contextmanager
    def _target(self) -> Iterator[Target]:
        """Raises `TargetError` (`TableMissing`) where there is none, and `OSError` where it cannot be asked."""
        with connected(self._options.metastore) as metastore:
            place = located(metastore, self._options)
            with place.storage(self._options, self._identity) as storage:
                yield Target(metastore, place, storage)

    def _missing(self, target: Target, directories: Sequence[str]) -> list[str]:
        """Those of the directories that are no partitions yet; see `check_partitions`."""
        if not target.place.keys:
            return []
        options = self._options
        found = target.metastore.partitions(options.database, options.table_name, directories)
        return check_partitions(target.place, directories, found)


class HiveCommitter(_Committer, SinkCommitter):
    """Moves the files of each committable into place; files, not committables, are atomic."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        with answering(*requests), self._target() as target:
            proved = read_marker(target.storage, self._identity)[0].checkpoint
            pending = [request for request in requests if not answer_by_evidence(request, proved)]
            with answering(*pending):
                check_table(target.place, {request.committable["table"] for request in pending})
                self._missing(target, directories_of(request.committable for request in pending))
                FileCommitter(target.storage, self._identity).commit(pending)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with self._target() as target:
            FileCommitter(target.storage, self._identity).probe(requests)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        with self._target() as target:
            FileCommitter(target.storage, self._identity).fence(requests)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        self._remove(lambda files: files.abort(requests))

    def recover(self, garbage: Garbage) -> None:
        self._remove(lambda files: files.recover(garbage))

    def clean(self, checkpoint: int, epoch: int) -> None:
        self._remove(lambda files: files.clean(checkpoint, epoch))

    def _remove(self, action: Callable[[FileCommitter], None]) -> None:
        """Removes staged files; those of a table that was dropped are the business of who dropped it."""
        with connected(self._options.metastore) as metastore:
            place = locate(metastore, self._options)
        if place is None:
            return
        with place.storage(self._options, self._identity) as storage:
            action(FileCommitter(storage, self._identity))


class HiveAggregatedCommitter(_Committer, SinkAggregatedCommitter):
    """Adds partitions, then moves the evidence, one checkpoint at a time. An empty checkpoint leaves none."""

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        whole = [committable for _, committable in committables]
        return {
            "files": sum(len(committable["files"]) for committable in whole),
            "directories": directories_of(whole),
            "tables": sorted({committable["table"] for committable in whole}),
        }

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["files"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request), self._target() as target:
                _Evidence(target, self).commit([request])

    def publish(self, target: Target, committable: Committable) -> None:
        """What makes the files part of the table. May be done twice, and by several at once."""
        check_table(target.place, set(committable["tables"]))
        directories, options = committable["directories"], self._options
        missing = self._missing(target, directories)
        if missing:
            partitions = [to_partition(target.place, directory) for directory in missing]
            target.metastore.add_partitions(options.database, options.table_name, partitions)
        if options.success_file:
            for directory in directories:
                target.storage.replace(f"{directory}/{SUCCESS}" if directory else SUCCESS, b"", None)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with self._target() as target:
            EvidenceCommitter(target.storage, self._identity).probe(requests)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """The files are fenced one by one; without them the evidence does not move."""
        with self._target() as target:
            EvidenceCommitter(target.storage, self._identity).fence(requests)

    @property
    def identity(self) -> SinkIdentity:
        return self._identity


class _Evidence(EvidenceCommitter):
    """Moves the evidence; before that, and only where it stands at the predecessor, come the partitions."""

    def __init__(self, target: Target, committer: HiveAggregatedCommitter) -> None:
        super().__init__(target.storage, committer.identity)
        self._target = target
        self._committer = committer

    def _before_evidence(self, request: CommitRequest, marker: Marker) -> int:
        self._committer.publish(self._target, request.committable)
        return super()._before_evidence(request, marker)


def directories_of(committables: Iterable[Committable]) -> list[str]:
    """The directories below the table that hold the files of some committables; "" is the table itself."""
    files = (item for committable in committables for item in committable["files"])
    return sorted({item["path"].rpartition("/")[0] for item in files})


def check_table(place: Place, stamps: set[str]) -> None:
    """Raises `TargetError` (`TargetReplaced`) unless the files were staged for this very table, at this place."""
    others = stamps - {place.stamp}
    if others:
        message = f"the files were staged for {min(others)}, the table is {place.stamp} now: dropped or moved since"
        raise TargetError("TargetReplaced", message, path="options.table")
