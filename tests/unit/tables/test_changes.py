"""Of several changes of a key the last one counts, and conditions say which of them delete."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.errors import TargetError
from sinkruntime.tables.changes import Changes, Condition

_FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "at": pa.int64(), "op": pa.string(), "gone": pa.bool_()}
SCHEMA = pa.schema(_FIELDS)
ROWS = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 3), st.sampled_from(["I", "U", "D", None])))


def table(rows: Any) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "at": at, "op": op, "gone": op == "D"} for i, at, op in rows], schema=SCHEMA)


@given(ROWS, st.booleans())
def test_the_last_change_of_each_key_counts(rows: Any, ordered: bool) -> None:
    changes = Changes(("id",), ("at",) if ordered else ())
    expected: dict[int, tuple[int, Any]] = {}
    for number, (key, at, op) in enumerate(rows):
        rank = -1 if at is None else at
        if key not in expected or not ordered or rank >= expected[key][0]:
            expected[key] = (rank, (number, key, at, op))
    wanted = [found[1][1:] for found in sorted(expected.values(), key=lambda found: found[1][0])]
    kept = changes.last(table(rows)).to_pylist()
    assert [(row["id"], row["at"], row["op"]) for row in kept] == wanted


def test_keys_of_several_columns_are_told_apart() -> None:
    rows = [(1, 1, "a"), (1, 2, "a"), (1, 1, "b")]
    assert Changes(("id", "op"), ("at",)).last(table(rows)).column("at").to_pylist() == [2, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.floats(allow_nan=True)), max_size=8))
def test_nan_is_the_greatest_number_and_null_the_oldest_as_in_spark(rows: list[tuple[int, float | None]]) -> None:
    expected: dict[int, tuple[Any, int]] = {}
    for number, (key, at) in enumerate(rows):
        rank = (-1, 0.0) if at is None else (1, 0.0) if math.isnan(at) else (0, at)
        expected[key] = max(expected.get(key, ((-2, 0.0), -1)), (rank, number))
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "at": pa.float64(), "number": pa.int64()}
    given_rows = [{"id": key, "at": at, "number": number} for number, (key, at) in enumerate(rows)]
    kept = Changes(("id",), ("at",)).last(pa.Table.from_pylist(given_rows, schema=pa.schema(fields)))
    assert kept.column("number").to_pylist() == sorted(number for _, number in expected.values())


@pytest.mark.parametrize(
    ("text", "column", "values"),
    [
        ("op = 'D'", "op", ("D",)),
        ("op IN ('D', 'T''s')", "op", ("D", "T's")),
        ("`op` in('D')", "op", ("D",)),
        ("gone", "gone", (True,)),
        ("gone = false", "gone", (False,)),
        ("id=-7", "id", (-7,)),
    ],
)
def test_conditions_are_read(text: str, column: str, values: tuple[Any, ...]) -> None:
    assert Condition.parse(text) == Condition(column, values)


@pytest.mark.parametrize("text", ["", "op == 'D'", "op = D", "op = 'D' or 1 = 1", "op IN ()", "op IN ('D'", "1 = 1"])
def test_other_conditions_are_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match="expected `column = 'text'`"):
        Condition.parse(text)


def test_rows_delete_where_the_condition_holds_and_never_for_null() -> None:
    (batch,) = table([(1, 1, "D"), (2, 1, None), (3, 1, "U")]).to_batches()
    assert Changes(("id",), (), Condition("op", ("D", "X"))).deletes(batch).to_pylist() == [True, False, False]
    assert Changes(("id",), (), Condition("gone", (True,))).deletes(batch).to_pylist() == [True, False, False]
    assert Changes(("id",)).deletes(batch).to_pylist() == [False, False, False]


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        (Changes(("no",)), "options.key", "there is no column `no`; the rows have id, at, op, gone"),
        (Changes(("id",), ("no",)), "options.orderBy", "no column `no`"),
        (Changes(("id",), (), Condition("no", ("D",))), "options.deleteWhen", "no column `no`"),
        (Changes(("id",), (), Condition("id", ("D",))), "options.deleteWhen", "`id` is int64, and cannot be 'D'"),
        (Changes(("id",), (), Condition.parse("op")), "options.deleteWhen", "`op` is string, and cannot be True"),
    ],
)
def test_columns_that_are_not_there_are_refused_by_name(changes: Changes, where: str, message: str) -> None:
    Changes(("id",), ("at",), Condition("op", ("D",))).check(SCHEMA)
    with pytest.raises(TargetError, match=message) as caught:
        changes.check(SCHEMA)
    assert caught.value.path == where


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64())])
def test_keys_that_do_not_compare_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(TargetError, match="which does not compare"):
        Changes(("id",)).check(pa.schema({"id": kind}))


def test_a_key_without_a_value_is_refused() -> None:
    rows = pa.table({"id": pa.array([1, None], pa.int64())})
    with pytest.raises(TargetError, match="NullInKey: column `id` of the key: 1 rows"):
        Changes(("id",)).check_keys(rows)
