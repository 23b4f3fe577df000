"""The Hive metastore by Thrift: the few calls that this sink makes, and what their errors mean.

Used by the sink, its writers and committers. A connection lives for one block of calls: nothing stays open that could
have been cut meanwhile. pymetastore is imported when the first one is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.storage.base import AnswerLost

DEFAULT_PORT = 9083
#: Of one call. A metastore looks at the directory of each partition that it adds.
CALL_TIMEOUT_SECONDS = 60.0
#: Partitions in one call; many in one make a metastore's own transaction long.
PARTITIONS_PER_CALL = 200


class MetastoreUnreachable(ConnectionError):
    """There was no answer, and nothing was changed by the call. It may be tried again."""


class MetastoreError(OSError):
    """The metastore answered with an error of its own (its database, its file system). It may pass."""


class Metastore:
    """One open connection. From one thread."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def has_database(self, name: str) -> bool:
        from hive_metastore.ttypes import NoSuchObjectException

        with talking(f"looking for the database {name}"):
            try:
                self._client.get_database(name)
            except NoSuchObjectException:
                return False
        return True

    def table(self, database: str, name: str) -> Any | None:
        """The Thrift `Table`; None: there is none."""
        from hive_metastore import ttypes

        capabilities = ttypes.ClientCapabilities([ttypes.ClientCapability.INSERT_ONLY_TABLES])
        request = ttypes.GetTableRequest(dbName=database, tblName=name, capabilities=capabilities)
        with talking(f"reading the table {database}.{name}"):
            try:
                return self._client.get_table_req(request).table
            except ttypes.NoSuchObjectException:
                return None

    def create_table(self, table: Any) -> None:
        """Create it; no error where a table of this name is there already."""
        from hive_metastore.ttypes import AlreadyExistsException

        with talking(f"creating the table {table.dbName}.{table.tableName}"):
            try:
                self._client.create_table(table)
            except AlreadyExistsException:
                return

    def required_columns(self, database: str, name: str) -> frozenset[str]:
        """Columns with an enabled NOT NULL constraint."""
        from hive_metastore.ttypes import NotNullConstraintsRequest

        request = NotNullConstraintsRequest(catName="hive", db_name=database, tbl_name=name)
        with talking(f"reading the constraints of {database}.{name}"):
            found = self._client.get_not_null_constraints(request).notNullConstraints or ()
        return frozenset(constraint.column_name for constraint in found if constraint.enable_cstr)

    def partitions(self, database: str, table: str, names: Sequence[str]) -> list[Any]:
        """The Thrift `Partition`s of these names (`month=1/day=2`); those that are missing are left out."""
        found: list[Any] = []
        for chunk in _chunks(names):
            with talking(f"reading partitions of {database}.{table}"):
                found.extend(self._client.get_partitions_by_names(database, table, chunk))
        return found

    def add_partitions(self, database: str, table: str, partitions: Sequence[Any]) -> None:
        """Add those that are missing; raises `AnswerLost` where some may have been added, which is as good to repeat.
        None that is there is ever changed."""
        from hive_metastore.ttypes import AddPartitionsRequest

        for chunk in _chunks(partitions):
            request = AddPartitionsRequest(
                dbName=database, tblName=table, parts=chunk, ifNotExists=True, needResult=False
            )  # fmt: skip
            with talking(f"adding partitions to {database}.{table}", changes=True):
                self._client.add_partitions_req(request)


@contextmanager
def connected(address: str) -> Iterator[Metastore]:
    """A connection to `thrift://host:port` for this block."""
    try:
        from hive_metastore import ThriftHiveMetastore
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport
    except ModuleNotFoundError as error:
        message = "the Hive metastore needs pymetastore"
        advice = "pip install 'sinkjob[hive]'"
        raise ConfigurationError("MissingModule", message, path="options.metastore", advice=advice) from error
    place = urlsplit(address)
    socket = TSocket(place.hostname, place.port or DEFAULT_PORT)
    socket.setTimeout(int(CALL_TIMEOUT_SECONDS * 1000))
    transport = TBufferedTransport(socket)
    with talking(f"connecting to {address}"):
        transport.open()
    try:
        yield Metastore(ThriftHiveMetastore.Client(TBinaryProtocol(transport)))
    finally:
        transport.close()


@contextmanager
def talking(what: str, changes: bool = False) -> Iterator[None]:
    """Translates errors of one call. `changes`: without an answer it may have happened (`AnswerLost`)."""
    from hive_metastore import ttypes
    from thrift.protocol.TProtocol import TProtocolException
    from thrift.Thrift import TApplicationException
    from thrift.transport.TTransport import TTransportException

    final = (
        ttypes.InvalidObjectException, ttypes.NoSuchObjectException, ttypes.InvalidOperationException,
        ttypes.AlreadyExistsException, ttypes.InvalidInputException,
    )  # fmt: skip
    try:
        yield
    except final as error:
        raise TargetError("MetastoreRefused", f"{what}: {error.message}", path="options.table") from error
    except (ttypes.MetaException, TApplicationException) as error:
        raise MetastoreError(f"{what}: {error.message}") from error
    except (TTransportException, TProtocolException, OSError) as error:
        if changes:
            raise AnswerLost(f"{what}: {error}") from error
        raise MetastoreUnreachable(f"{what}: {error}") from error


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), PARTITIONS_PER_CALL):
        yield list(items[start : start + PARTITIONS_PER_CALL])
