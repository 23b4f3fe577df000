"""Mutations of the shells: driver, coordinator, ledger stores and targets. See `mutations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sinkruntime.api import Answer
from sinkruntime.coordinator import attempt, coordinator, housekeeping
from sinkruntime.coordinator.attempt import Attempt
from sinkruntime.driver import driver
from sinkruntime.driver.driver import Driver
from sinkruntime.errors import Fenced, InDoubt
from sinkruntime.ledger.memory import MemoryLedgerStore
from sinkruntime.protocol.events import OutcomeKind, Refused
from sinkruntime.sinks.memory.session import TARGETS
from sinkruntime.sinks.memory.target import MemoryTarget, Publication, Staged, Verdict
from tests.simulation.teeth import mutation, put


@mutation
def resource_version() -> None:
    """The ledger is written without comparing its version."""
    plain = MemoryLedgerStore.replace

    async def replace(self: MemoryLedgerStore, ledger: Any, version: str) -> Any:
        return await plain(self, ledger, str(self.version))

    put(MemoryLedgerStore, "replace", replace)


@mutation
def recover_is_repeated() -> None:
    """`recover` runs once, though processes of older epochs may still stage."""
    plain = coordinator.Coordinator.__init__

    def init(self: Any, services: Any, settings: Any, tenure: Any) -> None:
        plain(self, services, settings, tenure)
        object.__setattr__(services, "older_gone", lambda epoch: True)

    put(coordinator.Coordinator, "__init__", init)


@mutation
def nothing_removed_after_a_decision_was_sent() -> None:
    """A driver that does not hear of its decision takes back what it staged."""
    plain = Driver._decide

    async def decide(self: Any, event: Any, *more: Any) -> None:
        try:
            await plain(self, event, *more)
        except (InDoubt, Refused):
            _take_back(event)
            raise

    put(Driver, "_decide", decide)


def _take_back(event: Any) -> None:
    record = event.record
    for target in TARGETS.values():
        target.remove(lambda key: (key.checkpoint, key.epoch) == (record.number, record.epoch), "the driver")


@mutation
def own_record_is_known_again() -> None:
    """A refused decision means that it never happened, though it may be one's own record that refuses it."""
    plain: Any = vars(driver)["change"]

    async def change(store: Any, make_event: Any, environment: Any, give_up_seconds: float) -> Any:
        made: list[Any] = []

        def again(ledger: Any) -> Any:
            if not made:
                made.append(make_event(ledger))
            return made[0]

        try:
            return await plain(store, again, environment, give_up_seconds)
        except Refused:
            if made and hasattr(made[0], "record"):
                _take_back(made[0])
            raise

    put(driver, "change", change)


@mutation
def fenced_driver_raises() -> None:
    """A driver that is fenced or in doubt lets Spark go on."""
    plain = Driver.checkpoint

    async def checkpoint(self: Any, *arguments: Any) -> bool:
        try:
            return await plain(self, *arguments)
        except (Fenced, InDoubt):
            return True

    put(Driver, "checkpoint", checkpoint)


@mutation
def empty_batches_are_decided() -> None:
    """A batch without rows gets no decision."""
    plain = Driver.checkpoint

    async def checkpoint(self: Any, position: Any, stage: Any, batch: str = "") -> bool:
        if position.start.digest == position.end.digest:
            return True
        return await plain(self, position, stage, batch)

    put(Driver, "checkpoint", checkpoint)


@mutation
def lineage_is_complete() -> None:
    """The driver decides on whatever results came."""
    put(driver, "check_lineage", lambda *arguments: None)


@mutation
def states_of_the_last_decision() -> None:
    """Writers begin without the states that the last decision left."""

    async def states(self: Any, ledger: Any) -> dict[str, Any]:
        return {}

    put(Driver, "_states", states)


@mutation
def payload_before_the_decision() -> None:
    """Payload objects are written when somebody gets round to it."""
    _no_objects()


def _no_objects() -> None:
    plain: Any = vars(driver)["store_payloads"]

    class Lazy:
        async def put_object(self, name: str, data: bytes) -> None:
            return

    async def store_payloads(store: Any, epoch: int, packed: Any) -> Any:
        return await plain(Lazy(), epoch, packed)

    put(driver, "store_payloads", store_payloads)


@mutation
def payload_until_the_last_mark() -> None:
    """Payload objects go when the commit has landed, before the ledger says so."""
    plain = Attempt._commit

    async def commit(self: Any, requests: Any) -> Any:
        outcome = await plain(self, requests)
        payload = self._work.part.payload
        if outcome.kind is OutcomeKind.COMMITTED and payload is not None and payload.pointer:
            await self._store.remove_object(payload.pointer)
        return outcome

    put(Attempt, "_commit", commit)


@mutation
def payloads_of_the_running_epoch_stay() -> None:
    """Objects of the running epoch that no record names count as orphans."""
    plain: Any = vars(housekeeping)["object_epoch"]
    put(housekeeping, "object_epoch", lambda name: (plain(name) or 0) - 1)


@mutation
def losers_after_the_commit() -> None:
    """Losing attempts are removed before the commit."""
    plain = Attempt._commit

    async def commit(self: Any, requests: Any) -> Any:
        await self._remove()
        return await plain(self, requests)

    put(Attempt, "_commit", commit)


@mutation
def losers_are_removed() -> None:
    """Nobody removes losing attempts."""

    async def remove(self: Any) -> Any:
        return self._outcome(OutcomeKind.CLEANED)

    put(Attempt, "_remove", remove)


@mutation
def unknown_is_not_done() -> None:
    """A lost answer counts as success."""
    _fold(lambda kind: OutcomeKind.COMMITTED if kind is OutcomeKind.UNKNOWN else kind)


def _fold(change: Callable[[OutcomeKind], OutcomeKind]) -> None:
    plain = attempt._worst
    put(attempt, "_worst", lambda requests: change(plain(requests)))


@mutation
def unknown_is_not_cleaned_up() -> None:
    """After a lost answer what was staged is taken back, as after a failure."""
    plain = Attempt._call

    async def call(self: Any, function: Any, requests: Sequence[Any], *more: Any, **named: Any) -> Any:
        error = await plain(self, function, requests, *more, **named)
        unknown = [r for r in requests if r.answer is Answer.UNKNOWN]
        if unknown and function.__name__ == "commit" and self._committer is not None:
            await plain(self, self._committer.abort, unknown, Answer.UNKNOWN)
        return error

    put(Attempt, "_call", call)


@mutation
def evidence_in_the_targets_commit() -> None:
    """The target publishes what it is told, and keeps its evidence on the side."""
    plain = MemoryTarget.publish

    def publish(self: MemoryTarget, publication: Publication) -> Verdict:
        for key in publication.keys:
            self.staged.setdefault(key, Staged(prepared=True))
        verdict = self._verdict
        self._verdict = lambda publication: Verdict.PUBLISHED  # type: ignore[method-assign]
        try:
            return plain(self, publication)
        finally:
            self._verdict = verdict  # type: ignore[method-assign]

    put(MemoryTarget, "publish", publish)


@mutation
def predecessor_is_exact() -> None:
    """The target takes any number above its evidence."""
    plain = MemoryTarget._verdict

    def verdict(self: MemoryTarget, publication: Publication) -> Verdict:
        found = plain(self, publication)
        return Verdict.PUBLISHED if found in (Verdict.BEHIND, Verdict.AHEAD) else found

    put(MemoryTarget, "_verdict", verdict)


@mutation
def fence_row() -> None:
    """A fence is answered, and nothing is written to the target."""
    put(MemoryTarget, "fence", lambda self, publication: not self.landed(publication))
