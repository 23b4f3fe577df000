"""Spark's offset files: which lines say which rows a batch has, and how they are digested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.protocol.position import (
    NOWHERE,
    TEXT_BYTES_MAX,
    BadOffsets,
    is_index,
    offsets,
    source_lines,
)

FILE = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"logOffset":3}
{"topic":{"0":12,"1":7}}"""


def test_the_source_lines_are_those_after_version_and_metadata() -> None:
    assert source_lines(FILE) == ('{"logOffset":3}', '{"topic":{"0":12,"1":7}}')
    assert source_lines(FILE + "\n") == source_lines(FILE)


def test_a_source_without_an_offset_is_a_dash() -> None:
    assert source_lines("v1\n{}\n-") == ("-",)


def test_metadata_do_not_change_the_rows() -> None:
    later = FILE.replace("1795000000000", "1795000009999")
    assert offsets(source_lines(later)) == offsets(source_lines(FILE))


@pytest.mark.parametrize("text", ["", "v1", "v1\n", "v1\n{}", "v2\n{}\n{}", "{}\n{}\n{}"])
def test_a_torn_file_or_one_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(BadOffsets, match="expected `v1`"):
        source_lines(text)


@given(st.integers(0, len(FILE) - 1))
def test_a_truncated_file_never_gives_the_same_rows(length: int) -> None:
    try:
        torn = source_lines(FILE[:length])
    except BadOffsets:
        return
    assert offsets(torn).digest != offsets(source_lines(FILE)).digest


def test_a_line_separator_inside_an_offset_is_no_new_source() -> None:
    assert source_lines('v1\n{}\n{"path":"a\u2028b\x85c"}') == ('{"path":"a\u2028b\x85c"}',)


@pytest.mark.parametrize(
    ("line", "index"),
    [('{"logOffset":1}', True), ('{"logOffset":1,"x":2}', False), ('{"0":1}', False), ("-", False), ("12", False)],
)
def test_an_index_says_nothing_about_rows(line: str, index: bool) -> None:
    assert is_index(line) is index


def test_an_index_is_digested_with_what_it_stands_for() -> None:
    lines = ('{"logOffset":1}',)
    one, other = offsets(lines, [["file-a"]]), offsets(lines, [["file-b"]])
    assert one.digest != other.digest != offsets(lines).digest
    assert one.text == other.text == '{"logOffset":1}'


@given(st.permutations(["file-a", "file-b", "file-c"]))
def test_the_order_of_an_indexs_entries_does_not_matter(entries: list[str]) -> None:
    lines = ('{"logOffset":1}', "-")
    assert offsets(lines, [entries, []]) == offsets(lines, [["file-a", "file-b", "file-c"], []])


def test_the_order_of_sources_matters() -> None:
    assert offsets(("1", "2")).digest != offsets(("2", "1")).digest
    assert offsets(("1", "1"), [["f"], []]).digest != offsets(("1", "1"), [[], ["f"]]).digest


def test_a_long_text_is_left_out_and_its_digest_kept() -> None:
    short, long = "x" * TEXT_BYTES_MAX, "x" * (TEXT_BYTES_MAX + 1)
    assert offsets([short]).text == short
    assert offsets([long]).text == ""
    assert offsets([long]).digest != offsets([short]).digest
    assert offsets(["é" * TEXT_BYTES_MAX]).text == "", "bytes are counted"


def test_nothing_has_a_digest_of_its_own() -> None:
    assert offsets(()) == NOWHERE
