"""The row adapter: for authors of sinks who think in rows rather than in Arrow batches.

A sink's writer may subclass `RowWriter`; `foreach` does. It is slower than Arrow by far.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sinkruntime.api import SinkWriter


class RowWriter(SinkWriter):
    """A `SinkWriter` whose author implements `write_row`."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand each row of the batch to `write_row`, in order."""
        for row in batch.to_pylist():
            self.write_row(row)

    @abstractmethod
    def write_row(self, row: Mapping[str, Any]) -> None:
        """One row, by column name."""
