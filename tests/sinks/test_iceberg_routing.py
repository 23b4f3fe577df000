"""The Iceberg sink keeps the contract when it routes rows to many tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sinkruntime.api import Distribution
from sinkruntime.sinks.iceberg import IcebergSink, catalog
from sinkruntime.sinks.iceberg.options import Options
from tests.sinks import harness
from tests.sinks.harness import Row, commit, stage
from tests.sinks.iceberg_places import COLUMNS, Place
from tests.sinks.routed_iceberg import RoutedPlace
from tests.sinks.routing_faults import RoutingFaults
from tests.sinks.routing_harness import CHANGES, RoutedContract
from tests.sinks.routing_rows import RoutingRows
from tests.sinks.test_iceberg import IcebergContract
from tests.sinks.test_iceberg_changes import visible


@pytest.fixture
def place(tmp_path: Path) -> RoutedPlace:
    return RoutedPlace(tmp_path)


class TestRouted(RoutedContract):
    golden_bytes = b'{"tables":{"lake.rows_1":' + IcebergContract.golden_bytes + b"}}"
    golden_value: ClassVar = {"tables": {"lake.rows_1": IcebergContract.golden_value}}


class TestFaults(RoutingFaults, RoutingRows):
    prefix = "lake.rows_"
    option = "options.table"

    def make_anew(self, place: Any, name: str) -> None:
        place.drop(name)
        with place.catalog() as opened:
            opened.create_table(name, Schema(*COLUMNS))

    def roll_back(self, place: Any, name: str) -> None:
        table = place.load(name)
        parent = table.current_snapshot().parent_snapshot_id
        table.manage_snapshots().rollback_to_snapshot(parent).commit()

    def forget_views(self) -> None:
        catalog._tables.clear()

    def lose_one(self, place: Any) -> None:
        os.unlink(next(path for path in place.staged() if "/rows_3/" in path))

    def make_misfit(self, place: Any, name: str) -> None:
        wrong = NestedField(field_id=2, name="name", field_type=LongType(), required=False)
        with place.catalog() as opened:
            opened.create_table(name, Schema(COLUMNS[0], wrong))

    def by_name(self, place: Any, **more: Any) -> Any:
        return RoutedPlace(place.folder, "lake.rows_${name}").sink(**more)

    def keyed(self, place: Any) -> Any:
        routed = RoutedPlace(place.folder, "lake.rows_${at}")
        return routed.sink(schema=CHANGES, write="upsert", key=["id"], maxOpenFiles=1)

    def columns(self, place: Any, name: str) -> list[str]:
        names: list[str] = place.load(name).schema().column_names
        return names

    def changed_rows(self, place: Any, name: str) -> list[Row]:
        return [(row[0], row[1]) for row in visible(Place(place.properties, name))]

    def test_two_names_of_one_table_are_not_written_to_together(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "a")]))
        with place.catalog() as opened:
            opened.register_table("lake.rows_2", place.load("lake.rows_1").metadata_location)
        made = commit(sink, stage(sink, 2, [(1, "b"), (2, "c")]), 1)
        assert made.reasons() == {"TableTwice"}
        assert place.rows_of("lake.rows_1") == [(1, "a")]

    def test_namespaces_may_come_from_the_rows_too(self, place: Any) -> None:
        sink = RoutedPlace(place.folder, "lake.${name}.of_${id}").sink()
        assert commit(sink, stage(sink, 1, [(1, "us"), (1, "de")])).answers() <= {"committed"}
        assert place.rows_of("lake.de.of_1") == [(1, "de")]

    def test_a_table_gets_new_columns_when_its_first_row_comes(self, sink: Any, place: Any) -> None:
        with place.catalog() as opened:
            opened.create_table("lake.rows_1", Schema(COLUMNS[0]))
        evolving = place.sink(evolveSchema=True)
        assert commit(evolving, stage(evolving, 1, [(1, "a")])).answers() == {"committed"}
        assert place.rows_of("lake.rows_1") == [(1, "a")]

    def test_the_book_keeps_few_snapshots(self, sink: Any, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from sinkruntime.sinks.iceberg import routed
        from sinkruntime.spec.quantities import Duration

        told = {"expire_every": 5, "keep_snapshots": 2, "expire_age": Duration.parse("1ms")}
        monkeypatch.setattr(routed, "BOOK_UPKEEP", routed.BOOK_UPKEEP.model_copy(update=told))
        for checkpoint in range(1, 11):
            staged = stage(sink, checkpoint, [(1, "a")])
            assert commit(sink, staged, checkpoint - 1).answers() == {"committed"}
            sink.post_commit(checkpoint, staged.present())
        book = place.load(routed.book_options(place.options(), harness.identity()).table)
        assert len(book.metadata.snapshots) == 2
        assert sink.evidence().checkpoint == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "lake.${}"}, "cannot read"),
        ({"table": "lake.${a"}, "cannot read"),
        ({"table": "${a}.b"}, "expected a namespace first"),
        ({"table": "t_${a}"}, "expected a namespace first"),
        ({"table": "lake.${a} b"}, "not a name with a namespace"),
        ({"table": "lake.${a}", "catalog": {"type": "glue", "uri": "x"}}, "not with `glue`"),
        ({"table": "lake.${a}", "omit": ["b"]}, "`omit` belongs to"),
    ],
)
def test_options_that_cannot_route_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Options.model_validate({"catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}, **given})


def test_rows_of_one_table_meet_in_one_task_where_they_are_hashed(place: RoutedPlace) -> None:
    options = place.options(distributionMode="hash", partitionBy=["bucket(4, name)"])
    sink = IcebergSink(options, harness.identity())
    assert sink.distribution() == Distribution(expressions=("`id`", "`name`"))
