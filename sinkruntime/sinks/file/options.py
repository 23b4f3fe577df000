"""The options of the `file` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the target can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.spec.base import Matching, OptionsModel, Text, UniqueItems
from sinkruntime.spec.quantities import Size
from sinkruntime.storage.settings import Storage, check_file_url, check_location, is_local


class Format(StrEnum):
    """What a file holds."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ORC = "orc"
    AVRO = "avro"
    TEXT = "text"


class Log(StrEnum):
    """Which log of committed files is kept beside them."""

    NONE = "none"
    SPARK = "spark"


class StagedBy(StrEnum):
    """Who writes the files: Spark's own writer, or ours, which is fed with Arrow batches."""

    ARROW = "arrow"
    SPARK = "spark"


_TEXT_CODECS = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}

#: By format: the compressions (the first is the default), and what each adds to a file's name, as Spark names files.
COMPRESSIONS: dict[Format, dict[str, str]] = {
    Format.PARQUET: {"snappy": ".snappy", "zstd": ".zstd", "gzip": ".gz", "lz4": ".lz4", "none": ""},
    Format.ORC: {"zstd": ".zstd", "snappy": ".snappy", "zlib": ".zlib", "lz4": ".lz4", "none": ""},
    Format.AVRO: {"deflate": "", "bzip2": "", "xz": "", "none": ""},
    Format.CSV: _TEXT_CODECS,
    Format.JSON: _TEXT_CODECS,
    Format.TEXT: _TEXT_CODECS,
}

#: Spark stages only what means the same whoever wrote it; text formats differ in quoting, nulls and times.
SPARK_FORMATS = (Format.PARQUET, Format.ORC)


class Options(OptionsModel):
    """Options of the `file` sink."""

    path: Text = Field(description="Directory of the files: a local path, or `s3://bucket/prefix` (also `s3a://`).")
    format: Format = Field(default=Format.PARQUET, description="What the files hold.")
    compression: Text | None = Field(
        default=None,
        description="parquet: `snappy` (default), `zstd`, `gzip`, `lz4`, `none`; orc: `zstd` (default), `snappy`, "
        "`zlib`, `lz4`, `none`; avro: `deflate` (default), `bzip2`, `xz`, `none`; csv, json, text: `none` (default), "
        "`gzip`, `bz2`, `zstd`.",
    )
    partition_by: UniqueItems[Text] = Field(
        default=(), description="Columns that become directories (`month=1/`), as Hive and Spark write them."
    )
    target_file_size: Size = Field(
        default=Size.parse("128MiB"), description="A file that has reached this size is closed and another one begun."
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="Files that one task holds open; the least recently used is closed."
    )
    file_prefix: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9.+-]*", "letters, digits, `.`, `+`, `-`", 63)] = Field(
        default="part-", description="What file names begin with. Not `_` or `.`: readers skip such files."
    )
    log: Log = Field(
        default=Log.NONE, description="`spark` keeps a `_spark_metadata` log: Spark then sees each checkpoint whole."
    )
    directory_per_checkpoint: bool = Field(
        default=False, description="Put the files of checkpoint 12 under `checkpoint=12/`."
    )
    header: bool = Field(default=False, description="csv: begin each file with the names of the columns.")
    delimiter: Annotated[
        str, Matching(r"[\x01-\x09\x0b\x0c\x0e-!#-\x7f]", "one ASCII character, no quote or line end", 1)
    ] = Field(default=",", description="csv: the character between two values.")
    staged_by: StagedBy = Field(
        default=StagedBy.ARROW,
        description="Who writes the files: `arrow`, our writer, or `spark`, Spark's own (parquet and orc on local "
        "paths; beside other sinks our writer is used all the same).",
    )
    storage: Storage = Field(default=Storage(), description="How an object store is reached.")

    @property
    def is_local(self) -> bool:
        return is_local(self.path)

    @property
    def codec(self) -> str:
        """The compression, or the format's default."""
        return self.compression or next(iter(COMPRESSIONS[self.format]))

    @property
    def extension(self) -> str:
        """`.snappy.parquet`, `.csv.gz`: as Spark puts them."""
        codec = COMPRESSIONS[self.format][self.codec]
        columnar = self.format in SPARK_FORMATS
        return (
            f"{codec}.{self.format}" if columnar else f".{'txt' if self.format is Format.TEXT else self.format}{codec}"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_location("path", self.path)
        check_file_url("path", self.path)
        self._check_format()
        if self.staged_by is StagedBy.SPARK and (self.format not in SPARK_FORMATS or not self.is_local):
            raise PydanticCustomError(
                "staged_by",
                "`stagedBy: spark` needs `format: parquet` or `orc` and a local path; use `arrow`",
            )
        return self

    def _check_format(self) -> None:
        known = COMPRESSIONS[self.format]
        if self.compression is not None and self.compression not in known:
            raise PydanticCustomError(
                "compression",
                "`compression`: {format} cannot be compressed by {codec}; expected one of {known}",
                {"format": self.format.value, "codec": self.compression, "known": ", ".join(known)},
            )
        csv_only = {"header": self.header, "delimiter": self.delimiter != ","}
        for name, is_set in csv_only.items():
            if is_set and self.format is not Format.CSV:
                raise PydanticCustomError("csv_only", "`{name}` belongs to `format: csv`", {"name": name})
