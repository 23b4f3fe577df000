"""Rows fit a table by name and type, or the refusal names the column, what there is, and what it would get."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.errors import TargetError
from sinkruntime.tables import schemas


def schema(**columns: Any) -> pa.Schema:
    fields: list[pa.Field[Any]] = [pa.field(name, kind) for name, kind in columns.items()]
    return pa.schema(fields)


def with_required(name: str, kind: Any) -> pa.Schema:
    return pa.schema([pa.field("a", pa.int8()), pa.field(name, kind, nullable=False)])


def struct(**columns: Any) -> pa.StructType:
    return pa.struct([pa.field(name, kind) for name, kind in columns.items()])


REFUSED = [
    (schema(id=pa.string()), schema(id=pa.int64()), "column `id`: the table has int64, it would get string"),
    (schema(id=pa.int64()), schema(id=pa.int32()), "column `id`: the table has int32, it would get int64"),
    (schema(a=pa.int64(), b=pa.date32()), schema(a=pa.int64()), "column `b`: the table has no such column"),
    (schema(ID=pa.int64()), schema(id=pa.int64()), r"\(it has `id`: names are compared as they are written\)"),
    (schema(a=pa.int8()), with_required("b", pa.date32()),
     r"column `b`: the table requires date32\[day\], the rows do not have it"),
    (schema(at=pa.timestamp("us")), schema(at=pa.timestamp("us", "UTC")),
     "column `at`: the table has timestamp with time zone, it would get timestamp without time zone"),
    (schema(s=struct(x=pa.int64())), schema(s=struct(x=pa.string())), "column `s.x`: the table has"),
    (schema(s=pa.list_(pa.int64())), schema(s=pa.list_(pa.string())), "column `s.element`: the table has string"),
    (schema(s=pa.map_(pa.string(), pa.int64())), schema(s=pa.map_(pa.string(), pa.int32())), "column `s.value`"),
    (schema(d=pa.decimal128(10, 2)), schema(d=pa.decimal128(10, 4)), "column `d`: the table has decimal128"),
    (pa.schema([pa.field("a", pa.int8()), pa.field("a", pa.int8())]), schema(a=pa.int8()), "two columns"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "table", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_column(rows: pa.Schema, table: pa.Schema, message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        schemas.check(rows, table)
    assert caught.value.reason == "SchemaMismatch"
    assert caught.value.path == "options.table"


def test_wider_types_missing_columns_and_another_order_fit() -> None:
    rows = schema(b=pa.int16(), a=pa.string(), d=pa.decimal128(5, 2))
    table = schema(a=pa.large_string(), b=pa.int64(), c=pa.date32(), d=pa.decimal128(10, 3))
    schemas.check(rows, table)
    batch = pa.RecordBatch.from_pylist([{"b": 1, "a": "x", "d": None}, {"b": None, "a": "y", "d": None}], schema=rows)
    made = schemas.conform(batch, table)
    assert made.schema == table
    assert made.to_pylist() == [{"a": "x", "b": 1, "c": None, "d": None}, {"a": "y", "b": None, "c": None, "d": None}]


def test_a_null_in_a_required_column_is_refused_by_name() -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_pylist([{"id": 1}, {"id": None}], schema=schema(id=pa.int64()))
    schemas.check(batch.schema, table)
    with pytest.raises(TargetError, match="NullInRequiredColumn: column `id`: the table requires a value, 1 rows"):
        schemas.conform(batch, table)
    assert schemas.conform(batch.slice(0, 1), table).to_pylist() == [{"id": 1}]


def test_a_value_that_the_table_cannot_hold_is_refused_by_column() -> None:
    batch = pa.RecordBatch.from_pylist([{"at": 2**62}], schema=schema(at=pa.int64()))
    batch = pa.RecordBatch.from_arrays([batch.column(0).cast(pa.timestamp("s"))], ["at"])
    with pytest.raises(TargetError, match="ValueOutOfRange: column `at`"):
        schemas.conform(batch, schema(at=pa.timestamp("us")))


NESTED = struct(y=pa.string(), x=pa.int32())
WIDE = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.large_string()), pa.field("z", pa.date32())])
structs = st.one_of(
    st.none(), st.fixed_dictionaries({"y": st.one_of(st.none(), st.text()), "x": st.integers(-(2**31), 2**31 - 1)})
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "one": structs,
                "many": st.one_of(st.none(), st.lists(structs, max_size=3)),
                "named": st.one_of(st.none(), st.dictionaries(st.text(max_size=2), structs, max_size=3)),
            }
        ),
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_nested_values_survive_and_get_the_tables_fields(rows: list[dict[str, Any]], start: int) -> None:
    given_schema = schema(one=NESTED, many=pa.list_(NESTED), named=pa.map_(pa.string(), NESTED))
    table = schema(one=WIDE, many=pa.large_list(WIDE), named=pa.map_(pa.large_string(), WIDE))
    plain = [{**row, "named": None if row["named"] is None else list(row["named"].items())} for row in rows]
    batch = pa.RecordBatch.from_pylist(plain, schema=given_schema).slice(start)
    schemas.check(given_schema, table)
    made = schemas.conform(batch, table)
    made.validate(full=True)

    def wide(value: Any) -> Any:
        return None if value is None else {"x": value["x"], "y": value["y"], "z": None}

    assert made.to_pylist() == [
        {
            "one": wide(row["one"]),
            "many": None if row["many"] is None else [wide(item) for item in row["many"]],
            "named": None if row["named"] is None else [(key, wide(item)) for key, item in row["named"]],
        }
        for row in plain[start:]
    ]


def test_a_batch_that_has_the_tables_schema_is_passed_on() -> None:
    table = schema(day=pa.date32())
    batch = pa.RecordBatch.from_pylist([{"day": datetime.date(2024, 2, 29)}], schema=table)
    assert schemas.conform(batch, table).column(0).equals(batch.column(0))
