"""Statistics of Iceberg files where Parquet says less than pyiceberg believes: no reader may skip a row by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.table import DataScan

from sinkruntime.sinks.iceberg import parquet
from tests.sinks.harness import commit
from tests.sinks.iceberg_places import Place, sql_place
from tests.sinks.test_iceberg_partitions import put

#: Parquet has no bounds of a row group with such a value.
LONG = 5_000


def written(folder: Path, column: pa.Array[Any]) -> Place:
    """A table with these values in a column `value`, in one file."""
    place = sql_place(folder, more={"createTable": True})
    schema = pa.schema([pa.field("value", column.type)])
    sink = place.sink()
    sink.prepare_target(schema)
    commit(sink, put(sink, 1, pa.table([column], schema=schema).to_pylist(), schema))
    return place


def scan(place: Place, value: Any) -> DataScan:
    """A reader's look for a value, which skips files by their bounds."""
    return place.load().scan(row_filter=EqualTo(Reference("value"), value))  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("long", ["z" * LONG, "a" * LONG])
def test_a_value_too_long_for_parquets_bounds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, long: str
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 1)
    column = pa.array(["m", long, "n", None]).cast(kind)
    place = written(tmp_path, column)
    found = scan(place, column[1].as_py()).to_arrow()
    assert found.column("value").to_pylist() == [column[1].as_py()]


def test_bounds_are_kept_where_groups_have_only_nulls_or_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 1)
    place = written(tmp_path, pa.array([1.5, None, float("nan")]))
    (task,) = place.load().scan().plan_files()
    assert list(task.file.lower_bounds or {}) == [1]
    assert not list(scan(place, 7.0).plan_files())


def test_values_that_bounds_cannot_tell_of_are_written(tmp_path: Path) -> None:
    place = written(tmp_path, pa.array(["\ud7ff" * 20, "a"]))
    assert len(scan(place, "\ud7ff" * 20).to_arrow()) == 1
