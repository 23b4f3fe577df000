"""Spark's own writer stages: the rows never pass through Python, and only the commit is ours.

Called in the driver through `Sink.stage`, with a Spark DataFrame that is only ever asked to write itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sinkruntime.api import Committable, StageContext
from sinkruntime.sinks.file.options import Format, Options
from sinkruntime.storage.base import Item
from sinkruntime.storage.local import LocalStorage, make_directories, sync_directory, translated
from sinkruntime.storage.names import origin_of, owner_digest

#: Committables are committed in parallel, and each is one line in the decision record.
FILES_PER_COMMITTABLE = 100


def stage(df: Any, options: Options, storage: LocalStorage, context: StageContext) -> Sequence[Committable]:
    """Write `df` below the staging place, and say how to commit what is there."""
    assert origin_of(context.stem) == (context.checkpoint, context.epoch), context.stem
    storage.open()
    with translated(storage.staging):
        make_directories(storage.staging)
    place = storage.staging / context.stem
    _write(df, options, place)
    items = list(_items(place, options, context))
    with translated(place):
        _sync(place)
        sync_directory(storage.staging)
    starts = range(0, len(items), FILES_PER_COMMITTABLE)
    return [{"files": items[start : start + FILES_PER_COMMITTABLE]} for start in starts]


def _write(df: Any, options: Options, place: Path) -> None:
    # Timestamps are what the session says: microseconds (`sinkruntime.spark.session`).
    codec = "lz4_raw" if (options.format, options.codec) == (Format.PARQUET, "lz4") else options.codec
    writer = df.write.format(options.format.value).option("compression", codec).mode("errorifexists")
    if options.partition_by:
        writer = writer.partitionBy(*options.partition_by)
    writer.save(place.as_uri())


def _items(place: Path, options: Options, context: StageContext) -> Iterator[Item]:
    """What Spark wrote, but for its marks, checksums and files without rows."""
    base = f"checkpoint={context.checkpoint}/" if options.directory_per_checkpoint else ""
    name = f"{options.file_prefix}{owner_digest(context.identity)}-{context.stem}"
    sequence = 0
    for file in data_files(place):
        rows = _rows(file, options.format)
        if rows == 0:
            file.unlink()
            continue
        directory = file.parent.relative_to(place).as_posix()
        where = base if directory == "." else f"{base}{directory}/"
        status = file.stat()
        yield {
            "path": f"{where}{name}-{sequence:05d}{options.extension}",
            "staged": file.relative_to(place.parent).as_posix(),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "rows": rows,
        }
        sequence += 1


def data_files(place: Path) -> Iterator[Path]:
    """Files that hold rows, in a fixed order."""
    for where, directories, names in os.walk(place):
        directories.sort()
        yield from (Path(where, name) for name in sorted(names) if name[0] not in "_.")


def _rows(file: Path, kind: Format) -> int:
    """From the footer."""
    if kind is Format.PARQUET:
        import pyarrow.parquet

        return int(pyarrow.parquet.read_metadata(file).num_rows)
    import pyarrow.orc

    return int(pyarrow.orc.ORCFile(file).nrows)


def _sync(place: Path) -> None:
    """Make files and directories survive a power cut."""
    for where, _, names in os.walk(place):
        for name in names:
            if name[0] not in "_.":
                with open(Path(where, name), "rb") as stream:
                    os.fsync(stream.fileno())
        sync_directory(Path(where))
