"""The transactions of a cluster, as their coordinators have them: described, listed, ended.

Used by the committers. Each request goes to the coordinator of its transactional id, which is looked up and remembered
until it says that it is none any more. Methods may run in any thread. It ends only what it is told to end, by producer
id and epoch; a transaction that another producer has begun under the same id is turned down by the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum

from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka import wire
from sinkruntime.sinks.kafka.connection import AnswerLost, Connection
from sinkruntime.sinks.kafka.wire import Transaction

Address = tuple[str, int]

#: A coordinator that moves or loads is asked again, this often and with this pause.
TRIES_MAX = 40
PAUSE_SECONDS = 0.05
IDLE_CONNECTIONS_MAX = 8  # per broker
IDS_PER_REQUEST = 500
COORDINATORS_REMEMBERED_MAX = 10_000


class Ended(Enum):
    """What a coordinator said to an EndTxn."""

    DONE = "done"
    REFUSED = "refused"  # another state, producer or epoch: look at the transaction
    BUSY = "busy"  # the former end of it is still being written


class Transactions:
    """A client of the transaction coordinators. `brokers` lists the addresses of all brokers now."""

    def __init__(self, settings: Mapping[str, str], brokers: Callable[[], Sequence[Address]]) -> None:
        self._settings = settings
        self._brokers = brokers
        self._idle: dict[Address, list[Connection]] = {}
        self._coordinators: dict[str, Address] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in (one for many in idle.values() for one in many):
            connection.close()

    def describe(self, ids: Sequence[str]) -> dict[str, Transaction]:
        """The state of each id; one that no coordinator knows is left out. Raises `ConnectionError`, `TargetError`."""
        found: dict[str, Transaction] = {}
        for some in _groups(list(dict.fromkeys(ids))):
            found |= self._patiently(some)
        return {id: one for id, one in found.items() if one.error != wire.ID_NOT_FOUND}

    def ongoing(self, belongs: Callable[[str], bool]) -> list[Transaction]:
        """The open transactions of the ids that belong, of all brokers."""
        names: set[str] = set()
        for address in self._brokers():
            error, listed = wire.read_listed(self._ask(address, wire.list_transactions(["Ongoing"])))
            if error:
                raise ConnectionError(f"{address[0]}:{address[1]} lists no transactions: error {error}")
            names |= {one.id for one in listed if belongs(one.id)}
        return [one for one in self.describe(sorted(names)).values() if one.state == "Ongoing"]

    def end(self, id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> Ended:
        """Commit or abort. Raises `AnswerLost`, `ConnectionError` (it did not happen), `TargetError`."""
        request = wire.end_transaction(id, producer_id, producer_epoch, commit)
        for _ in range(TRIES_MAX):
            address = self._find([id])[id]
            answer = self._ask(address, request, changes=True)
            try:
                error = wire.read_ended(answer)
            except wire.WireError as broken:
                raise AnswerLost(f"{address[0]}:{address[1]}: {broken}") from broken
            if error == wire.NO_ERROR:
                return Ended.DONE
            if error == wire.NOT_AUTHORIZED:
                raise _not_authorized(id)
            if error not in wire.PASSING and error != wire.CONCURRENT_TRANSACTIONS:
                return Ended.REFUSED
            if error in wire.PASSING:
                self._forget([id])
            time.sleep(PAUSE_SECONDS)
        return Ended.BUSY

    # --- who coordinates

    def _find(self, ids: Sequence[str]) -> dict[str, Address]:
        """The coordinators of all. Raises `ConnectionError` where one has none."""
        for _ in range(TRIES_MAX):
            with self._lock:
                known = {id: self._coordinators[id] for id in ids if id in self._coordinators}
            unknown = [id for id in ids if id not in known]
            if not unknown:
                return known
            answer = wire.read_coordinators(self._ask(self._any_broker(), wire.find_coordinators(unknown)))
            for one in answer:
                if one.error == wire.NOT_AUTHORIZED:
                    raise _not_authorized(one.key)
            with self._lock:
                self._coordinators |= {one.key: (one.host, one.port) for one in answer if not one.error}
                while len(self._coordinators) > COORDINATORS_REMEMBERED_MAX:
                    self._coordinators.pop(next(iter(self._coordinators)))
            if any(one.error for one in answer):
                time.sleep(PAUSE_SECONDS)
        raise ConnectionError("the transaction coordinator is not available")

    def _any_broker(self) -> Address:
        addresses = self._brokers()
        if not addresses:
            raise ConnectionError("the cluster names no brokers")
        return addresses[0]

    def _forget(self, ids: Sequence[str]) -> None:
        with self._lock:
            for id in ids:
                self._coordinators.pop(id, None)

    # --- requests

    def _patiently(self, ids: Sequence[str]) -> dict[str, Transaction]:
        """Ask again for those whose coordinator moves or loads."""
        found: dict[str, Transaction] = {}
        missing = list(ids)
        for _ in range(TRIES_MAX):
            found |= self._describe(missing)
            missing = [id for id in missing if id not in found or found[id].error in wire.PASSING]
            if not missing:
                return found
            self._forget(missing)
            time.sleep(PAUSE_SECONDS)
        raise ConnectionError("the transaction coordinator is loading")

    def _describe(self, ids: Sequence[str]) -> dict[str, Transaction]:
        by_address: dict[Address, list[str]] = {}
        for id, address in self._find(ids).items():
            by_address.setdefault(address, []).append(id)
        found: dict[str, Transaction] = {}
        for address, some in by_address.items():
            try:
                answer = self._ask(address, wire.describe_transactions(some))
            except ConnectionError:
                self._forget(some)  # it may have moved
                raise
            for one in wire.read_transactions(answer):
                if one.error == wire.NOT_AUTHORIZED:
                    raise _not_authorized(one.id)
                found[one.id] = one
        return found

    def _ask(self, address: Address, request: wire.Request, changes: bool = False) -> bytes:
        """One request. Without an answer: `AnswerLost` where it `changes` something, else `ConnectionError`."""
        for again in (not changes, False):  # an idle connection may have been closed long ago
            try:
                with self._connection(address) as connection:
                    return connection.call(request)
            except AnswerLost as error:
                self._drop(address)
                if changes:
                    raise
                if not again:
                    raise ConnectionError(str(error)) from error
            except ConnectionError:
                self._drop(address)
                raise
            except OSError as error:
                self._drop(address)
                raise ConnectionError(f"{address[0]}:{address[1]}: {error}") from error
        raise AssertionError("the second try returns or raises")

    def _drop(self, address: Address) -> None:
        """Forget what was known of a broker that does not answer."""
        with self._lock:
            idle = self._idle.pop(address, [])
            self._coordinators = {id: at for id, at in self._coordinators.items() if at != address}
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self, address: Address) -> Iterator[Connection]:
        """An idle one, or a new one; one that failed is closed."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            connection = idle.pop() if idle else None
        if connection is None:
            try:
                connection = Connection(*address, self._settings)
            except AnswerLost as error:  # while it said who it is: nothing was asked yet
                raise ConnectionError(str(error)) from error
        try:
            yield connection
        except BaseException:
            with suppress(OSError):
                connection.close()
            raise
        with self._lock:
            kept = self._idle.setdefault(address, [])
            if len(kept) < IDLE_CONNECTIONS_MAX:
                kept.append(connection)
                return
        connection.close()


def _groups(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), IDS_PER_REQUEST):
        yield ids[start : start + IDS_PER_REQUEST]


def _not_authorized(id: str) -> TargetError:
    message = f"the user may not describe or write the transactional id {id}"
    advice = "grant Describe and Write on transactional ids with the prefix `transactionalIdPrefix`"
    return TargetError("PermissionDenied", message, path="options.transactionalIdPrefix", advice=advice)
