"""`onFailure: Warn`: a writer whose failure costs only its own rows, and not the checkpoint.

`task.py` wraps the writers of such sinks. After the first error the writer is given up for this task: what it staged is
taken back, the error is told once and counted, and nothing of it is committed. Never used for a guarantee above
`AtLeastOnce`: the manifest's checks see to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.api import Committable, Counter, SinkWriter

log = logging.getLogger(__name__)

#: The counter that tells the driver how many tasks gave such a writer up.
FAILED_WRITERS = "failed_writers"


class TolerantWriter(SinkWriter):
    """Wraps one writer; `make` is called in `open`, so that its errors are tolerated too."""

    def __init__(self, name: str, make: Callable[[], SinkWriter], count: Counter) -> None:
        self._name = name
        self._make = make
        self._count = count
        self._writer: SinkWriter | None = None
        self._prepared = False  # there is a committable, so what is staged must stay

    def open(self) -> None:
        """See `SinkWriter`."""

        def begin() -> None:
            self._writer = self._make()
            self._writer.open()

        self._try(begin)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter`."""
        self._with(lambda writer: writer.write(batch))

    def write_watermark(self, watermark_ms: int) -> None:
        """See `SinkWriter`."""
        self._with(lambda writer: writer.write_watermark(watermark_ms))

    def flush(self, end_of_input: bool) -> None:
        """See `SinkWriter`."""
        self._with(lambda writer: writer.flush(end_of_input))

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        """See `SinkWriter`; None for a writer that was given up."""
        committable = self._with(lambda writer: writer.prepare_commit(checkpoint))
        self._prepared = committable is not None
        return committable

    def remaining_life_seconds(self) -> float | None:
        """See `SinkWriter`."""
        life: float | None = self._with(lambda writer: writer.remaining_life_seconds())
        return life

    def snapshot_state(self, checkpoint: int) -> Sequence[Any]:
        """See `SinkWriter`."""
        return self._with(lambda writer: writer.snapshot_state(checkpoint)) or ()

    def abort_prepare(self) -> None:
        """See `SinkWriter`."""
        self._with(lambda writer: writer.abort_prepare())

    def close(self) -> None:
        """See `SinkWriter`."""
        self._with(lambda writer: writer.close())

    def _with(self, act: Callable[[SinkWriter], Any]) -> Any:
        writer = self._writer
        return None if writer is None else self._try(lambda: act(writer))

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception:
            if self._prepared:
                log.warning("sink %s failed after it had prepared; its rows stay", self._name, exc_info=True)
                return None
            log.warning("sink %s is given up in this task (onFailure: Warn)", self._name, exc_info=True)
            self._count(FAILED_WRITERS)
            writer, self._writer = self._writer, None
            for end in (writer.abort_prepare, writer.close) if writer is not None else ():
                try:
                    end()
                except Exception:
                    log.warning("and its clean-up failed", exc_info=True)
            return None
