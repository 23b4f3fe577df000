"""The example of one's own sink keeps the contract that ours keep."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples.own_sink.sqlite_sink import Options, SqliteSink
from sinkruntime.api import Sink
from tests.sinks import harness
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "target"


class TestSqliteSink(SinkContract):
    golden_version = 1
    golden_bytes = b'"words.db.staging/l.lake/000000000001-1-00000-0-ab.arrow"'
    golden_value: ClassVar = "words.db.staging/l.lake/000000000001-1-00000-0-ab.arrow"

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        options = Options(database=place / "words.db", table="words")
        return SqliteSink(options, harness.identity(ledger_id, sink))

    def read_visible(self, place: Any) -> Counter[Row]:
        if not (place / "words.db").exists():
            return Counter()
        with closing(sqlite3.connect(place / "words.db")) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'words'").fetchall()
            return Counter(database.execute("SELECT id, name FROM words").fetchall() if tables else ())

    def list_staged(self, place: Any) -> set[str]:
        staging = place / "words.db.staging"
        return {str(path.relative_to(staging)) for path in staging.rglob("*.arrow")}

    def lose_staged(self, place: Any) -> None:
        shutil.rmtree(place / "words.db.staging")

    def recreate(self, place: Any) -> None:
        shutil.rmtree(place)
