"""The aggregated committer of the `iceberg` sink: one atomic commit of the catalog per checkpoint, or per several.

Called by the coordinator, alone. It opens no data file: committables carry what manifests need. Each attempt reads the
table, checks uuid, fence and predecessor in that metadata, and has the catalog require that very metadata; who loses
a race reads again, and finds the checkpoint there. Metadata files are removed after a refusal only, and only where the
table, read after it, does not have their snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from sinkruntime.api import Answer, CommitRequest, Committable, Lineage, SinkAggregatedCommitter, SinkIdentity
from sinkruntime.errors import SinkjobError, TargetError
from sinkruntime.predecessor import answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.iceberg import catalog, contents, evidence, naming, sweep
from sinkruntime.sinks.iceberg.options import Options
from sinkruntime.sinks.iceberg.snapshot import Conflict, Content, Draft, Unknown

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

#: Lost races within one call. Each costs a read of the table; after that the coordinator's own backoff takes over.
ATTEMPTS_MAX = 20

Attempt = Callable[["Table", list[CommitRequest]], None]
Connect = Callable[[], "Catalog"]


class IcebergCommitter(SinkAggregatedCommitter):
    """Commits to one table."""

    def __init__(self, options: Options, identity: SinkIdentity, connect: Connect | None = None) -> None:
        """`connect`: a catalog to use instead of one of its own; `close` would close it."""
        self._options = options
        self._identity = identity
        self._connect = connect or partial(catalog.open_catalog, options)
        self._catalog: Catalog | None = None
        self._turned_down: list[Draft] = []

    def open(self) -> None:
        """Connects with the first question: what goes wrong then is that question's answer, and may pass."""

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = sorted(committables, key=lambda pair: pair[0].subtask)
        return {"parts": [committable for _, committable in ordered]}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for group in self._groups(requests):
            with answering(group, Answer.RETRY_LATER):
                self._retried(group, self._commit)
            if any(request.answer not in (Answer.COMMITTED, Answer.ALREADY_COMMITTED) for request in group):
                break
        for request in requests:
            if request.answer is None:
                request.reply(Answer.RETRY_LATER, "Waiting", "an earlier checkpoint is not committed")

    def look(self, request: CommitRequest) -> None:
        """Answer what keeps it from being committed, or that it is; changes nothing."""
        with answering([request], Answer.RETRY_LATER):
            self._acceptable(self._load(), [request])

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with answering(requests, Answer.UNKNOWN):
            proved = self._marker(self._load()).checkpoint
            for request in requests:
                landed = request.lineage.checkpoint <= proved
                request.reply(Answer.ALREADY_COMMITTED if landed else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """An empty snapshot moves the branch, so that a commit under way fails; a property turns it down from then."""
        for request in requests:
            with answering([request], Answer.UNKNOWN):
                self._retried([request], self._fence)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        with self._if_there() as tables:
            for table in tables:
                for request in requests:
                    at = request.lineage
                    for part in request.committable["parts"]:
                        names = {item["name"] for item in part["files"]}
                        sweep.remove(table, self._identity, (at.checkpoint, at.epoch), names)

    def recover(self, garbage: Garbage) -> None:
        if garbage.ledger_id != self._identity.ledger_id:
            return
        with self._if_there() as tables:
            for table in tables:
                for origin in sweep.origins(table, self._identity):
                    if garbage.undecided(*origin):
                        sweep.remove(table, self._identity, origin)

    def clean(self, checkpoint: int, epoch: int) -> None:
        with self._if_there() as tables:
            for table in tables:
                sweep.remove(table, self._identity, (checkpoint, epoch))

    def _groups(self, requests: Sequence[CommitRequest]) -> Iterator[list[CommitRequest]]:
        """Checkpoints that share a snapshot: plain appends. Deletes reach older snapshots only: one each."""
        group: list[CommitRequest] = []
        for request in requests:
            if not request.committable["parts"] and self._needs_no_proof(request):
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            if group and not contents.may_share(self._options):
                yield group
                group = []
            group.append(request)
        if group:
            yield group

    def _needs_no_proof(self, request: CommitRequest) -> bool:
        return request.lineage.checkpoint - request.previous < self._options.empty_checkpoints

    def _retried(self, group: list[CommitRequest], attempt: Attempt) -> None:
        last = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                attempt(self._look_again(), group)
            except Conflict as conflict:
                last = str(conflict)
                continue
            return
        self._look_again()
        for request in group:
            request.reply(Answer.RETRY_LATER, "CommitConflict", f"lost {ATTEMPTS_MAX} races, the last one: {last}")

    def _commit(self, table: Table, group: list[CommitRequest]) -> None:
        """One attempt; answers all, or raises `Conflict`."""
        requests = self._acceptable(table, group)
        if not requests:
            return
        last = requests[-1].lineage
        draft = self._draft(table, last)
        marker = evidence.Marker(last.checkpoint, last.epoch, draft.snapshot_id, draft.sequence)
        summary = {
            naming.LEDGER_ID: self._identity.ledger_id,
            naming.SINK: self._identity.sink,
            naming.EPOCH: str(last.epoch),
            naming.CHECKPOINT: str(last.checkpoint),
        }
        if len(requests) > 1:
            summary[naming.FIRST_CHECKPOINT] = str(requests[0].lineage.checkpoint)
        properties = {naming.marker_property(self._identity): evidence.marker_text(marker, self._options.branch)}
        properties |= requests[-1].committable.get("properties", {})  # what the book of a routed sink says
        parts = [part for request in requests for part in request.committable["parts"]]
        try:
            content, operation = contents.content_of(self._options, draft, table, parts)
            draft.commit(contents.proved(content, summary, properties), operation)
        except Unknown as error:
            for request in requests:
                request.reply(Answer.UNKNOWN, "AnswerLost", str(error))
        except Conflict:
            self._turned_down.append(draft)
            raise
        except (OSError, SinkjobError):  # nothing was sent, or we may not
            draft.discard()
            raise
        else:
            for request in requests:
                request.reply(Answer.COMMITTED)

    def _acceptable(self, table: Table, group: list[CommitRequest]) -> list[CommitRequest]:
        """Those that this metadata lets in, in order; the others are answered."""
        proved = self._marker(table).checkpoint
        taken: list[CommitRequest] = []
        for request in group:
            follows = bool(taken) and request.previous in (proved, taken[-1].lineage.checkpoint)
            if not follows and answer_by_evidence(request, proved, "table"):
                if request.answer is Answer.REFUSED:
                    break
                continue
            if not self._fits(table, request):
                break
            taken.append(request)
        return taken

    def _fits(self, table: Table, request: CommitRequest) -> bool:
        fence = evidence.read_fence(table.metadata, self._identity)
        if request.order <= fence:
            request.reply(Answer.REFUSED, "Fenced", f"table {self._options.table} is fenced: an abort was begun")
            return False
        mine = str(table.metadata.table_uuid)
        for part in request.committable["parts"]:
            if part["table"] != mine:
                message = f"table {self._options.table} is another one than was written to (uuid {mine})"
                request.reply(Answer.REFUSED, "TargetReplaced", message)
                return False
        if not contents.deletes_reach(table, request.committable["parts"]):
            message = f"table {self._options.table} is partitioned otherwise now: deletes would not reach all rows"
            request.reply(Answer.REFUSED, "UnsupportedTableFeature", message)
            return False
        lost = sweep.missing(table, request.committable["parts"])
        if lost:
            message = f"{len(lost)} staged files are gone, first {lost[0]}"
            request.reply(Answer.REFUSED, "CommittableLost", message)
        return not lost

    def _fence(self, table: Table, group: list[CommitRequest]) -> None:
        (request,) = group
        if request.lineage.checkpoint <= self._marker(table).checkpoint:
            request.reply(Answer.ALREADY_COMMITTED)
            return
        order = max(request.order, evidence.read_fence(table.metadata, self._identity))
        draft = self._draft(table, request.lineage)
        fence = f"[{order[0]}, {order[1]}]"
        content = Content(
            summary={
                naming.LEDGER_ID: self._identity.ledger_id,
                naming.SINK: self._identity.sink,
                "sinkjob.fence": fence,
            },
            properties={naming.fence_property(self._identity): fence},
        )
        try:
            draft.commit(content, contents.append())
        except Unknown as error:
            request.reply(Answer.UNKNOWN, "AnswerLost", str(error))
        except Conflict:
            self._turned_down.append(draft)
            raise
        except (OSError, SinkjobError):
            draft.discard()
            raise
        else:
            request.reply(Answer.FENCED)

    def _draft(self, table: Table, at: Lineage) -> Draft:
        folder = naming.metadata_folder(self._identity, at.checkpoint, at.epoch)
        return Draft(table, self._options.branch, folder)

    def _load(self) -> Table:
        if self._catalog is None:
            self._catalog = self._connect()
        return catalog.load_table(self._catalog, self._options, self._options.table)

    def _look_again(self) -> Table:
        """The table now. It tells which of the drafts that were turned down have landed all the same; others go."""
        table = self._load()
        while self._turned_down:
            draft = self._turned_down.pop()
            if not draft.is_in(table):
                draft.discard()
        return table

    def _marker(self, table: Table) -> evidence.Marker:
        return evidence.read_marker(table.metadata, self._identity, self._options.branch)

    @contextmanager
    def _if_there(self) -> Iterator[list[Table]]:
        """The table, if it is there: of one that is gone nothing is left to remove."""
        try:
            tables = [self._load()]
        except TargetError as error:
            if error.reason != "TableMissing":
                raise
            tables = []
        yield tables


@contextmanager
def answering(requests: Sequence[CommitRequest], passing: Answer) -> Iterator[None]:
    """What goes wrong inside becomes the answer of all that have none; `passing`: what an error that may pass means."""
    try:
        yield
    except SinkjobError as error:
        answer, reason, message = Answer.REFUSED, error.reason, error.message
        if passing is Answer.UNKNOWN:
            answer = Answer.UNKNOWN
    except OSError as error:
        answer, reason, message = passing, type(error).__name__, str(error)
    else:
        return
    for request in requests:
        if request.answer is None:
            request.reply(answer, reason, message)
