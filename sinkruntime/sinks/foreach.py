"""`foreach`: a user's class with `open`, `process` and `close` gets the rows one by one, as Spark's ForeachWriter.

One instance per task and checkpoint, in the executor. Its rows arrive before the decision: there is no second phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic import Field

from sinkruntime.api import Guarantee, Offer, RunOn, Sink, SinkWriter, WriterContext
from sinkruntime.errors import ConfigurationError
from sinkruntime.rows import RowWriter
from sinkruntime.spec.base import OptionsModel
from sinkruntime.spec.source import PythonObject
from sinkruntime.usercode import CheckpointContext, load_user_code


class Options(OptionsModel):
    """Options of the `foreach` sink."""

    class_: PythonObject = Field(alias="class", description="Your class, as `package.module:Writer`.")
    idempotent: bool = Field(
        default=False,
        description="You declare that rows which come again with the same `context.key` change nothing in your target.",
    )


class Row(dict[str, Any]):
    """A row: `row["name"]`, `row.name`, and `row.asDict()` as Spark's rows have it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def asDict(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """A plain dict."""
        return dict(self)


class Abandoned(Exception):
    """What a user's `close` is given when the task fails for a reason outside of it."""


class ForeachWriter(RowWriter):
    """Calls the user's object: `open(partition, checkpoint)`, `process(row)` for each row, `close(error)` once."""

    def __init__(self, options: Options, context: WriterContext) -> None:
        self._options = options
        self._context = context
        self._user: Any = None
        self._wanted = False  # `open` may turn the partition down
        self._error: BaseException | None = None

    def open(self) -> None:
        user = load_user_code(self._options.class_, "options.class")()
        at, who = self._context.lineage, self._context.identity
        if hasattr(user, "bind"):
            user.bind(
                CheckpointContext(who.ledger_id, who.sink, at.checkpoint, at.epoch, at.subtask, at.subtasks)
            )  # fmt: skip
        self._user = user
        # Spark calls `close` also where `open` raised.
        opened = self._watch(user.open, at.subtask, at.checkpoint) if hasattr(user, "open") else True
        self._wanted = opened is not False

    def write(self, batch: pa.RecordBatch) -> None:
        if self._wanted:
            super().write(batch)

    def write_row(self, row: Mapping[str, Any]) -> None:
        self._watch(self._user.process, Row(row))

    def prepare_commit(self, checkpoint: int) -> None:
        """The user's `close(None)`: what it raises fails the batch."""
        self._close(None)

    def abort_prepare(self) -> None:
        self._close(self._error or Abandoned("the task failed"))

    def close(self) -> None:
        self._close(self._error or Abandoned("the task ended before its rows did"))

    def _watch(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            self._error = error
            raise

    def _close(self, error: BaseException | None) -> None:
        user, self._user = self._user, None
        if user is not None and hasattr(user, "close"):
            user.close(error)


class ForeachSink(Sink):
    """A user's class, row by row."""

    Options = Options
    summary = "your class, with open, process and close for each row"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        if options.idempotent:
            return Offer(
                Guarantee.EFFECTIVELY_ONCE, "rows may come again; you declare that your target keeps them once"
            )
        return Offer(Guarantee.AT_LEAST_ONCE, "rows reach your code before the decision, and again when a task fails")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return ForeachWriter(self.options, context)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Fail before the first batch where the class cannot be found, or has no `process`."""
        load_foreach_class(self.options.class_)


def load_foreach_class(name: str) -> Any:
    """The user's class. Raises `ConfigurationError`."""
    found = load_user_code(name, "options.class")
    if not hasattr(found, "process"):
        raise ConfigurationError("UserCodeNotFound", f"{name} has no method `process`", path="options.class")
    return found


SINK = ForeachSink
