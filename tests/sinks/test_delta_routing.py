"""The Delta sink keeps the contract when it routes rows to many tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from sinkruntime.sinks.delta import target
from sinkruntime.sinks.delta.options import Options
from tests.sinks import harness
from tests.sinks.harness import Row, commit, stage
from tests.sinks.routed_delta import RoutedPlace
from tests.sinks.routing_faults import RoutingFaults
from tests.sinks.routing_harness import CHANGES, RoutedContract
from tests.sinks.routing_rows import RoutingRows
from tests.sinks.test_delta import DeltaContract


@pytest.fixture
def place(tmp_path: Path) -> RoutedPlace:
    return RoutedPlace(tmp_path / "tables")


class TestRouted(RoutedContract):
    golden_bytes = b'{"tables":{"rows_1":' + DeltaContract.golden_bytes + b"}}"
    golden_value: ClassVar = {"tables": {"rows_1": DeltaContract.golden_value}}


class TestFaults(RoutingFaults, RoutingRows):
    prefix = "rows_"
    option = "options.path"

    def make_anew(self, place: Any, name: str) -> None:
        place.drop(name)
        DeltaTable.create(str(place.folder / name), harness.SCHEMA)

    def roll_back(self, place: Any, name: str) -> None:
        table = DeltaTable(str(place.folder / name))
        table.restore(table.version() - 1)

    def forget_views(self) -> None:
        target._shapes.clear()

    def lose_one(self, place: Any) -> None:
        (place.folder / next(path for path in place.staged() if path.startswith("rows_3"))).unlink()

    def make_misfit(self, place: Any, name: str) -> None:
        columns = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.int64())])
        DeltaTable.create(str(place.folder / name), columns)

    def by_name(self, place: Any, **more: Any) -> Any:
        return RoutedPlace(place.folder, "rows_${name}").sink(**more)

    def keyed(self, place: Any) -> Any:
        routed = RoutedPlace(place.folder, "rows_${at}")
        return routed.sink(schema=CHANGES, write="upsert", key=["id"], maxOpenFiles=1)

    def columns(self, place: Any, name: str) -> list[str]:
        return [field.name for field in DeltaTable(str(place.folder / name)).schema().fields]

    def changed_rows(self, place: Any, name: str) -> list[Row]:
        rows: list[Row] = place.rows_of(name)
        return rows

    def test_a_copy_of_a_table_is_not_written_to_beside_it(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a")]))
        shutil.copytree(place.folder / "rows_1", place.folder / "rows_2")
        made = commit(sink, stage(sink, 2, [(1, "b"), (2, "c")]), 1)
        assert made.reasons() == {"TableTwice"}
        assert place.rows_of("rows_1") == [(1, "a")]

    def test_folders_may_come_from_the_rows_too(self, place: Any) -> None:
        routed = RoutedPlace(place.folder, "${name}/of/${id}")
        sink = routed.sink()
        assert commit(sink, stage(sink, 1, [(1, "us"), (1, "de")])).answers() <= {"committed"}
        assert routed.names() == ["de/of/1", "us/of/1"]
        harness.clean(sink, 1)
        assert routed.receipts() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "lake/${}"}, "expected `\\$\\{field\\}`"),
        ({"path": "lake/${a"}, "expected `\\$\\{field\\}`"),
        ({"path": "s3://${a}/lake"}, "must not be in the bucket's name"),
        ({"path": "lake/${a}/../b"}, "nor stand beside"),
        ({"path": "lake/${a}", "write": "complete"}, "cannot be routed"),
        ({"path": "lake/${a}", "omit": ["b"]}, "`omit` belongs to `write: upsert`"),
        ({"path": "lake/a", "omit": ["a"]}, "`omit` belongs to `write: upsert`"),
    ],
)
def test_options_that_cannot_route_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Options.model_validate(given)


def test_a_table_that_is_missing_is_refused_where_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="createTable") as caught:
        target.prepare(Options.model_validate({"path": str(tmp_path / "t"), "createTable": False}), harness.SCHEMA)
    assert getattr(caught.value, "reason", "") == "TableMissing"
