"""`--sink file`: partitioned Parquet and flat JSON in local directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from tests.killmatrix.bench import Bench
from tests.killmatrix.files import FileRows
from tests.killmatrix.rows import COLUMNS, DDL, Rows

PRIVATE = "_sinkjob"
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
JSON_COLUMNS = {column.split()[0]: column.split()[1].replace("STRING", "VARCHAR") for column in DDL.split(", ")}


class FileBench(Bench):
    """Two directories: `lake` is committed by the driver (the default), `lines` by the coordinator under the token."""

    def prepare(self) -> None:
        self._rows = {"lake": FileRows(), "lines": FileRows()}

    def sinks(self) -> list[dict[str, Any]]:
        lake = {"path": "out/lake", "format": "parquet", "partitionBy": ["label"], "maxOpenFiles": 3}
        lines = {"path": "out/lines", "format": "json", "targetFileSize": "32MiB" if self.bulk else "1KiB"}
        return [
            {"name": "lake", "type": "file", "guarantee": "ExactlyOnce", "options": lake},
            {
                "name": "lines",
                "type": "file",
                "guarantee": "ExactlyOnce",
                "options": lines,
                "select": list(reversed(COLUMNS)),
                "commit": {"runOn": "Operator"},
            },
        ]

    def read(self, sink: str) -> Rows:
        return self._rows[sink].total({name: (_version(path), path) for name, path in self._visible(sink)})

    def _visible(self, sink: str) -> Iterator[tuple[str, Path]]:
        """As readers see it: names that begin with `_` or `.` are not there."""
        root = self.folder / "out" / sink
        for where, directories, names in os.walk(root):
            directories[:] = [name for name in directories if name[0] not in "_."]
            for name in names:
                if name[0] not in "_.":
                    path = Path(where, name)
                    yield path.relative_to(root).as_posix(), path

    def export(self, sink: str, out: Path) -> None:
        paths = [str(path) for _, path in self._visible(sink)]
        if sink == "lake":
            read = "read_parquet(?, hive_partitioning = true, hive_types = {'label': VARCHAR})"
        else:
            read = f"read_json(?, format = 'newline_delimited', columns = {JSON_COLUMNS})"
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"COPY (SELECT {NAMES} FROM {read}) TO '{out}/all.parquet'", [paths])

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink in self._rows:
            private = self.folder / "out" / sink / PRIVATE
            for path in private.rglob("*"):
                staged = "staging" in path.relative_to(private).parts
                if path.is_file() and (staged or path.name.startswith(".") or path.suffix in (".tmp", ".part")):
                    yield str(path)


def _version(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino}/{found.st_size}/{found.st_mtime_ns}"


BENCH = FileBench
