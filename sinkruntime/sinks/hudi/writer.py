"""The writer of inserts: splits rows by partition, rolls files, and keeps few of them open.

Runs in an executor task. Each file begins a file group of its own, so it never needs to know what the table holds.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import OrderedDict

import pyarrow as pa

from sinkruntime.api import Committable, SinkWriter, WriterContext
from sinkruntime.sinks.hudi.claims import Claims
from sinkruntime.sinks.hudi.files import DataFile, Sequence, named, with_meta
from sinkruntime.sinks.hudi.keys import by_partition, record_keys
from sinkruntime.sinks.hudi.options import Options
from sinkruntime.sinks.hudi.place import Table
from sinkruntime.sinks.hudi.schemas import avro, file_schema
from sinkruntime.sinks.hudi.timeline import Timeline, commit_path
from sinkruntime.storage.base import Item, Output
from sinkruntime.storage.names import owner_digest
from sinkruntime.storage.writer import bound_buffers


class HudiWriter(SinkWriter):
    """What both writers share: the instant, the names of files, what is staged."""

    def __init__(self, options: Options, table: Table, context: WriterContext) -> None:
        self._options = options
        self._table = table
        self._context = context
        self._schema = file_schema(context.schema)
        self._sequence: Sequence | None = None
        self._items: list[Item] = []
        self._outputs: list[Output] = []
        self._reserved: Item | None = None
        self._files = 0
        self._is_open = False
        self._began_seconds: float | None = None  # when the oldest file was begun

    def open(self) -> None:
        self._table.open()
        self._is_open = True

    def prepare_commit(self, checkpoint: int) -> Committable | None:
        self.flush(end_of_input=True)
        if self._sequence is None:
            return None
        instant = self._sequence.instant
        self._reserved = self._table.reserve(f"{self._stem}-{self._files:05d}.commit", commit_path(instant))
        self._table.prepared()
        return {
            "instant": instant,
            "schema": avro(self._context.schema, self._options.table),
            "reserved": self._reserved,
            "files": self._items,
            **self._more(),
        }

    def remaining_life_seconds(self) -> float | None:
        lifetime = None if self._options.is_local else self._options.storage.upload_lifetime
        if lifetime is None or self._began_seconds is None:
            return None
        return lifetime.seconds - (self._context.clock.monotonic() - self._began_seconds)

    def abort_prepare(self) -> None:
        for output in self._outputs:
            output.discard()
        if self._reserved is not None:
            self._table.discard(self._reserved)
        self._forget()

    def close(self) -> None:
        """What is staged and finished stays; unfinished files go."""
        for file in self._unfinished():
            file.output.discard()
        self._forget()
        if self._is_open:
            self._table.close()
            self._is_open = False

    def _forget(self) -> None:
        self._items, self._outputs, self._reserved = [], [], None

    @abstractmethod
    def _unfinished(self) -> list[DataFile]:
        """The files that are being written."""

    def _more(self) -> dict[str, str]:
        """What a committable needs beside the files."""
        return {}

    @property
    def _stem(self) -> str:
        return f"{owner_digest(self._context.identity)}-{self._context.stem}"

    def _begin(self, timeline: Timeline | None = None) -> Sequence:
        """The numbering of this writer's rows, with the checkpoint's instant, which is agreed at the first row."""
        if self._sequence is None:
            context = self._context
            timeline = timeline or Timeline.read(self._table)
            claims = Claims(self._table, context.identity)
            instant = claims.instant_of(context.lineage.checkpoint, context.clock.wall(), timeline)
            self._sequence = Sequence(instant, context.lineage.subtask)
            self._began_seconds = context.clock.monotonic()
        return self._sequence

    def _create(self, partition: str, group: str = "") -> DataFile:
        """A new file: `<file group>_<who wrote it>_<instant>.parquet`. `group`: "" begins one."""
        writer = f"{self._stem}-{self._files:05d}"
        self._files += 1
        group = group or f"{uuid.uuid5(uuid.NAMESPACE_OID, writer)}-0"
        name = f"{group}_{writer}_{self._begin().instant}.parquet"
        output = self._table.create(partition, name)
        self._outputs.append(output)
        return DataFile(output, name, self._schema, self._options)

    def _finish(self, file: DataFile, partition: str) -> Item:
        item = {**file.finish(), "partition": partition}
        self._items.append(item)
        self._context.count("files")
        self._context.count("bytes", item["size"])
        return item


class InsertWriter(HudiWriter):
    """Stages files of one task."""

    def __init__(self, options: Options, table: Table, context: WriterContext) -> None:
        super().__init__(options, table, context)
        self._open: OrderedDict[str, DataFile] = OrderedDict()  # by partition, the least recently used first

    def write(self, batch: pa.RecordBatch) -> None:
        for partition, rows in by_partition(batch, self._options):
            sequence = self._begin()
            keys = record_keys(rows, self._options) if self._options.record_key else None
            file = self._file(partition)
            file.write(named(with_meta(rows, self._schema, sequence, keys, partition), file.name))
            if file.output.size_bytes >= self._options.target_file_size.bytes:
                self._close(partition)
        bound_buffers(self._open, self._close)

    def flush(self, end_of_input: bool) -> None:
        for partition in list(self._open):
            self._close(partition)

    def _forget(self) -> None:
        super()._forget()
        self._open.clear()

    def _unfinished(self) -> list[DataFile]:
        return list(self._open.values())

    def _file(self, partition: str) -> DataFile:
        file = self._open.get(partition)
        if file is None:
            if len(self._open) >= self._options.max_open_files:
                self._close(next(iter(self._open)))
            file = self._open[partition] = self._create(partition)
        self._open.move_to_end(partition)
        return file

    def _close(self, partition: str) -> None:
        self._finish(self._open[partition], partition)
        del self._open[partition]
