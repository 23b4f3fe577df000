"""Users' code for the tests of `foreach` and `foreachBatch`: it writes down how it was called."""

from __future__ import annotations

from typing import Any

CALLS: list[tuple[Any, ...]] = []


class Writer:
    """All that a ForeachWriter can have, and `bind`."""

    def bind(self, context: Any) -> None:
        CALLS.append(("bind", context))

    def open(self, partition: int, checkpoint: int) -> bool:
        CALLS.append(("open", partition, checkpoint))
        return True

    def process(self, row: Any) -> None:
        CALLS.append(("process", row.id, row["name"], row.asDict()))
        if row.name == "poison":
            raise ValueError("poison")

    def close(self, error: BaseException | None) -> None:
        CALLS.append(("close", error if error is None else type(error).__name__))


class Unwilling(Writer):
    """Turns each partition down."""

    def open(self, partition: int, checkpoint: int) -> bool:
        super().open(partition, checkpoint)
        return False


class Broken(Writer):
    """Cannot be opened."""

    def open(self, partition: int, checkpoint: int) -> bool:
        raise ConnectionError("no target")


class BrokenAtTheEnd(Writer):
    """Cannot be closed."""

    def close(self, error: BaseException | None) -> None:
        super().close(error)
        if error is None:
            raise ConnectionError("the last rows were refused")


class OnlyProcess:
    """The least that is needed."""

    def process(self, row: Any) -> None:
        CALLS.append(("process", row["id"]))


class NoProcess:
    """Not a writer."""


def batch(df: Any, context: Any) -> None:
    """A user's function."""
    CALLS.append(("batch", df, df.is_cached, context))


def failing(df: Any, context: Any) -> None:
    """A user's function that fails."""
    raise ValueError("poison")


NUMBER = 7
