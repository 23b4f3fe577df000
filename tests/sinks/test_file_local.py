"""The file sink keeps the contract in a local directory, in every format that holds two columns."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import fastavro
import pyarrow.orc
import pytest

from sinkruntime.api import Sink
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "target"


def visible_files(place: Path) -> list[Path]:
    """What a reader lists: names that begin with `_` or `.` are hidden."""
    found = [path for path in place.rglob("*") if path.is_file()]
    return sorted(path for path in found if not any(p[0] in "_." for p in path.relative_to(place).parts))


def query(sql: str) -> list[Any]:
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


class LocalContract(SinkContract):
    options: ClassVar[dict[str, Any]]
    golden_version = 1
    golden_bytes = b'{"files":[{"crc32":1,"path":"a/part-0d-000000000001-1-0.parquet","rows":5,"size":9}]}'
    golden_value: ClassVar = {
        "files": [{"path": "a/part-0d-000000000001-1-0.parquet", "size": 9, "crc32": 1, "rows": 5}]
    }

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        options = Options.model_validate({"path": str(place), **self.options})
        return FileSink(options, harness.identity(ledger_id, sink))

    def read_visible(self, place: Any) -> Counter[Row]:
        return Counter(row for path in visible_files(place) for row in self.read_file(path))

    def read_file(self, path: Path) -> Iterable[Row]:
        raise NotImplementedError

    def list_staged(self, place: Any) -> set[str]:
        staging = place / "_sinkjob" / "staging"
        return {str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()}

    def lose_staged(self, place: Any) -> None:
        shutil.rmtree(place / "_sinkjob" / "staging")

    def recreate(self, place: Any) -> None:
        shutil.rmtree(place)
        place.mkdir()


class TestParquet(LocalContract):
    options: ClassVar = {"format": "parquet"}

    def read_file(self, path: Path) -> Iterable[Row]:
        return query(f"select id, name from '{path}'")


class TestParquetWithSparkLog(TestParquet):
    options: ClassVar = {"format": "parquet", "log": "spark"}


class TestCsv(LocalContract):
    options: ClassVar = {"format": "csv", "compression": "gzip", "header": True}

    def read_file(self, path: Path) -> Iterable[Row]:
        columns = "columns={'id': 'BIGINT', 'name': 'VARCHAR'}"
        return query(f"select * from read_csv('{path}', header=true, allow_quoted_nulls=false, {columns})")


class TestJson(LocalContract):
    options: ClassVar = {"format": "json"}

    def read_file(self, path: Path) -> Iterator[Row]:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield row["id"], row["name"]


class TestOrc(LocalContract):
    options: ClassVar = {"format": "orc"}

    def read_file(self, path: Path) -> Iterator[Row]:
        for row in pyarrow.orc.read_table(path).to_pylist():
            yield row["id"], row["name"]


class TestAvro(LocalContract):
    options: ClassVar = {"format": "avro", "directoryPerCheckpoint": True}

    def read_file(self, path: Path) -> Iterator[Row]:
        with open(path, "rb") as stream:
            for row in fastavro.reader(stream):
                assert isinstance(row, dict)
                yield row["id"], row["name"]


class TestPartitioned(LocalContract):
    options: ClassVar = {"format": "csv", "partitionBy": ["id"], "maxOpenFiles": 2}

    def read_file(self, path: Path) -> Iterator[Row]:
        number = int(path.parent.name.removeprefix("id="))
        # Python's csv does not tell an empty string from null; only the latter is not quoted.
        for line in path.read_text().splitlines():
            yield number, next(csv.reader([line]))[0] if line else None
