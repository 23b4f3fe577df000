"""The committer of the `paimon` sink: one snapshot per checkpoint, made only if nobody has made its number.

Called by the coordinator. It reads what the table proves, writes a manifest of the committables' files, and creates the
next snapshot; whoever is second finds the number taken, and looks again at what the table proves. It opens no data file
and keeps nothing between two calls.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

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
from sinkruntime.sinks.paimon import manifests, snapshots
from sinkruntime.sinks.paimon.options import Options
from sinkruntime.sinks.paimon.schema import Schema
from sinkruntime.sinks.paimon.snapshots import Standing
from sinkruntime.sinks.paimon.table import Table, marker_of
from sinkruntime.storage.answers import answering
from sinkruntime.storage.base import AnswerLost
from sinkruntime.storage.names import origin_of, owner_digest

#: How often a number may be taken by others before the request is put off.
RACES_MAX = 50
EXPIRED = "snapshots have expired, and our consumer file is gone: whether it landed cannot be told"
#: Carried from snapshot to snapshot by every writer.
_CARRIED = ("indexManifest", "watermark", "statistics", "nextRowId")


class PaimonCommitter(SinkAggregatedCommitter):
    """Commits checkpoints one after the other."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._identity = identity
        self._table = Table(options, identity)
        self._files = self._table.files

    def open(self) -> None:
        self._table.open()

    def close(self) -> None:
        self._table.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = [committable for _, committable in sorted(committables, key=lambda pair: pair[0].subtask)]
        first = ordered[0] if ordered else {"target": "", "schema": 0, "buckets": 0}
        for other in ordered[1:]:
            if (other["target"], other["buckets"]) != (first["target"], first["buckets"]):
                first = {**first, "target": "several"}  # made anew while it was written: refused by the commit
        files = [{**file, "schema": part["schema"]} for part in ordered for file in part["files"]]
        return {"target": first["target"], "buckets": first["buckets"], "files": files}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["files"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request):
                self._commit(request)

    def _commit(self, request: CommitRequest) -> None:
        with Attempt(self._table, request) as attempt:
            for number in range(RACES_MAX):
                standing = snapshots.standing(self._files, self._identity)
                if self._answered(request, standing) or (number == 0 and not self._all_there(request)):
                    return
                if attempt.snapshot(standing):
                    request.reply(Answer.COMMITTED)
                    return
            request.reply(Answer.RETRY_LATER, "Contended", f"{RACES_MAX} snapshots of others came first")

    def _answered(self, request: CommitRequest, standing: Standing) -> bool:
        """Answer what the table as it stands decides."""
        fence = standing.fences.get(request.lineage.checkpoint)
        if fence is not None and request.order <= fence:
            request.reply(Answer.REFUSED, "Fenced", "an abort of this checkpoint was begun")
            return True
        if answer_by_evidence(request, standing.checkpoint):
            return True
        if not standing.whole:
            request.reply(Answer.REFUSED, "EvidenceExpired", EXPIRED)
            return True
        return False

    def _all_there(self, request: CommitRequest) -> bool:
        target = self._table.target()
        if target != request.committable["target"]:
            message = f"the rows were written for {request.committable['target']}, the table is {target or 'gone'}"
            request.reply(Answer.REFUSED, "TargetReplaced", message)
            return False
        lost = self._files.missing([file["path"] for file in request.committable["files"]])
        if lost:
            message = f"{len(lost)} data files are gone, first {lost[0]}"
            request.reply(Answer.REFUSED, "CommittableLost", message)
        return not lost

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        standing = snapshots.standing(self._files, self._identity)
        for request in requests:
            if request.lineage.checkpoint <= standing.checkpoint:
                request.reply(Answer.ALREADY_COMMITTED)
            elif standing.whole:
                request.reply(Answer.ABSENT)
            else:
                request.reply(Answer.UNKNOWN, "EvidenceExpired", EXPIRED)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            with answering(request):
                self._fence(request)

    def _fence(self, request: CommitRequest) -> None:
        checkpoint = request.lineage.checkpoint
        with Attempt(self._table, request) as attempt:
            for _ in range(RACES_MAX):
                standing = snapshots.standing(self._files, self._identity)
                if checkpoint <= standing.checkpoint:
                    request.reply(Answer.ALREADY_COMMITTED)
                    return
                if not standing.whole:
                    request.reply(Answer.UNKNOWN, "EvidenceExpired", EXPIRED)
                    return
                if standing.fences.get(checkpoint, (-1, -1)) >= request.order or attempt.fence(standing):
                    request.reply(Answer.FENCED)
                    return
            request.reply(Answer.UNKNOWN, "Contended", f"{RACES_MAX} snapshots of others came first")

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            paths = [file["path"] for file in request.committable["files"]]
            self._discard(request.lineage.checkpoint, {marker_of(path): [path] for path in paths})

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id != self._identity.ledger_id:
            return
        found = [(name, origin_of(name)) for name in self._table.markers()]
        over = [
            (name, origin)
            for name, origin in found
            if origin is not None and (garbage.undecided(*origin) or garbage.settled(*origin))
        ]
        for checkpoint in sorted({origin[0] for _, origin in over}):
            names = [name for name, origin in over if origin[0] == checkpoint]
            self._discard(checkpoint, {name: self._table.marked(name) for name in names})

    def clean(self, checkpoint: int, epoch: int) -> None:
        names = [name for name in self._table.markers() if origin_of(name) == (checkpoint, epoch)]
        self._discard(checkpoint, {name: self._table.marked(name) for name in names})

    def _discard(self, checkpoint: int, markers: Mapping[str, Sequence[str]]) -> None:
        """Remove staged files that the checkpoint's snapshot does not hold; none where that cannot be told."""
        if not markers:
            return
        known, snapshot = snapshots.find(self._files, self._identity, checkpoint)
        if known:
            held = set() if snapshot is None else self._held(snapshot)
            self._remove({name: [p for p in paths if _name(p) not in held] for name, paths in markers.items()})

    def _held(self, snapshot: Mapping[str, Any]) -> set[str]:
        """The names of all files that a snapshot added: data files, manifests, lists."""
        metas = manifests.read_list(self._files, snapshot["deltaManifestList"])
        base = manifests.read_list(self._files, snapshot["baseManifestList"])
        names = {snapshot["deltaManifestList"], snapshot["baseManifestList"]}
        names |= {meta["_FILE_NAME"] for meta in (*metas, *base)}
        for meta in metas:
            names |= {
                entry["_FILE"]["_FILE_NAME"] for entry in manifests.read_manifest(self._files, meta["_FILE_NAME"])
            }
        return names

    def _remove(self, markers: Mapping[str, Sequence[str]]) -> None:
        self._files.delete([path for paths in markers.values() for path in paths])
        self._table.unmark(list(markers))


