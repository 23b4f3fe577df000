"""The committers of the `kafka` sink. The first ends each writer's transaction, in parallel; the second, alone and
after it, aborts what losing attempts have left open and moves the evidence from the previous checkpoint.

Called by the coordinator. A transaction is looked at before it is ended, and named by its producer's id and epoch: what
another producer has begun under the same transactional id is never touched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum

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
from sinkruntime.predecessor import already_committed, answer_by_evidence
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.sinks.kafka import clients
from sinkruntime.sinks.kafka.broker import Cluster, Ended
from sinkruntime.sinks.kafka.connection import AnswerLost
from sinkruntime.sinks.kafka.evidence import EvidenceGroup, EvidenceMover, Fenced
from sinkruntime.sinks.kafka.names import SLOTS, Origin, base_name, origin_of
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.wire import Transaction, WireError

log = logging.getLogger(__name__)

#: How long to wait for the broker to write the end of transactions into the partitions, after it has promised to.
VISIBLE_WAIT_SECONDS = 5.0
PAUSE_SECONDS = 0.005
#: A commit so late, as a part of `transactionTimeout`, is warned of.
GAP_OF_TIMEOUT_MAX = 0.5
#: Transactions that the evidence's text names, for people.
TOLD_MAX = 8

_OPEN = "Ongoing"
_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class Standing(Enum):
    """What has become of a prepared transaction."""

    OPEN = "open"
    LANDED = "landed"
    ABORTED = "aborted"  # surely: by the broker after its timeout, or by us
    GONE = "gone"  # another producer has the id, or nobody: what became of it is not told any more


class _Committer(CommitterBase):
    """What both tiers share: the cluster, and the evidence."""

    def __init__(self, options: Options, identity: SinkIdentity) -> None:
        self._options = options
        self._identity = identity
        self._base = base_name(options.transactional_id_prefix, identity)

    def open(self) -> None:
        self.cluster = Cluster(clients.connection_settings(self._options))
        self.group = EvidenceGroup(self._options, self._identity, self.cluster)

    def close(self) -> None:
        cluster: Cluster | None = getattr(self, "cluster", None)
        if cluster is not None:
            cluster.close()

    def _standings(self, committables: Iterable[Committable]) -> dict[str, Standing]:
        wanted = {one["id"]: one for one in committables}
        found = self.cluster.describe(list(wanted))
        return {id: standing_of(one, found.get(id)) for id, one in wanted.items()}

    def _abort(self, transactions: Iterable[tuple[str, int, int]]) -> None:
        """Exactly these; one that is not open any more is left as it is."""
        for id, producer, epoch in transactions:
            self.cluster.end(id, producer, epoch, commit=False)

    def _abort_where(self, condition: Callable[[Origin], bool]) -> None:
        def belongs(name: str) -> bool:
            origin = origin_of(self._base, name)
            return origin is not None and condition(origin)

        found = self.cluster.ongoing(belongs)
        self._abort((one.id, one.producer_id, one.producer_epoch) for one in found)


class KafkaCommitter(_Committer, SinkCommitter):
    """Ends each writer's transaction."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        with answering(*requests):  # nothing is sent before the evidence and the transactions are known
            marker = self.group.read()
            mine = [request for request in requests if not answer_by_evidence(request, marker.checkpoint, "cluster")]
            standings = self._standings(request.committable for request in mine)
            for request in mine:
                self._commit(request, standings[request.committable["id"]])
            self._await_visible(mine)
            self._watch_gap(mine)

    def _commit(self, request: CommitRequest, standing: Standing) -> None:
        if standing is Standing.LANDED:
            request.reply(Answer.ALREADY_COMMITTED)
        elif standing is not Standing.OPEN:
            request.reply(*_lost(request, standing))
        else:
            with answering(request):
                self._end(request)

    def _end(self, request: CommitRequest) -> None:
        one = request.committable
        ended = self.cluster.end(one["id"], one["producer"], one["epoch"], commit=True)
        if ended is Ended.DONE:
            request.reply(Answer.COMMITTED)
            return
        standing = self._standings([one])[one["id"]]  # it has changed since it was looked at
        if standing is Standing.LANDED:
            request.reply(Answer.ALREADY_COMMITTED)
        elif standing is Standing.OPEN:
            request.reply(Answer.RETRY_LATER, "CoordinatorBusy", "the coordinator does not end the transaction now")
        else:
            request.reply(*_lost(request, standing))

    def _await_visible(self, requests: Sequence[CommitRequest]) -> None:
        """The end is promised; readers see it when it stands in every partition. Gives up waiting, never the answer."""
        done = {request.committable["id"] for request in requests if request.answer is Answer.COMMITTED}
        until = time.monotonic() + VISIBLE_WAIT_SECONDS
        while done and time.monotonic() < until:
            try:
                found = self.cluster.describe(sorted(done))
            except (ConnectionError, TargetError):
                return
            done = {id for id, one in found.items() if one.state == "PrepareCommit"}
            if done:
                time.sleep(PAUSE_SECONDS)

    def _watch_gap(self, requests: Sequence[CommitRequest]) -> None:
        """Say it while it can still be mended: transactions that are ended late are one day ended too late."""
        late = [(time.time() - one.committable["began"], one) for one in requests if one.answer is Answer.COMMITTED]
        gap_seconds, request = max(late, key=lambda pair: pair[0], default=(0.0, None))
        if request is None or gap_seconds < GAP_OF_TIMEOUT_MAX * request.committable["timeoutMs"] / 1000:
            return
        log.warning(
            "checkpoint %d of sink %s was committed %.0f s after its first transaction began, and the brokers would "
            "have aborted it after %.0f s: raise transactionTimeout, or make checkpoints smaller or commits faster",
            request.lineage.checkpoint,
            self._identity.sink,
            gap_seconds,
            request.committable["timeoutMs"] / 1000,
        )

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        with _translated_wire():
            marker = self.group.read()
            mine = [request for request in requests if not already_committed(request, marker.checkpoint)]
            standings = self._standings(request.committable for request in mine)
        for request in mine:
            standing = standings[request.committable["id"]]
            if standing is Standing.LANDED:
                request.reply(Answer.ALREADY_COMMITTED)
            elif standing is Standing.GONE and request.may_have_landed:
                request.reply(*_lost(request, standing))
            else:
                request.reply(Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """An EndTxn that is under way can only be made to fail by aborting, which would remove the rows. Of a
        transaction that is aborted every EndTxn fails."""
        self.probe(requests)
        absent = [request for request in requests if request.answer is Answer.ABSENT]
        with _translated_wire():
            standings = self._standings(request.committable for request in absent)
        for request in absent:
            if request.may_have_landed and standings[request.committable["id"]] is not Standing.ABORTED:
                message = "Kafka cannot turn down the end of a transaction that may be under way"
                request.reply(Answer.UNKNOWN, "CannotFence", message)
            else:
                request.reply(Answer.FENCED)

    def abort(self, requests: Sequence[CommitRequest]) -> None:
        items = [request.committable for request in requests]
        standings = self._standings(items)
        self._abort(
            (one["id"], one["producer"], one["epoch"]) for one in items if standings[one["id"]] is Standing.OPEN
        )

    def recover(self, garbage: Garbage) -> None:
        """Abort the open transactions of older epochs, but those whose slot is a pending checkpoint's."""
        if garbage.ledger_id != self._identity.ledger_id:
            return

        def is_garbage(origin: Origin) -> bool:
            pending = {number % SLOTS for number in garbage.unsettled if not garbage.undecided(number, origin.epoch)}
            # No checkpoint is numbered 0: this asks whether the epoch is over and has a range.
            return garbage.undecided(0, origin.epoch) and origin.slot not in pending

        self._abort_where(is_garbage)

    def clean(self, checkpoint: int, epoch: int) -> None:
        """Nothing: by now the slot may be another checkpoint's. The aggregated committer has aborted the losers before
        it moved the evidence, when the slot surely was this checkpoint's; what opens later, `recover` or its timeout
        ends."""


class KafkaAggregatedCommitter(_Committer, SinkAggregatedCommitter):
    """Moves the evidence, one checkpoint at a time. An empty checkpoint leaves none."""

    def open(self) -> None:
        super().open()
        self._mover = EvidenceMover(self._options, self.group)

    def close(self) -> None:
        super().close()
        mover: EvidenceMover | None = getattr(self, "_mover", None)
        if mover is not None:
            mover.close()

    def combine(self, committables: Sequence[tuple[Lineage, Committable]]) -> Committable:
        ordered = [one for _, one in sorted(committables, key=lambda pair: pair[0].subtask)]
        return {
            "rows": sum(one["rows"] for one in ordered),
            "topics": sorted({topic for one in ordered for topic in one["topics"]}),
            "transactions": [[one["id"], one["producer"], one["epoch"]] for one in ordered],
        }

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if not request.committable["transactions"]:
                request.evidence = False
                request.reply(Answer.COMMITTED)
                continue
            with answering(request):
                self._move(request)

    def _move(self, request: CommitRequest) -> None:
        lineage, one = request.lineage, request.committable
        slot = Origin(lineage.epoch, lineage.checkpoint % SLOTS)
        # Looked for before the evidence is read: while it stands below this checkpoint, no later one has the slot.
        open_ones = self.cluster.ongoing(lambda name: origin_of(self._base, name) == slot)
        marker = self._mover.claim()
        if answer_by_evidence(request, marker.checkpoint, "cluster"):
            return
        winners = {id for id, _, _ in one["transactions"]}
        losers = [(t.id, t.producer_id, t.producer_epoch) for t in open_ones if t.id not in winners]
        if losers and answer_by_evidence(
            request, self.group.read().checkpoint, "cluster"
        ):  # the claimed one may be another's by now
            return
        self._abort(losers)
        detail = {
            "epoch": lineage.epoch,
            "rows": one["rows"],
            "transactions": len(one["transactions"]),
            "producers": [[producer, epoch] for _, producer, epoch in one["transactions"][:TOLD_MAX]],
        }
        try:
            self._mover.move(lineage.checkpoint, one["topics"], detail)
        except Fenced as error:
            request.reply(Answer.RETRY_LATER, "EvidenceMoved", str(error))
            return
        request.reply(Answer.COMMITTED)

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        marker = self.group.read()
        for request in requests:
            if not already_committed(request, marker.checkpoint):
                request.reply(Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        """The transactions are fenced one by one; without them the evidence does not move."""
        marker = self.group.read()
        for request in requests:
            if not already_committed(request, marker.checkpoint):
                request.reply(Answer.FENCED)


def standing_of(committable: Committable, found: Transaction | None) -> Standing:
    """What the coordinator's words mean for a prepared transaction: its state, producer id and epoch. Pure."""
    if found is None or found.producer_id != committable["producer"]:
        return Standing.GONE
    if found.producer_epoch == committable["epoch"]:
        if found.state == _OPEN:
            return Standing.OPEN
        if found.state in _COMMITTED:
            return Standing.LANDED
        return Standing.ABORTED if found.state in _ABORTED else Standing.GONE
    # The broker raises the epoch when it aborts what has timed out.
    fenced = found.producer_epoch == committable["epoch"] + 1 and found.state in _ABORTED
    return Standing.ABORTED if fenced else Standing.GONE


@contextmanager
def answering(*requests: CommitRequest) -> Iterator[None]:
    """What goes wrong inside becomes the answer of the requests that have none yet."""
    answer = Answer.RETRY_LATER
    try:
        with _translated_wire():
            yield
    except AnswerLost as error:
        answer, reason, message = Answer.UNKNOWN, "AnswerLost", str(error)
    except TargetError as error:
        answer, reason, message = Answer.REFUSED, error.reason, error.message
    except OSError as error:
        reason, message = type(error).__name__, str(error)
    else:
        return
    for request in requests:
        if request.answer is None:
            request.reply(answer, reason, message)


@contextmanager
def _translated_wire() -> Iterator[None]:
    """Bytes that nobody understands are no reason to lose anything: ask again later."""
    try:
        yield
    except WireError as error:
        raise ConnectionError(f"the broker's answer is not understood: {error}") from error


def _lost(request: CommitRequest, standing: Standing) -> tuple[Answer, str, str]:
    """Aborted, surely; or not to be found, which after an attempt may mean that it had landed."""
    one: Mapping[str, object] = request.committable
    lineage = request.lineage
    message = (
        f"{one['rows']} rows of subtask {lineage.subtask} of checkpoint {lineage.checkpoint}: their transaction "
        f"{one['id']} (producer {one['producer']}, epoch {one['epoch']}, timeout {one['timeoutMs']} ms) "
    )
    if standing is Standing.GONE and request.may_have_landed:
        return Answer.UNKNOWN, "InDoubt", f"{message}is not there any more: committed and forgotten, or lost"
    what = "was aborted" if standing is Standing.ABORTED else "is not there"
    return Answer.REFUSED, "CommittableLost", f"{message}{what}"
