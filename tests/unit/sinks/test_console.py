"""The console sink prints what was decided, and never fails a batch."""

from __future__ import annotations

import io
import sys
from typing import Any

import pyarrow as pa
import pytest

from sinkruntime.api import Answer, Guarantee, Lineage
from sinkruntime.sinks.console import ConsoleSink, Options
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS
from tests.sinks.harness import commit, stage


def make(**options: Any) -> ConsoleSink:
    return ConsoleSink(Options.model_validate(options), harness.identity(sink="screen"))


def test_it_prints_a_table_per_checkpoint_when_it_is_committed(capsys: pytest.CaptureFixture[str]) -> None:
    staged = stage(make(), 3, [(1, "one"), (2, None)], [], [(3, "three")])
    assert capsys.readouterr().out == ""
    commit(make(), staged)
    assert capsys.readouterr().out.splitlines() == [
        "screen: checkpoint 3, 3 rows (task 0: 2, task 2: 1)",
        "+--+-----+",
        "|id| name|",
        "+--+-----+",
        "| 1|  one|",
        "| 2| NULL|",
        "| 3|three|",
        "+--+-----+",
    ]


def test_it_prints_no_more_rows_than_asked_for_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    sink = make(rows=2)
    commit(sink, stage(sink, 1, ROWS, MORE))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "screen: checkpoint 1, 7 rows (task 0: 5, task 1: 2)"
    assert len(lines) == 1 + 3 + 2 + 1 + 1
    assert lines[-1] == "only the first 2 rows"


def test_long_cells_are_cut_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    long: list[harness.Row] = [(1, "x" * 30)]
    commit(make(), stage(make(), 1, long))
    assert f"|{'x' * 17}...|" in capsys.readouterr().out
    whole = make(truncate=False)
    commit(whole, stage(whole, 1, long))
    assert "x" * 30 in capsys.readouterr().out


def test_an_empty_checkpoint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    commit(make(), stage(make(), 1, [], []))
    assert capsys.readouterr().out == "screen: checkpoint 1, 0 rows\n"


def test_what_it_sends_to_the_driver_is_bounded() -> None:
    sink = make(truncate=False)
    ((_, committable),) = stage(sink, 1, [(number, "y" * 100_000) for number in range(40)]).items
    assert committable is not None
    assert committable["count"] == 40
    assert len(sink.committable_serializer.serialize(committable)) < 25_000


@pytest.mark.parametrize("broken", ["closed", "full"])
def test_a_broken_output_never_fails_the_batch(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = stage(make(), 1, ROWS)
    output: Any = open("/dev/full", "w") if broken == "full" else io.StringIO()  # noqa: SIM115
    if broken == "closed":
        output.close()
    monkeypatch.setattr(sys, "stdout", output)
    answers = commit(make(), staged).answers()
    monkeypatch.undo()
    if broken == "full":
        with pytest.raises(OSError, match="No space"):
            output.close()
    assert answers == {Answer.COMMITTED}


def test_it_promises_at_least_once_and_keeps_no_evidence() -> None:
    assert ConsoleSink.guarantee(Options(), {}).guarantee is Guarantee.AT_LEAST_ONCE
    assert make().evidence() is None
    made = commit(make(), stage(make(), 1, ROWS))
    assert not made.aggregated[0].evidence
    assert harness.ask(make(), "probe", stage(make(), 1, ROWS)).answers() == {Answer.ABSENT}
    assert harness.ask(make(), "fence", stage(make(), 1, ROWS)).answers() == {Answer.FENCED}


def test_all_kinds_of_values_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sink = make()
    fields: dict[str, pa.DataType] = {"list": pa.list_(pa.int64()), "flag": pa.bool_()}
    schema = pa.schema(fields)
    lineage = Lineage(1, 1, 0, 1, 0)
    writer = sink.create_writer(harness.writer_context(sink, lineage, schema))
    writer.write(pa.RecordBatch.from_pylist([{"list": [1, None], "flag": True}], schema=schema))
    commit(sink, harness.Staged(1, 1, ((lineage, writer.prepare_commit(1)),)))
    assert "|[1, None]|True|" in capsys.readouterr().out
