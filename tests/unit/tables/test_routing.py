"""What the book of a routed sink and its tables prove together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.tables.routing import Book, Mark, behind, standing

NAMES = st.sampled_from(["a", "b", "c", "d"])
MARKS = st.builds(Mark, st.sampled_from(["one", "other"]), st.integers(0, 9))


@given(st.integers(0, 9), st.dictionaries(NAMES, MARKS), st.dictionaries(NAMES, st.none() | MARKS))
def test_what_is_proved_is_never_more_than_a_table_shows_nor_hides_a_loss(
    checkpoint: int, booked: dict[str, Mark], found: dict[str, Mark | None]
) -> None:
    book = Book(checkpoint, "book", booked)
    proved = standing(book, found)
    seen = [mark.checkpoint for mark in found.values() if mark is not None]
    lost = behind(book, found)
    if any(number > checkpoint for number in seen):
        assert proved == max(seen)  # it has begun to land: a number that must not be given again
    elif lost:
        assert proved <= min(booked[name].checkpoint - 1 for name in lost)
    else:
        assert proved == checkpoint


def test_a_table_that_the_book_does_not_know_is_no_loss() -> None:
    book = Book(3, "book", {"a": Mark("one", 3)})
    assert standing(book, {"a": Mark("one", 3), "b": Mark("two", 1), "c": None}) == 3
    assert behind(book, {"b": None}) == []


def test_a_checkpoint_that_is_being_committed_does_not_count_against_itself() -> None:
    book = Book(3, "book", {"a": Mark("one", 3)})
    marks = {"a": Mark("one", 4), "b": Mark("two", 0)}
    assert standing(book, marks) == 4
    assert standing(book, marks, below=4) == 3


def test_the_book_is_read_from_its_property() -> None:
    assert Book.read(2, "t", '{"a":["one",2]}') == Book(2, "t", {"a": Mark("one", 2)})
    assert Book.read(0, "t", None) == Book(0, "t", {})
