"""Names in the target: partition directories, stems, and whose file it is."""

from __future__ import annotations

import datetime
import decimal
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.storage.names import NULL_PARTITION, escape, origin_of, owner_digest, partition_directory
from tests.sinks import harness

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(TEXT)
def test_an_escaped_value_is_one_directory_and_can_be_read_back(text: str) -> None:
    escaped = escape(text)
    assert "/" not in escaped
    assert "=" not in escaped
    assert unquote(escaped) == text


@given(TEXT.filter(bool), TEXT.filter(bool))
def test_two_values_never_share_a_directory(one: str, other: str) -> None:
    same = partition_directory(("c",), (one,)) == partition_directory(("c",), (other,))
    assert same == (one == other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, NULL_PARTITION),
        ("", NULL_PARTITION),
        (True, "true"),
        (7, "7"),
        (decimal.Decimal("0E-8"), "0.00000000"),
        (datetime.date(1, 2, 3), "0001-02-03"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5, 120_000, datetime.UTC), "2024-01-02 03%3A04%3A05.12"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03%3A04%3A05"),  # noqa: DTZ001  (without a zone)
        ("a/b", "a%2Fb"),
    ],
)
def test_values_are_written_as_spark_casts_them(value: Any, expected: str) -> None:
    assert partition_directory(("c",), (value,)) == f"c={expected}"


def test_several_columns_are_nested_in_order() -> None:
    assert partition_directory(("year", "month"), (2013, 1)) == "year=2013/month=1"
    assert partition_directory((), ()) == ""


def test_a_stem_says_checkpoint_and_epoch() -> None:
    assert origin_of("000000000012-3-00001-0-ab12") == (12, 3)
    assert origin_of("part-5a0f2d1e7c57-000000000012-31-00001-0-ab12-00000.snappy.parquet") == (12, 31)
    assert origin_of("part-5a0f2d1e7c57.parquet") is None
    assert origin_of("part-123456789012-000000000012-31-00001-0-ab12-00000.parquet") == (12, 31)
    assert origin_of("123456789012-000000000012-10000-00001-0-210987654321-00000.commit") == (12, 10_000)
    assert origin_of("0f-0_123456789012-000000000012-3-00001-0-ab12-00000_20261121103000000.parquet") == (12, 3)
    assert origin_of("notes.txt") is None


def test_the_digest_tells_ledgers_and_sinks_apart() -> None:
    mine = owner_digest(harness.identity())
    assert mine == owner_digest(harness.identity())
    assert len({mine, owner_digest(harness.identity(sink="b")), owner_digest(harness.identity("other"))}) == 3
