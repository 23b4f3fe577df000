"""The transactions and offsets of a cluster, as their coordinators have them: described, listed, ended.

Used by the committers and the evidence. Each request goes to the coordinator of its id, which is looked up and
remembered until it says that it is none any more. Methods may run in any thread. It ends only what it is told to end,
by producer id and epoch; a transaction that another producer has begun under the same id is turned down by the broker.
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
Key = tuple[int, str]  # what is coordinated: its kind and its name

#: A coordinator that moves or loads is asked again, this often and with this pause.
TRIES_MAX = 40
PAUSE_SECONDS = 0.05
IDLE_CONNECTIONS_MAX = 8  # per broker
IDS_PER_REQUEST = 500
DEFAULT_PORT = 9092
COORDINATORS_REMEMBERED_MAX = 10_000


class Ended(Enum):
    """What a coordinator said to an EndTxn."""

    DONE = "done"
    REFUSED = "refused"  # another state, producer or epoch: look at the transaction
    BUSY = "busy"  # the former end of it is still being written


class Cluster:
    """A client of the coordinators. `settings` are librdkafka's, with `bootstrap.servers`. Connects when asked."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._bootstrap = [_address(text) for text in settings["bootstrap.servers"].split(",")]
        self._idle: dict[Address, list[Connection]] = {}
        self._coordinators: dict[Key, Address] = {}
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

    def offsets(self, group: str) -> list[wire.Offset]:
        """What a group has committed, each with its error. Raises `ConnectionError`, `TargetError`."""
        key = (wire.GROUP, group)
        for _ in range(TRIES_MAX):
            address = self._find(wire.GROUP, [group])[group]
            error, found = wire.read_offsets(self._ask(address, wire.fetch_offsets(group)))
            if error == wire.GROUP_NOT_AUTHORIZED:
                raise _not_authorized(key)
            if error == wire.NO_ERROR:
                return found
            if error not in wire.PASSING:
                raise ConnectionError(f"the offsets of group {group} are not told: error {error}")
            self._forget([key])
            time.sleep(PAUSE_SECONDS)
        raise ConnectionError(f"the coordinator of group {group} is loading")

    def end(self, id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> Ended:
        """Commit or abort. Raises `AnswerLost`, `ConnectionError` (it did not happen), `TargetError`."""
        key = (wire.TRANSACTION, id)
        request = wire.end_transaction(id, producer_id, producer_epoch, commit)
        for _ in range(TRIES_MAX):
            address = self._find(wire.TRANSACTION, [id])[id]
            answer = self._ask(address, request, changes=True)
            try:
                error = wire.read_ended(answer)
            except wire.WireError as broken:
                raise AnswerLost(f"{address[0]}:{address[1]}: {broken}") from broken
            if error == wire.NO_ERROR:
                return Ended.DONE
            if error == wire.NOT_AUTHORIZED:
                raise _not_authorized(key)
            if error not in wire.PASSING and error != wire.CONCURRENT_TRANSACTIONS:
                return Ended.REFUSED
            if error in wire.PASSING:
                self._forget([key])
            time.sleep(PAUSE_SECONDS)
        return Ended.BUSY

    # --- who coordinates

    def _find(self, kind: int, names: Sequence[str]) -> dict[str, Address]:
        """The coordinators of all. Raises `ConnectionError` where one has none."""
        for _ in range(TRIES_MAX):
            with self._lock:
                known = {name: self._coordinators[kind, name] for name in names if (kind, name) in self._coordinators}
            unknown = [name for name in names if name not in known]
            if not unknown:
                return known
            answer = wire.read_coordinators(self._ask_any(wire.find_coordinators(unknown, kind)))
            for one in answer:
                if one.error in (wire.NOT_AUTHORIZED, wire.GROUP_NOT_AUTHORIZED):
                    raise _not_authorized((kind, one.key))
            with self._lock:
                self._coordinators |= {(kind, one.key): (one.host, one.port) for one in answer if not one.error}
                while len(self._coordinators) > COORDINATORS_REMEMBERED_MAX:
                    self._coordinators.pop(next(iter(self._coordinators)))
            if any(one.error for one in answer):
                time.sleep(PAUSE_SECONDS)
        raise ConnectionError("the coordinator is not available")

    def _forget(self, keys: Sequence[Key]) -> None:
        with self._lock:
            for key in keys:
                self._coordinators.pop(key, None)

    def _brokers(self) -> Sequence[Address]:
        error, found = wire.read_cluster(self._ask_any(wire.describe_cluster()))
        if error or not found:
            raise ConnectionError(f"the cluster names no brokers: error {error}")
        return found

    def _ask_any(self, request: wire.Request) -> bytes:
        """Any broker that answers, of those that the manifest names."""
        for address in self._bootstrap[:-1]:
            with suppress(ConnectionError):
                return self._ask(address, request)
        return self._ask(self._bootstrap[-1], request)

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
            self._forget([(wire.TRANSACTION, id) for id in missing])
            time.sleep(PAUSE_SECONDS)
        raise ConnectionError("the transaction coordinator is loading")

    def _describe(self, ids: Sequence[str]) -> dict[str, Transaction]:
        by_address: dict[Address, list[str]] = {}
        for id, address in self._find(wire.TRANSACTION, ids).items():
            by_address.setdefault(address, []).append(id)
        found: dict[str, Transaction] = {}
        for address, some in by_address.items():
            try:
                answer = self._ask(address, wire.describe_transactions(some))
            except ConnectionError:
                self._forget([(wire.TRANSACTION, id) for id in some])  # it may have moved
                raise
            for one in wire.read_transactions(answer):
                if one.error == wire.NOT_AUTHORIZED:
                    raise _not_authorized((wire.TRANSACTION, one.id))
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
            self._coordinators = {key: at for key, at in self._coordinators.items() if at != address}
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
            except OSError as error:
                raise ConnectionError(f"{address[0]}:{address[1]}: {error}") from error
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


def _address(text: str) -> Address:
    """`host:port`, `[::1]:9092`, or a host with Kafka's own port; a protocol before it means nothing."""
    host, colon, port = text.strip().rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return text.strip().strip("[]"), DEFAULT_PORT
    return host.strip("[]"), int(port)


def _not_authorized(key: Key) -> TargetError:
    kind, name = key
    of = "transactional id" if kind == wire.TRANSACTION else "group"
    rights = "Describe and Write" if kind == wire.TRANSACTION else "Read"
    message = f"the user may not use the {of} {name}"
    advice = f"grant {rights} on {of}s with the prefix `transactionalIdPrefix`"
    return TargetError("PermissionDenied", message, path="options.transactionalIdPrefix", advice=advice)
