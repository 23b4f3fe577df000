"""`${field}` in a table's name: whatever the rows hold, a name is a plain one, and no row is lost or moved."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.errors import TargetError
from sinkruntime.tables.template import NAME_CHARACTERS_MAX, Template

PLAIN = re.compile(r"lake/t_[A-Za-z0-9_-]+/x")


@given(st.one_of(st.none(), st.text(), st.from_regex(r"[A-Za-z0-9_.\-/]{0,12}", fullmatch=True)))
def test_any_value_makes_a_plain_name_of_its_own_or_none(value: str | None) -> None:
    template = Template.parse("lake/t_${a}/x")
    try:
        made = template.name((value,))
    except ValueError:
        return  # its rows are refused, with the sentence
    assert PLAIN.fullmatch(made)
    assert len(made) <= NAME_CHARACTERS_MAX
    assert made == f"lake/t_{value}/x"


@given(st.lists(st.tuples(st.sampled_from(["us", "de", "", "a/b", None, "é"]), st.integers(0, 3))))
def test_split_loses_no_row_and_keeps_the_order_within_a_table(rows: list[tuple[str | None, int]]) -> None:
    template = Template.parse("t_${country}_${day}")
    given_rows = [{"country": country, "day": day, "n": n} for n, (country, day) in enumerate(rows)]
    fields: dict[str, pa.DataType] = {"country": pa.string(), "day": pa.int64(), "n": pa.int64()}
    parts = list(template.split(pa.RecordBatch.from_pylist(given_rows, schema=pa.schema(fields))))
    seen: list[int] = []
    for name, problem, part in parts:
        assert bool(name) != bool(problem)
        numbers: list[Any] = part.column("n").to_pylist()
        assert numbers == sorted(numbers)
        for row in part.to_pylist():
            good = row["country"] in ("us", "de")
            assert name == (f"t_{row['country']}_{row['day']}" if good else "")
        seen += numbers
    assert sorted(seen) == list(range(len(rows)))
    names = [name for name, _, _ in parts if name]
    assert len(names) == len(set(names))


def test_rows_whose_values_cannot_be_read_are_told_apart_from_the_others() -> None:
    """Spark's strings may be no UTF-8, and its dates go beyond Python's."""
    texts = pa.array([b"a", b"\xff", b"b", b"b", b"c"]).view(pa.string())
    days = pa.array([0, 0, 5_000_000, 0, 0], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([texts, days, pa.array(range(5))], names=["a", "day", "n"])
    parts = Template.parse("t_${a}_${day}").split(batch)
    found = [(name, problem, rows.column("n").to_pylist()) for name, problem, rows in parts]
    assert [(name, rows) for name, _, rows in found if name] == [
        ("t_a_1970-01-01", [0]), ("t_b_1970-01-01", [3]), ("t_c_1970-01-01", [4])
    ]  # fmt: skip
    assert [rows for name, _, rows in found if not name] == [[1], [2]]
    problems = [problem for _, problem, _ in found if problem]
    assert ["can't decode byte 0xff" in problems[0], "out of range" in problems[1]] == [True, True]


@pytest.mark.parametrize("text", ["t", "t_${}", "t_${a", "${a}_${", "${a${b}}"])
def test_half_written_fields_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Template.parse(text)


def test_values_that_are_no_strings_are_written_as_partitions_are() -> None:
    template = Template.parse("t_${d}_${b}_${n}")
    assert template.name((datetime.date(2024, 2, 29), True, -3)) == "t_2024-02-29_true_-3"
    assert template.fields == ("d", "b", "n")
    assert Template.parse("${a}/${a}").fields == ("a",)


@pytest.mark.parametrize("value", ["_sinkjob", "_delta_log", "sinkjob_routes_0d"])
def test_names_that_the_sink_itself_uses_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="itself uses"):
        Template.parse("${a}/x").name((value,))


def test_a_name_that_is_too_long_is_refused() -> None:
    template = Template.parse("t_${a}")
    assert len(template.name(("x" * (NAME_CHARACTERS_MAX - 2),))) == NAME_CHARACTERS_MAX
    with pytest.raises(ValueError, match="201 characters"):
        template.name(("x" * (NAME_CHARACTERS_MAX - 1),))


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("us"), pa.list_(pa.string()), pa.decimal128(5, 2)])
def test_columns_whose_values_make_no_names_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(TargetError, match="names no table") as caught:
        Template.parse("t_${a}").check(pa.schema({"a": kind}), "options.path")
    assert (caught.value.reason, caught.value.path) == ("UnsupportedType", "options.path")
    with pytest.raises(TargetError, match="no column `a`; the rows have b"):
        Template.parse("t_${a}").check(pa.schema({"b": kind}), "options.path")
