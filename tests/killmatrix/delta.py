"""`--sink delta`: a partitioned table on disk, and one on S3 (versitygw) behind a proxy that cuts connections.

After each kill the log is read by the standard library and files by DuckDB, at the end all by Spark with Delta Lake.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.killmatrix.cuts import Cuts
from tests.killmatrix.files import FileRows
from tests.killmatrix.rows import COLUMNS, Rows
from tests.servers import delta_spark, s3, toxiproxy

BUCKET = "kill-matrix"
EXPORT_SECONDS_MAX = 1800
SQL = f"SELECT {', '.join(COLUMNS)} FROM ".replace(" at,", " unix_micros(at) AS at,")


class DeltaBench(Cuts):
    """`lake` is committed by the driver (a local table's default), `lines` on S3 by the coordinator under the token."""

    def prepare(self) -> None:
        delta_spark.locate()
        servers = self.folder / "servers"
        for name in ("s3", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        self._server = self.stack.enter_context(s3.serve(servers / "s3"))
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self._server.address))
        self._server.make_bucket(BUCKET)
        keys = f"storage.accessKey={self._server.access_key}\nstorage.secretKey={self._server.secret_key}\n"
        (self.folder / "s3.env").write_text(keys)
        self._tables = {"lake": self.folder / "out" / "lake", "lines": self._server.data_dir / BUCKET / "lines"}
        self._rows = {name: FileRows() for name in self._tables}

    def sinks(self) -> list[dict[str, Any]]:
        storage = {"endpoint": f"http://{self.proxy.listen}", "region": self._server.region, "pathStyle": True}
        lake = {"path": "out/lake", "partitionBy": ["label"], "maxOpenFiles": 8 if self.bulk else 3}
        size = "32MiB" if self.bulk else "1KiB"
        lines = {"path": f"s3://{BUCKET}/lines", "targetFileSize": size, "storage": storage}
        return [
            {"name": "lake", "type": "delta", "guarantee": "ExactlyOnce", "options": lake},
            {
                "name": "lines", "type": "delta", "guarantee": "ExactlyOnce", "options": lines,
                "optionsFrom": [{"fileRef": {"path": "s3.env"}}], "select": list(reversed(COLUMNS)),
            },
        ]  # fmt: skip

    def read(self, sink: str) -> Rows:
        root = self._tables[sink]
        present = {}
        for path, add in _live(root).items():
            # The reader takes partition values from the name, as directories have them.
            values = "".join(f"{name}={_named(value)}/" for name, value in add["partitionValues"].items())
            present[f"{values}{Path(path).name}"] = (str(add["size"]), root / path)
        return self._rows[sink].total(present)

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for sink, root in self._tables.items():
            named = {unquote(action["add"]["path"]) for _, action in _actions(root) if "add" in action}
            for path in root.rglob("*.parquet"):
                name = path.relative_to(root).as_posix()
                if name not in named and not name.startswith("_delta_log/"):
                    yield f"{sink}: {name}"
            yield from _evidence(root, ledger_id, sink)

    def differences(self, expected: Rows) -> Iterator[str]:
        answers = delta_spark.ask(*(f"{SQL}delta.`{root}`" for root in self._tables.values()))
        for sink, seen in zip(self._tables, answers, strict=True):
            if Counter(tuple(row.get(column) for column in COLUMNS) for row in seen) != expected:
                yield f"Spark sees other rows in {sink}"

    def export(self, sink: str, out: Path) -> None:
        rows = f"SELECT {', '.join(COLUMNS)} FROM delta.`{self._tables[sink]}`"
        question = f"INSERT OVERWRITE DIRECTORY '{out}' USING parquet {rows}"
        delta_spark.ask(question, timeout_seconds=EXPORT_SECONDS_MAX)


def _actions(root: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """All actions of a table's log with their versions; tables of a matrix keep every version."""
    for path in sorted((root / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            yield int(path.stem), json.loads(line)


def _live(root: Path) -> dict[str, dict[str, Any]]:
    """The add actions that stand, by path."""
    files: dict[str, dict[str, Any]] = {}
    for _, action in _actions(root):
        if "add" in action:
            files[unquote(action["add"]["path"])] = action["add"]
        if "remove" in action:
            files.pop(unquote(action["remove"]["path"]), None)
    return files


def _named(value: str | None) -> str:
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return value.replace("%", "%25").replace("/", "%2F").replace("=", "%3D")


def _evidence(root: Path, ledger_id: str, sink: str) -> Iterator[str]:
    """Each checkpoint has one version, and they grow."""
    app = f"sinkjob/{ledger_id}/{sink}"
    found = [action["txn"]["version"] for _, action in _actions(root) if action.get("txn", {}).get("appId") == app]
    if not found:
        yield f"no version of {sink} has evidence"
    if found != sorted(set(found)):
        yield f"{sink}: the evidence of its versions is {found}"


BENCH = DeltaBench
