"""`--sink hive`: two tables of a metastore that is reached through a proxy, which cuts connections by chance.

Rows are those that the metastore leads to: files in the directories of its partitions, read past the proxy. After the
last run Spark reads both tables by its own client, where the metastore is one that it knows: 3.1, which needs root.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from tests.killmatrix.cuts import Cuts
from tests.killmatrix.file import PRIVATE
from tests.killmatrix.files import FileRows
from tests.killmatrix.rows import COLUMNS, Rows
from tests.servers import hive_metastore, toxiproxy
from tests.sinks.hive_place import Place, files_of
from tests.sinks.spark_hive import export_by_spark, rows_by_spark

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class HiveBench(Cuts):
    """`lake` is partitioned Parquet, committed by the driver; `lines` plain ORC, by the coordinator."""

    def prepare(self) -> None:
        servers = self.folder / "servers"
        for name in ("hive", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        version = 3 if os.geteuid() == 0 and hive_metastore.can_have_a_network() else 4
        self._server = self.stack.enter_context(hive_metastore.serve(servers / "hive", version))
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self._server.address))
        database = self._server.make_database()
        self._places = {name: Place(self._server, database, {}, self._server.uri, name) for name in ("lake", "lines")}
        self._rows = {"lake": FileRows(), "lines": FileRows()}

    def sinks(self) -> list[dict[str, Any]]:
        def options(name: str, **more: Any) -> dict[str, Any]:
            table = f"{self._places[name].database}.{name}"
            place = {"metastore": f"thrift://{self.proxy.listen}", "table": table, "location": f"out/{name}"}
            return {**place, "createTable": True, **more}

        lake = options("lake", partitionBy=["label"], maxOpenFiles=100 if self.bulk else 3, successFile=True)
        lines = options("lines", format="orc", targetFileSize="1KiB")
        sinks: list[dict[str, Any]] = [
            {"name": "lake", "type": "hive", "guarantee": "ExactlyOnce", "options": lake},
            {"name": "lines", "type": "hive", "options": lines, "commit": {"runOn": "Operator"}},
        ]
        return sinks[:1] if self.bulk else sinks

    def read(self, sink: str) -> Rows:
        place = self._places[sink]
        with self._server.client() as client:
            known = sink in client.get_all_tables(place.database)
        return self._rows[sink].total(dict(self._visible(place)) if known else {})

    def _visible(self, place: Place) -> Iterator[tuple[str, tuple[str, Path]]]:
        """By name below the table: what tells a file's version, and where it is."""
        root = place.directory
        directories = [place.path_of(one.sd.location) for one in place.partitions()] if place.keys else [root]
        for directory in directories:
            for path in files_of(directory):
                found = path.stat()
                version = f"{found.st_ino}/{found.st_size}/{found.st_mtime_ns}"
                yield path.relative_to(root).as_posix(), (version, path)

    def differences(self, expected: Rows) -> Iterator[str]:
        if self._server.version != 3:
            return
        database = self._places["lake"].database
        names = [f"{database}.{sink}" for sink in self._places]
        found = rows_by_spark(self._server.uri, self.folder / "scratch", *names)
        # `at` is left to the other reader: to this JVM the wall clocks of ORC are those of its own zone.
        wanted = Counter(_plain(dict(zip(COLUMNS, row, strict=True))) for row in expected.elements())
        for sink, rows in zip(self._places, found, strict=True):
            seen = Counter(map(_plain, rows))
            if seen != wanted:
                more, fewer = (seen - wanted).total(), (wanted - seen).total()
                yield f"sink {sink}: Spark sees {more} rows too many, and lacks {fewer}"

    def export(self, sink: str, out: Path) -> None:
        """By Spark, or as the metastore's partitions lead to files where Spark does not know its version."""
        place = self._places[sink]
        if self._server.version == 3:
            export_by_spark(self._server.uri, self.folder / "scratch", f"{place.database}.{sink}", out)
            return
        with duckdb.connect() as connection:
            for number, partition in enumerate(place.partitions()):
                files = [str(path) for path in files_of(place.path_of(partition.sd.location))]
                (value,) = partition.values
                rows = "SELECT *, ? AS label FROM read_parquet(?, hive_partitioning = false)"
                told = [None if value == NULL_PARTITION else value, files]
                connection.execute(f"COPY ({rows}) TO '{out / f'{number}.parquet'}' (FORMAT parquet)", told)

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink in self._rows:
            private = self.folder / "out" / sink / PRIVATE
            for path in private.rglob("*"):
                if path.is_file() and ("staging" in path.parts or path.suffix == ".tmp"):
                    yield str(path)


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in COLUMNS if column != "at")


BENCH = HiveBench
