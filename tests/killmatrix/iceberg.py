"""`--sink iceberg`: a partitioned table in a SQL catalog, and one in a REST catalog behind a proxy that cuts
connections by chance. After each kill manifests are read by pyiceberg and files by DuckDB, at the end all by Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.killmatrix.cuts import Cuts
from tests.killmatrix.files import FileRows
from tests.killmatrix.rows import COLUMNS, Rows
from tests.servers import iceberg_rest, iceberg_spark, toxiproxy

if TYPE_CHECKING:
    from pyiceberg.table import Table

TABLES = {"lake": "db.lake", "lines": "db.lines"}
EXPORT_SECONDS_MAX = 1800
SQL = f"SELECT {', '.join(COLUMNS)} FROM t".replace(" at,", " unix_micros(at) AS at,")


class IcebergBench(Cuts):
    """`lake` is committed by the driver (a local catalog's default), `lines` by the coordinator under the token."""

    def prepare(self) -> None:
        servers = self.folder / "servers"
        for name in ("rest", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        (self.folder / "out").mkdir()
        iceberg_spark.locate()
        self._server = self.stack.enter_context(iceberg_rest.serve(servers / "rest"))
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self._server.address))
        self._rows = {name: FileRows() for name in TABLES}

    def sinks(self) -> list[dict[str, Any]]:
        sql = {"type": "sql", "uri": "sqlite:///out/catalog.db", "warehouse": "./out/warehouse"}
        rest = {"type": "rest", "uri": f"http://{self.proxy.listen}"}
        lake: dict[str, Any] = {"catalog": sql, "partitionBy": ["label", "bucket(2, id)"], "distributionMode": "hash"}
        size = "32MiB" if self.bulk else "1KiB"
        if self.bulk:  # here nobody asks after each kill that files stay as they are
            lake["maintenance"] = {"rewriteEvery": 3, "mergeManifestsEvery": 4, "manifestsMin": 4, "timeLimit": "60s"}
            lake["targetFileSize"] = "8MiB"
        lines = {"catalog": rest, "targetFileSize": size, "sortBy": ["id desc"]}
        sinks: list[dict[str, Any]] = [
            {"name": "lake", "options": lake},
            {"name": "lines", "options": lines, "select": list(reversed(COLUMNS)), "commit": {"runOn": "Operator"}},
        ]
        for sink in sinks:
            sink |= {"type": "iceberg", "guarantee": "ExactlyOnce"}
            sink["options"] |= {"table": TABLES[sink["name"]], "createTable": True}
        return sinks

    def read(self, sink: str) -> Rows:
        table = self._table(sink)
        return self._rows[sink].total({} if table is None else dict(_live(table)))

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink, name in TABLES.items():
            table = self._table(sink)
            if table is None:
                yield f"table {name} is missing"
                continue
            # What killed maintenance left stays for days: another one may still be at work.
            yield from (path for path in _unreferred(table) if not (self.bulk and "/upkeep/" in path))
            yield from _evidence(table, ledger_id, sink)

    def differences(self, expected: Rows) -> Iterator[str]:
        names = {sink: name for sink, name in TABLES.items() if self._table(sink) is not None}
        tables = [self._table(sink) for sink in names]
        questions = [(table.metadata_location, SQL) for table in tables if table is not None]
        for name, seen in zip(names.values(), iceberg_spark.ask(*questions), strict=True):
            rows = Counter(tuple(row.get(column) for column in COLUMNS) for row in seen)
            if rows != expected:
                yield f"Spark sees other rows in {name}"

    def export(self, sink: str, out: Path) -> None:
        table = self._table(sink)
        if table is None:
            return  # all rows are missing
        question = f"INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT {', '.join(COLUMNS)} FROM t"
        iceberg_spark.ask((table.metadata_location, question), timeout_seconds=EXPORT_SECONDS_MAX)

    def _table(self, sink: str) -> Table | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        out = self.folder / "out"
        if sink == "lake" and not (out / "catalog.db").exists():
            return None
        sql = {"type": "sql", "uri": f"sqlite:///{out}/catalog.db", "warehouse": str(out / "warehouse")}
        rest = {"type": "rest", "uri": self._server.uri}
        catalog = load_catalog("default", **(sql if sink == "lake" else rest))
        try:
            return catalog.load_table(TABLES[sink])
        except NoSuchTableError:
            return None
        finally:
            catalog.close()


def _live(table: Table) -> Iterator[tuple[str, tuple[str, Path]]]:
    """Files of the newest snapshot: name, version, place."""
    head = table.current_snapshot()
    for manifest in [] if head is None else head.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            path = Path(entry.data_file.file_path.removeprefix("file://"))
            yield path.name, (str(path.stat().st_size), path)


def _unreferred(table: Table) -> Iterator[str]:
    """Data files, manifests and manifest lists that no snapshot refers to."""
    known = set()
    for snapshot in table.metadata.snapshots:
        known.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            known.add(manifest.manifest_path)
            known |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    there = {path.removeprefix("file://") for path in known}
    root = Path(table.location().removeprefix("file://"))
    for path in [*root.rglob("*.parquet"), *root.rglob("*.avro")]:
        if str(path) not in there:
            yield str(path)


def _evidence(table: Table, ledger_id: str, sink: str) -> Iterator[str]:
    """Each checkpoint stands in one summary at most."""
    found: Counter[str] = Counter()
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary
        if summary and summary.get("sinkjob.ledger-id") == ledger_id and summary.get("sinkjob.sink") == sink:
            found[str(summary.get("sinkjob.checkpoint"))] += 1
    for number, count in found.items():
        if count > 1:
            yield f"{count} snapshots of {TABLES[sink]} have checkpoint {number}"
    if not found:
        yield f"no snapshot of {TABLES[sink]} has evidence"


BENCH = IcebergBench
