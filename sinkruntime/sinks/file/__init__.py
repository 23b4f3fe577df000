"""`file`: Parquet, CSV, JSON, ORC, Avro or text files in a local directory or an S3 bucket, exactly once.

Here is the sink itself; `writer` stages, `committer` commits, `local` and `s3` are the places.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Committable,
    Evidence,
    Guarantee,
    Offer,
    RunOn,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkIdentity,
    SinkWriter,
    StageContext,
    WriterContext,
)
from sinkruntime.sinks.file import schemas, spark_stage
from sinkruntime.sinks.file.committer import FileAggregatedCommitter
from sinkruntime.sinks.file.formats import open_writer
from sinkruntime.sinks.file.options import Log, Options, StagedBy
from sinkruntime.storage.base import Storage
from sinkruntime.storage.committer import FileCommitter
from sinkruntime.storage.local import LocalStorage
from sinkruntime.storage.marker import create_target, read_marker, read_target
from sinkruntime.storage.writer import FileWriter, Layout


class FileSink(Sink):
    """Files below one path."""

    Options = Options
    summary = "files (parquet, csv, json, orc, avro, text), local or on S3"

    def __init__(self, options: Any, identity: SinkIdentity) -> None:
        super().__init__(options, identity)
        self._root = os.path.abspath(options.path.removeprefix("file://")) if options.is_local else options.path

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        if not options.is_local:
            return options
        path = os.path.abspath(os.path.join(base, options.path.removeprefix("file://")))
        return options.model_copy(update={"path": path})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        whole = (
            "each checkpoint appears whole to readers of the log"
            if options.log is Log.SPARK
            else "each file appears whole, a checkpoint file by file"
        )
        how = "a hard link" if options.is_local else "completing its upload with If-None-Match"
        return Offer(Guarantee.EXACTLY_ONCE, f"a file is committed by {how}, which never replaces one; {whole}")

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER if options.is_local else RunOn.OPERATOR

    def storage(self) -> Storage:
        """The place, not yet connected."""
        if self.options.is_local:
            return LocalStorage(self._root, self.identity)
        from sinkruntime.storage.s3 import S3Storage

        options = self.options
        return S3Storage(options.path, options.storage, self.identity, options.target_file_size.bytes)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        options = self.options
        layout = Layout(
            open_format=lambda stream, schema: open_writer(stream, schema, options),
            extension=options.extension,
            partition_by=options.partition_by,
            target_file_bytes=options.target_file_size.bytes,
            max_open_files=options.max_open_files,
            file_prefix=options.file_prefix,
            life_seconds=self.staged_life_seconds(),
            base=f"checkpoint={context.lineage.checkpoint}" if options.directory_per_checkpoint else "",
        )
        return FileWriter(layout, self.storage(), context)

    def create_committer(self) -> SinkCommitter:
        return FileCommitter(self.storage(), self.identity)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        return FileAggregatedCommitter(self.options, self.storage(), self.identity)

    def evidence(self) -> Evidence:
        storage = self.storage()
        storage.open()
        try:
            marker, _ = read_marker(storage, self.identity)
            target = read_target(storage)
        finally:
            storage.close()
        return Evidence(marker.checkpoint, "" if target is None else target["target"], self._root)

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        evidence = self.evidence()
        if evidence.checkpoint < checkpoint:
            return None
        return f"the marker in {self._root} stands at checkpoint {evidence.checkpoint}"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Check that the format can hold the columns and that the files in place have the same; name the target."""
        schemas.check_columns(schema, self.options)
        storage = self.storage()
        storage.open()
        try:
            target = create_target(storage, str(uuid.uuid4()), schemas.to_text(schema))
            schemas.check_target(schema, target["schema"], storage, self.options)
        finally:
            storage.close()

    def can_stage(self) -> bool:
        return bool(self.options.staged_by is StagedBy.SPARK)

    def stage(self, df: Any, context: StageContext) -> Sequence[Committable] | None:
        if not self.can_stage():
            return None
        return spark_stage.stage(df, self.options, LocalStorage(self._root, self.identity), context)

    def staged_rows(self, committable: Committable) -> int:
        return sum(item["rows"] for item in committable["files"])

    def staged_life_seconds(self) -> float | None:
        lifetime = self.options.storage.upload_lifetime
        return None if self.options.is_local or lifetime is None else lifetime.seconds


SINK = FileSink
