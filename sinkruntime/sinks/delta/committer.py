"""The committer of the `delta` sink: one version of the log for one checkpoint, with the evidence in it.

Called by the coordinator, alone. A commit looks at the evidence and writes the next version on one handle, and that
version is written by whoever comes first: what was looked at is what is built on. It opens no data file. Keeps
nothing between two calls but the names of what it has committed itself.
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sinkruntime.api import (
    Answer,
    CommitRequest,
    Committable,
    Lineage,
    SinkAggregatedCommitter,
    SinkIdentity,
)
from sinkruntime.errors import SinkjobError, TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.delta import names
from sinkruntime.sinks.delta.log import newest
from sinkruntime.sinks.delta.options import Options, Write
from sinkruntime.sinks.delta.place import Place
from sinkruntime.sinks.delta.table import (
    app_id,
    check_features,
    committed_until,
    evidence_of,
    fence_id,
    find,
    load,
    load_deltalake,
    sentence,
    shape_of,
)
from sinkruntime.storage.answers import answering
from sinkruntime.storage.base import AnswerLost

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: A commit that loses the version to another writer is made again so often, then later.
ATTEMPTS_MAX = 10
#: Checkpoints whose committed names are remembered.
REMEMBERED_MAX = 32
#: Newest settled checkpoints in which recovery looks for attempts that came late.
SETTLED_MAX = 16
#: An order as one number: tenures above, requests below.
ORDER_BITS = 32


class VersionTaken(Exception):
    """Another commit was first: look again."""


class DeltaCommitter(SinkAggregatedCommitter):
    """Commits data files: `write: append` and `complete`."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity
        self._place = Place(options)
        self._committed: OrderedDict[tuple[int, int], frozenset[str]] = OrderedDict()

    def open(self) -> None:
        load(self._place)

    # --- commit

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: (pair[0].subtask, pair[0].attempt))
        tables = sorted({committable["table"] for _, committable in ordered})
        columns = {name: kind for _, committable in ordered for name, kind in committable["columns"].items()}
        return {"files": [item for _, each in ordered for item in each["files"]], "tables": tables, "columns": columns}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["files"] and self._options.write is not Write.COMPLETE:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request):
                self._commit(request)

    def _commit(self, request: CommitRequest) -> None:
        """Look and write, again after each version that another writer took."""
        for _ in range(ATTEMPTS_MAX):
            table = load(self._place)
            if self._answered(request, table) or self._turned_away(request, table):
                return
            try:
                self._check(request, table)
                self._write(request, table)
            except VersionTaken:
                continue
            self._remember(request)
            request.reply(Answer.COMMITTED)
            return
        request.reply(Answer.RETRY_LATER, "Conflict", f"other writers took {ATTEMPTS_MAX} versions in a row")

    def look(self, request: CommitRequest) -> None:
        """Answer what keeps it from being committed, or that it is; changes nothing."""
        with answering(request), contextlib.suppress(VersionTaken):
            table = load(self._place)
            if self._answered(request, table) or self._turned_away(request, table):
                return
            self._check(request, table)

    def _turned_away(self, request: CommitRequest, table: DeltaTable) -> bool:
        if not self._fenced(request, table):
            return False
        request.reply(Answer.REFUSED, "Fenced", "this checkpoint is fenced: an abort was begun")
        return True

    def _answered(self, request: CommitRequest, table: DeltaTable) -> bool:
        """What was committed stays so, also where a RESTORE took it away: the next checkpoint is told of that."""
        ever = committed_until(table, self._identity)
        if ever < request.lineage.checkpoint:
            ever = evidence_of(self._place, table, self._identity)
        return answer_by_evidence(request, ever)

    def _check(self, request: CommitRequest, table: DeltaTable) -> None:
        """Raises `TargetError` unless the table still is the one, can take the files, and they are still there."""
        check_features(table, self._options)
        shape, committable = shape_of(table), request.committable
        if any(table_id != shape.table_id for table_id in committable["tables"]):
            message = f"{self._place.uri} is another table now ({shape.table_id}): it was dropped and made anew"
            raise TargetError("TargetReplaced", message, path="options.path")
        for name, kind in committable["columns"].items():
            if shape.types.get(name) != kind:
                has = json.dumps(shape.types[name]) if name in shape.types else "no such column"
                message = f"column `{name}`: the table now has {has}, the files have {json.dumps(kind)}"
                raise TargetError("SchemaMismatch", message, path="options.path")
        for field in shape.schema:
            if committable["files"] and not field.nullable and field.name not in committable["columns"]:
                message = f"column `{field.name}`: the table now requires a value, the files do not have it"
                raise TargetError("SchemaMismatch", message, path="options.path")
        self._check_staged(request)

    def _check_staged(self, request: CommitRequest) -> None:
        items = request.committable["files"]
        where = {item["path"].rpartition("/")[0] for item in items}
        present = {found.path: found.size for directory in where for found in self._place.files(directory)}
        gone = [item["path"] for item in items if present.get(item["path"]) != item["size"]]
        if gone:
            if committed_until(load(self._place), self._identity) >= request.lineage.checkpoint:
                raise VersionTaken  # a twin has committed it since the look, and removed what it had merged
            message = f"{len(gone)} staged files are gone, first {gone[0]}"
            raise TargetError("CommittableLost", message, path="options.path")

    def _write(self, request: CommitRequest, table: DeltaTable) -> None:
        """Write the next version. Raises `VersionTaken`, or `AnswerLost` where it is not known whether it is there."""
        from deltalake.transaction import AddAction

        actions: list[Any] = [
            AddAction(item["path"], item["size"], item["partition"], item["time"], True, item["stats"])
            for item in request.committable["files"]
        ]
        mode = "overwrite" if self._options.write is Write.COMPLETE else "append"
        with self._one_version(table, request.lineage.checkpoint):
            table.create_write_transaction(
                actions,
                mode,
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=self._properties(request.lineage, [(app_id(self._identity), None)]),
            )

    def _properties(self, lineage: Lineage, transactions: list[tuple[str, int | None]]) -> Any:
        """Evidence and who we are, for one try: `deltalake` would rebase on what nobody has looked at."""
        deltalake = load_deltalake()
        told = [
            deltalake.Transaction(app, lineage.checkpoint if version is None else version)
            for app, version in transactions
        ]
        who = {"ledger": self._identity.ledger_id, "sink": self._identity.sink, "job": self._identity.job}
        metadata = {**who, "checkpoint": lineage.checkpoint, "epoch": lineage.epoch}
        return deltalake.CommitProperties({"sinkjob": metadata}, max_commit_retries=0, app_transactions=told)

    @contextmanager
    def _one_version(self, table: DeltaTable, checkpoint: int) -> Iterator[None]:
        """Around a write to the log: after an error the log itself says what became of it."""
        before = table.version()
        try:
            yield
        except Exception as error:  # noqa: BLE001  (`deltalake` raises plain ones too; the log decides, not the class)
            self._judge(error, before, checkpoint)

    def _judge(self, error: Exception, before: int, checkpoint: int) -> None:
        """Nothing to say where the commit landed. A request that is still under way can only take the version that the
        next try takes, and only one of them gets it."""
        deltalake = load_deltalake()
        try:
            now = load(self._place)
        except (ConnectionError, SinkjobError) as lost:
            raise AnswerLost(sentence(error)) from lost
        if committed_until(now, self._identity) >= checkpoint:
            return
        if now.version() > before:
            raise VersionTaken from error
        if isinstance(error, deltalake.exceptions.DeltaProtocolError | deltalake.exceptions.SchemaMismatchError):
            raise TargetError("TableRefused", sentence(error), path="options.path") from error
        raise AnswerLost(sentence(error)) from error

    def _remember(self, request: CommitRequest) -> None:
        origin = (request.lineage.checkpoint, request.lineage.epoch)
        self._committed[origin] = frozenset(item["path"] for item in request.committable["files"])
        while len(self._committed) > REMEMBERED_MAX:
            self._committed.popitem(last=False)

    # --- probe, fence

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        proved = committed_until(load(self._place), self._identity)
        for request in requests:
            request.reply(Answer.ALREADY_COMMITTED if proved >= request.lineage.checkpoint else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            self._fence(request)

    def _fenced(self, request: CommitRequest, table: DeltaTable) -> bool:
        return (table.transaction_version(fence_id(self._identity)) or 0) >= order_number(request.order)

    def _fence(self, request: CommitRequest) -> None:
        """A version of its own: what was to be written in its place fails, and what comes later finds the fence."""
        for _ in range(ATTEMPTS_MAX):
            table = load(self._place)
            if committed_until(table, self._identity) >= request.lineage.checkpoint:
                request.reply(Answer.ALREADY_COMMITTED)
                return
            if self._fenced(request, table):
                request.reply(Answer.FENCED)
                return
            told: list[tuple[str, int | None]] = [(fence_id(self._identity), order_number(request.order))]
            try:
                with self._one_version(table, request.lineage.checkpoint):
                    properties = self._properties(request.lineage, told)
                    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
            except VersionTaken:
                continue
            # The next look answers: the fence is there, or the commit was first.
        request.reply(Answer.UNKNOWN, "Conflict", f"other writers took {ATTEMPTS_MAX} versions in a row")

    # --- clean-up

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        table = find(self._place)
        for request in requests:
            if table is None or committed_until(table, self._identity) < request.lineage.checkpoint:
                self._place.remove([item["path"] for item in request.committable["files"]])

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id != self._identity.ledger_id:
            return
        home = names.home(self._identity, self._options.write)
        origins = [origin for name in self._place.directories(home) if (origin := names.origin_of(name)) is not None]
        for origin in origins:
            if garbage.undecided(*origin):
                self._remove(*origin)
        # A losing attempt can come after its checkpoint was cleaned; only one of the newest.
        for origin in [origin for origin in origins if garbage.settled(*origin)][-SETTLED_MAX:]:
            if self._unnamed(*origin):
                self.clean(*origin)

    def clean(self, checkpoint: int, epoch: int) -> None:
        kept = self._committed.get((checkpoint, epoch))
        if kept is None:
            kept = self._named_by_the_log(checkpoint, epoch)
        if kept is not None:
            self._remove(checkpoint, epoch, kept)

    def _named_by_the_log(self, checkpoint: int, epoch: int) -> frozenset[str] | None:
        """The files with which the checkpoint was committed, also those that the table has given up since; None: the
        log does not say any more, and nothing is removed."""
        table = load(self._place)
        if committed_until(table, self._identity) < checkpoint:
            return frozenset()
        who = {"ledger": self._identity.ledger_id, "sink": self._identity.sink}
        for version in newest(self._place, table.version()):
            ours = version.info().get("sinkjob")
            if isinstance(ours, dict) and {**ours, **who, "checkpoint": checkpoint, "epoch": epoch} == ours:
                return version.added()
        return None

    def _remove(self, checkpoint: int, epoch: int, kept: frozenset[str] = frozenset()) -> None:
        """Remove what a checkpoint of an epoch staged, but never what the table names."""
        self._place.remove(sorted(self._unnamed(checkpoint, epoch, kept)))
        self._place.prune(names.directory(self._identity, self._options.write, checkpoint, epoch))

    def _unnamed(self, checkpoint: int, epoch: int, kept: frozenset[str] = frozenset()) -> set[str]:
        """What a checkpoint of an epoch staged, besides `kept`, and the table does not name now. Most often nothing,
        and then the table is not read."""
        directory = names.directory(self._identity, self._options.write, checkpoint, epoch)
        found = {file.path for file in self._place.files(directory)} - kept
        return found if not found or self._options.write is Write.UPSERT else found - set(self._active_files())

    def _active_files(self) -> Iterator[str]:
        prefix = f"{self._place.uri}/"
        for uri in load(self._place).file_uris():
            yield uri.removeprefix("file://").removeprefix(prefix)


def order_number(order: tuple[int, int]) -> int:
    """An order as a transaction's version, of 63 bits: greater for a later one."""
    tenure, count = order
    return (tenure << ORDER_BITS) + min(count, (1 << ORDER_BITS) - 1)
