"""Which rows a sink that routes takes, whatever its tables' format: tests that each format's own class inherits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Lineage
from sinkruntime.errors import TargetError
from sinkruntime.tables import routed_writer
from tests.sinks import harness
from tests.sinks.harness import Row, commit, stage
from tests.sinks.routing_harness import ROWS, RoutingHooks, rejecting, stage_changes


class RoutingRows(RoutingHooks):
    """Inherit it."""

    def test_rows_of_a_table_with_other_columns_are_refused_and_the_others_pass(self, sink: Any, place: Any) -> None:
        self.make_misfit(place, f"{self.prefix}2")
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(sink, refused)()
        for rows in ROWS:
            writer.write(harness.batch_of(rows))
        committable = harness.finish(sink, writer, 1)
        assert committable is not None
        assert sorted(committable["tables"]) == [f"{self.prefix}1", f"{self.prefix}3"]
        assert {(reason, count) for reason, _, count in refused} == {("SchemaMismatch", 1)}
        assert "column `name`" in refused[0][1]
        strict = harness.open_writer(sink)
        with pytest.raises(TargetError, match="column `name`"):
            strict.write(harness.batch_of(ROWS[0]))
        strict.abort_prepare()
        strict.close()

    def test_unknown_tables_are_refused_where_none_are_made(self, sink: Any, place: Any) -> None:
        commit(sink, stage(sink, 1, [(1, "known")]))
        strict = place.sink(createTable=False)
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(strict, refused)()
        writer.write(harness.batch_of([(1, "a"), (9, "b"), (9, "c")]))
        committable = harness.finish(strict, writer, 1)
        assert committable is not None
        assert sorted(committable["tables"]) == [f"{self.prefix}1"]
        assert [(reason, count) for reason, _, count in refused] == [("TableMissing", 2)]
        with pytest.raises(TargetError, match="9"):
            stage(strict, 2, [(9, "b")])

    def test_too_many_tables_are_refused_by_name(self, place: Any) -> None:
        writer = harness.open_writer(place.sink(maxTables=2))
        with pytest.raises(TargetError, match="more than 2 tables") as caught:
            writer.write(harness.batch_of([(1, "a"), (2, "b"), (3, "c")]))
        assert (caught.value.reason, caught.value.path) == ("TooManyTables", "options.maxTables")
        writer.abort_prepare()
        writer.close()
        assert place.staged() == set()

    def test_open_files_are_bounded_over_all_tables(self, place: Any) -> None:
        sink = place.sink(maxOpenFiles=2)
        writer = harness.open_writer(sink)
        for number in range(6):
            writer.write(harness.batch_of([(number % 4, f"row {number}")]))
            assert sum(table.open_files() for table in writer._tables.values()) <= 2  # type: ignore[attr-defined]
        writer.abort_prepare()
        writer.close()
        assert place.staged() == set()
        rows: list[Row] = [(number % 4, f"row {number}") for number in range(20)]
        assert commit(sink, stage(sink, 1, rows)).answers() == {Answer.COMMITTED}
        assert place.rows() == Counter(rows)

    def test_buffers_are_bounded_over_all_tables(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(routed_writer, "BUFFERED_BYTES_MAX", 1_000)
        sink = place.sink()
        writer = harness.open_writer(sink)
        rows: list[Row] = [(number % 3, "x" * 200) for number in range(60)]
        for start in range(0, 60, 5):
            writer.write(harness.batch_of(rows[start : start + 5]))
            held = sum(table.buffered_bytes() for table in writer._tables.values())  # type: ignore[attr-defined]
            assert held <= 1_000
        lineage = Lineage(1, 1, 0, 1, 0)
        staged = harness.Staged(1, 1, ((lineage, harness.finish(sink, writer, 1)),))
        assert commit(sink, staged).answers() == {Answer.COMMITTED}
        assert place.rows() == Counter(rows)

    def test_rows_that_name_no_table_are_refused_and_the_others_pass(self, place: Any) -> None:
        sink = self.by_name(place)
        values = ["us", None, "", "a'b", 'a"b', "a/b", "..", "a.b", "é", "x" * 201, "us", "US"]
        refused: list[tuple[str, str, int]] = []
        writer = rejecting(sink, refused)()
        writer.write(harness.batch_of([(number, value) for number, value in enumerate(values)]))
        committable = harness.finish(sink, writer, 1)
        assert committable is not None
        assert len(committable["tables"]) == 1
        assert {reason for reason, _, _ in refused} == {"BadTableName"}
        assert sum(count for _, _, count in refused) == len(values) - 2
        with pytest.raises(TargetError, match="letters A to Z"):
            stage(sink, 1, [(1, "../etc")])

    def test_a_column_that_only_routes_may_be_left_out(self, place: Any) -> None:
        sink = self.by_name(place, omit=["name"])
        assert commit(sink, stage(sink, 1, [(1, "us"), (2, "de")])).answers() == {Answer.COMMITTED}
        assert self.columns(place, place.names()[0]) == ["id"]

    def test_a_column_that_is_not_there_cannot_route(self, place: Any) -> None:
        sink = self.by_name(place)
        with pytest.raises(TargetError, match="there is no column `name`") as caught:
            sink.prepare_target(pa.schema([pa.field("id", pa.int64())]))
        assert caught.value.path == self.option
        with pytest.raises(TargetError, match="names no table"):
            sink.prepare_target(pa.schema([pa.field("name", pa.float64())]))

    def test_partitions_that_no_new_table_can_have_are_refused_at_the_start(self, place: Any) -> None:
        with pytest.raises(TargetError, match="there is no column `nowhere`") as caught:
            place.sink(partitionBy=["nowhere"])
        assert caught.value.path == "options.partitionBy"

    def test_changes_are_applied_in_each_table(self, place: Any) -> None:
        sink = self.keyed(place)
        commit(sink, stage_changes(sink, 1, [(1, "a", "us"), (2, "b", "us")], [(3, "c", "de")]))
        commit(sink, stage_changes(sink, 2, [(1, "new", "us"), (1, "other", "de")]), 1)
        found = {name: sorted(self.changed_rows(place, name)) for name in place.names()}
        assert list(found.values()) == [[(1, "other"), (3, "c")], [(1, "new"), (2, "b")]]