class Attempt:
    """One commit's files: its manifest, and the lists of the snapshot that is tried."""

    def __init__(self, table: Table, request: CommitRequest) -> None:
        self._table = table
        self._files = table.files
        self._request = request
        at = request.lineage
        self._unique = uuid.uuid4().hex
        owner = owner_digest(table.identity)
        self._marker = (
            f"commit-{owner}-{at.checkpoint:012d}-{at.epoch}-00000-0-{self._unique[:12]}"  # as a writer's stem
        )
        self._written: list[str] = []
        self._vain: list[str] = []  # of them, what lost races
        self._delta: list[dict[str, Any]] | None = None
        self._marked = False
        self._in_doubt = False

    def snapshot(self, standing: Standing) -> bool:
        """Try the next snapshot with the committable's files; False: its number is taken."""
        schema = self._table.schema()
        committable = self._request.committable
        if schema.buckets != committable["buckets"]:
            message = f"the rows were written for {committable['buckets']} buckets, the table has {schema.buckets}"
            raise TargetError("BucketMismatch", message, path="options.bucket")
        if self._delta is None:
            self._delta = self._manifest(schema)
        checkpoint = self._request.lineage.checkpoint
        fences = {at: order for at, order in standing.fences.items() if at > checkpoint}
        rows = sum(file["rows"] for file in committable["files"])
        told = snapshots.properties(snapshots.DATA, fences)
        return self._create(
            standing, schema, {"commitIdentifier": checkpoint, "deltaRecordCount": rows, "properties": told}
        )

    def fence(self, standing: Standing) -> bool:
        """Try a snapshot without data that holds the fence; False: its number is taken."""
        self._delta = []
        fences = {**standing.fences, self._request.lineage.checkpoint: self._request.order}
        told = snapshots.properties(snapshots.FENCE, fences)
        identifier = {"commitIdentifier": standing.checkpoint, "deltaRecordCount": 0, "properties": told}
        return self._create(standing, self._table.schema(), identifier)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Remove what was written in vain, and the markers of what is committed. What may have landed stays: `clean`
        looks at it again."""
        if self._in_doubt:
            return
        committed = kind is None and self._request.answer in (Answer.COMMITTED, Answer.ALREADY_COMMITTED)
        names = [marker_of(file["path"]) for file in self._request.committable["files"]] if committed else []
        if self._marked:
            names.append(self._marker)
        with suppress(*([OSError] if kind is not None else [])):  # the first error is the one to tell
            self._files.delete(self._written)
            self._table.unmark(names)

    def _manifest(self, schema: Schema) -> list[dict[str, Any]]:
        committable = self._request.committable
        entries = [manifests.entry(file, file["schema"], committable["buckets"]) for file in committable["files"]]
        partition = schema.picked(schema.partition_keys)
        name = f"manifest-{self._unique}-0"
        data, meta = manifests.write_manifest(entries, partition, schema.id, name)
        self._put(name, data)
        return [meta]

    def _merged(self, metas: list[dict[str, Any]], schema: Schema) -> list[dict[str, Any]]:
        """The manifests of the snapshots before, small ones made one, as Paimon's own committers do."""
        found = []
        for group in manifests.groups(metas):
            entries = manifests.merged(self._files, group) if len(group) > 1 else None
            if entries is None:
                found.extend(group)
            elif entries:
                name = f"manifest-{uuid.uuid4().hex}-0"
                data, meta = manifests.write_manifest(entries, schema.picked(schema.partition_keys), schema.id, name)
                self._put(name, data)
                found.append(meta)
        return found

    def _create(self, standing: Standing, schema: Schema, told: Mapping[str, Any]) -> bool:
        former = standing.snapshot or {}
        number = standing.tip + 1
        before = len(self._written)
        base: list[dict[str, Any]] = []
        if standing.snapshot is not None:
            for key in ("baseManifestList", "deltaManifestList"):
                base += manifests.read_list(self._files, former[key])
        base = self._merged(base, schema)
        lists: dict[str, Any] = {}
        for key, metas, index in (("base", base, 0), ("delta", self._delta or [], 1)):
            name = f"manifest-list-{self._unique}-{number}-{index}"
            data = manifests.write_list(metas)
            self._put(name, data)
            lists |= {f"{key}ManifestList": name, f"{key}ManifestListSize": len(data)}
        document = {
            "version": snapshots.VERSION,
            "id": number,
            "schemaId": schema.id,
            **lists,
            "commitUser": snapshots.user_of(self._table.identity),
            "commitKind": "APPEND",
            "timeMillis": int(time.time() * 1000),
            "totalRecordCount": former.get("totalRecordCount", 0) + told["deltaRecordCount"],
            **{key: former[key] for key in _CARRIED if former.get(key) is not None},
            **told,
        }
        return self._land(document, self._written[before:])

    def _land(self, document: Mapping[str, Any], used: Sequence[str]) -> bool:
        """Make the snapshot. Until its outcome is known for certain, nothing that it names is removed."""
        number = document["id"]
        self._in_doubt = True
        try:
            made = snapshots.create_snapshot(self._files, number, document)
        except OSError as error:  # an earlier try of the same request may have landed
            raise AnswerLost(str(error)) from error
        if not made:
            # A request that was sent twice finds what it has made itself.
            there = snapshots.read_snapshot(self._files, number)
            made = there is not None and there["baseManifestList"] == document["baseManifestList"]
        if not made:
            self._vain += used
            self._in_doubt = False
            return False
        if not snapshots.is_in_line(self._files, number):
            raise AnswerLost(f"snapshot {number} was made, and the one before it has expired meanwhile")
        self._written, self._in_doubt = self._vain, False
        snapshots.hint(self._files, number)
        consumer = snapshots.read_consumer(self._files, self._table.identity)
        if consumer is not None:  # where it was removed, the next start makes it anew
            snapshots.write_consumer(self._files, self._table.identity, replace(consumer, next=number))
        return True

    def _put(self, name: str, data: bytes) -> None:
        path = f"{manifests.DIRECTORY}/{name}"
        self._written.append(path)
        self._marked = True
        self._table.mark(self._marker, self._written)
        self._files.write(path, data)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
