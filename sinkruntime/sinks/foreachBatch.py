# ruff: noqa: N999  (a sink's type is its module's name, and this type is Spark's word)
"""`foreachBatch`: a user's function gets each batch as a DataFrame, in the driver, as Spark's foreachBatch.

What it writes is visible before the decision: there is no second phase. It has no writers, only `stage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field

from sinkruntime.api import (
    Committable,
    Guarantee,
    Offer,
    RunOn,
    Sink,
    SinkWriter,
    StageContext,
    WriterContext,
)
from sinkruntime.spec.base import OptionsModel
from sinkruntime.spec.source import PythonObject
from sinkruntime.usercode import CheckpointContext, load_user_code


class Options(OptionsModel):
    """Options of the `foreachBatch` sink."""

    function: PythonObject = Field(description="Your function of (DataFrame, batch), as `package.module:function`.")
    persist: bool = Field(
        default=True,
        description="Keep the batch in memory while your function runs: all its actions see the same rows.",
    )
    idempotent: bool = Field(
        default=False,
        description="You declare that a batch which comes again with the same `batch.key` changes nothing.",
    )


class ForeachBatchSink(Sink):
    """A user's function, batch by batch."""

    Options = Options
    summary = "your function of each batch's DataFrame"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        if options.idempotent:
            return Offer(
                Guarantee.EFFECTIVELY_ONCE, "a batch may come again; you declare that your function keeps it once"
            )
        return Offer(Guarantee.AT_LEAST_ONCE, "your function runs before the decision, and again when the driver fails")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError("foreachBatch has no writers: it is given whole batches by `stage`")

    def prepare_target(self, schema: pa.Schema) -> None:
        """Fail before the first batch where the function cannot be found."""
        load_user_code(self.options.function, "options.function")

    def can_stage(self) -> bool:
        return True

    def must_stage(self) -> bool:
        return True

    def stage(self, df: Any, context: StageContext) -> Sequence[Committable]:
        """Call the function; there is nothing left to commit. What it raises fails the batch."""
        function = load_user_code(self.options.function, "options.function")
        who = context.identity
        batch = CheckpointContext(who.ledger_id, who.sink, context.checkpoint, context.epoch)
        keep = self.options.persist and not df.is_cached
        if keep:
            df.persist()
        try:
            function(df, batch)
        finally:
            if keep:
                df.unpersist()
        return ()


SINK = ForeachBatchSink
