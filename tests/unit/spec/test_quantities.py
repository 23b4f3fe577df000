"""Durations, sizes and amounts of memory as a manifest writes them."""

import pytest

from sinkruntime.spec.quantities import Duration, Memory, Size


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("10s", 10), ("5m", 300), ("1h", 3600), ("0s", 0), ("90s", 90)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert Duration.parse(text).seconds == seconds


@pytest.mark.parametrize(("text", "shown"), [("60s", "1m"), ("90s", "90s"), ("1000ms", "1s"), ("0h", "0s")])
def test_a_duration_prints_in_its_largest_unit(text: str, shown: str) -> None:
    assert str(Duration.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "10", "s", "1.5s", "-1s", "1d", "10 s", "1h30m", "10S", "١s", "9" * 19 + "s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a duration such as 200ms, 10s, 5m or 1h$"):
        Duration.parse(text)


def test_a_duration_of_more_than_a_year_is_refused() -> None:
    with pytest.raises(OverflowError, match="must be at most 8760h"):
        Duration.parse("8761h")


def test_sizes_are_powers_of_1024() -> None:
    assert Size.parse("128MiB").bytes == 128 * 1024 * 1024
    assert str(Size(1536)) == "1536B"
    with pytest.raises(ValueError, match="a size such as 512KiB, 128MiB or 1GiB"):
        Size.parse("128MB")


def test_memory_is_written_as_spark_does() -> None:
    assert Memory.parse("1g").bytes == 1024**3
    assert str(Memory.parse("1024m")) == "1g"
    with pytest.raises(ValueError, match="such as 512m or 1g"):
        Memory.parse("1Gi")


def test_quantities_of_one_kind_can_be_compared() -> None:
    assert Duration.parse("1m") == Duration.parse("60s") < Duration.parse("61s")
