"""Paimon's own engine, in Java: reads tables, compacts them, lets snapshots expire.

Loaded as a pytest plugin by `tests/conftest.py`. One Java process for the session, which Python calls through Py4J. Its
jar comes from Maven, once, into the cache of the tests; Hadoop's client and Py4J are those of PySpark.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.jars import locate_jars
from tests.servers.programs import ProgramMissingError

NAME = "paimon-1.3.1"
LISTING = Path(__file__).with_name("paimon_jars.txt")
_GETTERS = {"BIGINT": "getLong", "INT": "getInt", "DOUBLE": "getDouble", "BOOLEAN": "getBoolean"}


@dataclass(frozen=True, slots=True)
class PaimonJava:
    """The running engine."""

    jvm: Any

    def rows(self, warehouse: Path, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table of plain columns; timestamps are microseconds since 1970."""
        found = self._table(warehouse, table)
        kinds = [str(field.type().toString()).split()[0] for field in found.schema().logicalRowType().getFields()]
        # Py4J does not find methods that only an interface has: classes and overloads are chosen to avoid them.
        builder = self.jvm.org.apache.paimon.table.source.ReadBuilderImpl(found)
        rows = []
        for split in builder.newScan().plan().splits():
            iterator = self.jvm.org.apache.paimon.reader.RecordReaderIterator(builder.newRead().createReader(split))
            while iterator.hasNext():
                row = iterator.next()
                rows.append(tuple(_value(row, index, kind) for index, kind in enumerate(kinds)))
            iterator.close()
        return rows

    def expire(self, warehouse: Path, table: str) -> None:
        """Let all snapshots expire but the newest, as far as consumers allow."""
        config = self.jvm.org.apache.paimon.options.ExpireConfig.builder().snapshotRetainMin(1).snapshotRetainMax(1)
        config = config.snapshotTimeRetain(self.jvm.java.time.Duration.ZERO)
        self._table(warehouse, table).newExpireSnapshots().config(config.build()).expire()

    def compact(self, warehouse: Path, table: str, buckets: int, scratch: Path) -> None:
        """Compact the buckets of a table without partitions, whole."""
        found = self._table(warehouse, table)
        paimon = self.jvm.org.apache.paimon
        builder = paimon.table.sink.StreamWriteBuilderImpl(found).withCommitUser("compactor")
        write = builder.newWrite()
        write.withIOManager(paimon.disk.IOManager.create(str(scratch)))
        for bucket in range(buckets):
            write.compact(paimon.data.BinaryRow.EMPTY_ROW, bucket, True)
        builder.newCommit().commit(1, write.prepareCommit(True, 1))
        write.close()

    def _table(self, warehouse: Path, table: str) -> Any:
        paimon = self.jvm.org.apache.paimon
        options = paimon.options.Options()
        options.set("warehouse", str(warehouse))
        catalog = paimon.catalog.CatalogFactory.createCatalog(paimon.catalog.CatalogContext.create(options))
        return catalog.getTable(paimon.catalog.Identifier.fromString(table))


@contextmanager
def serve() -> Iterator[PaimonJava]:
    """Runs the process. Raises ProgramMissingError."""
    import pyspark  # not with the plugin, which every test run loads
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    own = sorted(locate_jars(NAME, LISTING).glob("*.jar"))
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = sorted(jars.glob("hadoop-client-*.jar")) + sorted(jars.glob("slf4j-api-*.jar"))
    (py4j,) = jars.glob("py4j-*.jar")
    port = launch_gateway(
        classpath=os.pathsep.join(str(path) for path in [*own, *hadoop]),
        jarpath=str(py4j),
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield PaimonJava(gateway.jvm)
    finally:
        gateway.shutdown()


@pytest.fixture(scope="session")
def paimon_java() -> Iterator[PaimonJava]:
    """The process. Skips where Java or its jar is missing, which is a failure in CI."""
    try:
        locate_jars(NAME, LISTING)
    except ProgramMissingError as error:
        pytest.skip(f"missing server: {error}")
    with serve() as java:
        yield java


def _value(row: Any, index: int, kind: str) -> Any:
    if row.isNullAt(index):
        return None
    if kind == "STRING":
        return str(row.getString(index).toString())
    if kind.startswith("TIMESTAMP"):
        return row.getTimestamp(index, 6).toMicros()
    return getattr(row, _GETTERS[kind])(index)
