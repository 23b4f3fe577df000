"""The Delta sink keeps the contract when it routes rows to many tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sinkruntime.api import Sink
from tests.sinks.contract import SinkContract
from tests.sinks.harness import LEDGER, Row
from tests.sinks.routed_delta import RoutedPlace
from tests.sinks.test_delta import DeltaContract


@pytest.fixture
def place(tmp_path: Path) -> RoutedPlace:
    return RoutedPlace(tmp_path / "tables")


class TestRouted(SinkContract):
    golden_version = 1
    golden_bytes = b'{"tables":{"rows_1":' + DeltaContract.golden_bytes + b"}}"
    golden_value: ClassVar = {"tables": {"rows_1": DeltaContract.golden_value}}

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        staged: set[str] = place.staged()
        return staged

    def lose_staged(self, place: Any) -> None:
        place.lose_staged()

    def recreate(self, place: Any) -> None:
        place.drop_all()
