"""The facts that Spark's checkpoint location holds: query, planned and finished batches, the rows of a batch.

`query.py` asks it before the start check and for every batch. It reads Spark's own files and writes one of ours, the
marker `_sinkjob/ledger_id`, which Spark never looks at. It never changes or removes anything.

What a batch adds: a file stream's offset `{"logOffset":k}` says no more than "up to entry k of `sources/<i>`"; Spark
reads the entries after the former batch's index up to k (`FileStreamSource.getBatch`). Entry k is the file
`sources/<i>/<k>` (or `<k>.compact`, which holds all entries before it too, each with its `batchId`); once it is
compacted and removed, it is found in a later `.compact` file. The digest of a batch's end therefore covers these
entries, so a checkpoint that was restored and planned the same index with other files does not pass for the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sinkruntime.errors import SinkjobError
from sinkruntime.protocol.ledger import Offsets, Position
from sinkruntime.protocol.position import NOWHERE, BadOffsets, is_index, offsets, source_lines
from sinkruntime.protocol.start import SourceView
from sinkruntime.spark.storage import CheckpointStorage

MARKER = "_sinkjob/ledger_id"


@dataclass(frozen=True, slots=True)
class _Planned:
    """What `offsets/<batch>` says."""

    lines: tuple[str, ...]
    watermark_ms: int


class CheckpointFiles:
    """Reads one query's checkpoint location. Not for several threads at once."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._last_end: tuple[int, Offsets] | None = None  # the next batch starts there

    def view(self) -> SourceView:
        """All that the start check needs; raises `CheckpointDamaged` where files are torn or missing."""
        planned, finished = self._numbers("offsets"), self._numbers("commits")
        return SourceView(
            marker=self.owner()[0],
            query_id=self.query_id(),
            planned=self.position(max(planned)) if planned else None,
            finished=max(finished, default=-1),
        )

    def owner(self) -> tuple[str, str]:
        """The ledger id and the job that the location belongs to; ("", "") where nobody has marked it."""
        ledger_id, job, _ = self._marker()
        return ledger_id, job

    def accepted_nonce(self) -> str:
        """The nonce with which `LedgerLost` was last accepted here, for the ledger that knew it may be lost too."""
        return self._marker()[2]

    def _marker(self) -> tuple[str, str, str]:
        lines = [*(self._storage.read(MARKER) or "").split("\n"), "", "", ""]
        return lines[0].strip(), lines[1].strip(), lines[2].strip()

    def mark(self, ledger_id: str, job: str) -> str:
        """Write the marker if there is none; the ledger id that the location belongs to then."""
        if self._storage.create(MARKER, f"{ledger_id}\n{job}\n"):
            return ledger_id
        return self.owner()[0]

    def take_over(self, ledger_id: str, job: str, nonce: str = "") -> None:
        """Replace the marker, which only a person's `recovery.accept` allows; see `accepted_nonce`."""
        self._storage.replace(MARKER, f"{ledger_id}\n{job}\n{nonce}\n")

    def query_id(self) -> str:
        """The id that Spark gave the query when it began; "" where none ever ran."""
        text = self._storage.read("metadata")
        if text is None:
            return ""
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged("metadata", f"no query id in {text[:80]!r}") from error

    def position(self, batch: int) -> Position:
        """Which rows the batch has."""
        last = self._last_end
        start = last[1] if last is not None and last[0] == batch - 1 else self._end(batch - 1)
        end = self._end(batch)
        self._last_end = batch, end
        return Position(self.query_id(), batch, start, end)

    def watermark_ms(self, batch: int) -> int | None:
        """The event-time watermark of the batch; None where there is none yet."""
        return self._planned(batch).watermark_ms or None

    def stateful(self) -> bool:
        """Whether the query keeps state (an aggregation, a join of streams, …); known once a batch has run."""
        return bool(self._storage.names("state"))

    def _numbers(self, directory: str) -> list[int]:
        return [int(name) for name in self._storage.names(directory) if name.isdigit()]

    def _planned(self, batch: int) -> _Planned:
        name = f"offsets/{batch}"
        text = self._storage.read(name)
        if text is None:
            raise _damaged(name, "it is missing")
        try:
            lines = source_lines(text)
            metadata = json.loads(text.splitlines()[1])
            return _Planned(lines, int(metadata.get("batchWatermarkMs", 0)))
        except (BadOffsets, ValueError, AttributeError, TypeError) as error:
            raise _damaged(name, str(error)) from error

    def _end(self, batch: int) -> Offsets:
        """Where a batch ends: its source lines, and the files that it added to what came before."""
        if batch < 0:
            return NOWHERE
        lines = self._planned(batch).lines
        if not any(is_index(line) for line in lines):
            return offsets(lines)
        before = self._planned(batch - 1).lines if batch > 0 else ()
        entries = []
        for source, line in enumerate(lines):
            first = _index(before[source]) + 1 if source < len(before) else 0
            entries.append([entry for k in range(first, _index(line) + 1) for entry in self._entries(source, k)])
        return offsets(lines, entries)

    def _entries(self, source: int, index: int) -> list[str]:
        """What entry `index` of a file source's log stands for, in one form whether it is compacted or not."""
        directory = f"sources/{source}"
        text = self._storage.read(f"{directory}/{index}")
        if text is None:
            names = self._storage.names(directory)
            compacted = sorted(int(stem) for name in names if (stem := name.removesuffix(".compact")).isdigit())
            later = next((k for k in compacted if k >= index and f"{k}.compact" in names), None)
            name = f"{directory}/{index}" if later is None else f"{directory}/{later}.compact"
            text = self._storage.read(name)
            if text is None:
                raise _damaged(name, "it is missing")
        try:
            found = [json.loads(line) for line in text.splitlines()[1:]]
            return [json.dumps([e["path"], e["timestamp"], index]) for e in found if e["batchId"] == index]
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(f"{directory}/{index}", str(error)) from error


def _index(line: str) -> int:
    """A file stream's index; -1 for a source of another kind, or one that has given nothing yet."""
    return int(json.loads(line)["logOffset"]) if is_index(line) else -1


def _damaged(name: str, what: str) -> SinkjobError:
    return SinkjobError(
        "CheckpointDamaged",
        f"Spark's checkpoint file {name} cannot be used: {what}",
        "restore the checkpoint location from a backup; or remove it and accept NewCheckpoint",
    )
