"""The options of the `hive` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only metastore and table can tell is
checked by `prepare_target`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.spec.base import Matching, OptionsModel, Text, UniqueItems
from sinkruntime.spec.quantities import Size
from sinkruntime.storage.settings import Storage, check_location, is_local

DEFAULT_DATABASE = "default"


class Format(StrEnum):
    """What a table's files hold."""

    PARQUET = "parquet"
    ORC = "orc"


#: By format: the compressions; the first is the default, which every Hive since 3.1 reads.
COMPRESSIONS: dict[Format, tuple[str, ...]] = {
    Format.PARQUET: ("snappy", "zstd", "gzip", "lz4", "none"),
    Format.ORC: ("zlib", "snappy", "zstd", "lz4", "none"),
}


class Options(OptionsModel):
    """Options of the `hive` sink."""

    metastore: Text = Field(description="Address of the metastore's Thrift service: `thrift://host:9083`.")
    table: Annotated[
        str, Matching(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?", "`table` or `database.table` (letters, digits, `_`)", 255)
    ] = Field(description="The table, as `database.table`; without a database in `default`.")
    partition_by: UniqueItems[Text] = Field(
        default=(), description="Partition columns. Left out: those of the table that is there."
    )
    format: Format | None = Field(
        default=None,
        description="What the files hold. Left out: as the table that is there says, `parquet` for one that is made.",
    )
    compression: Text | None = Field(
        default=None,
        description="parquet: `snappy` (default), `zstd`, `gzip`, `lz4`, `none`; orc: `zlib` (default), `snappy`, "
        "`zstd`, `lz4`, `none`.",
    )
    create_table: bool = Field(
        default=False,
        description="Create the table where it is missing: an external one where `location` is given, else one in "
        "the metastore's warehouse.",
    )
    location: Text | None = Field(
        default=None,
        description="Directory of the table: a local path or `s3a://bucket/prefix`. Where the table is there, it must "
        "be its own. A local one makes `commit.runOn: Driver` the default.",
    )
    success_file: bool = Field(
        default=False,
        description="Put an empty `_SUCCESS` into each partition (or the table's directory) that a checkpoint wrote "
        "to, after the partition is added and before the checkpoint counts as committed.",
    )
    target_file_size: Size = Field(
        default=Size.parse("128MiB"), description="A file that has reached this size is closed and another one begun."
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="Files that one task holds open; the least recently used is closed."
    )
    storage: Storage = Field(default=Storage(), description="How an object store is reached.")

    @property
    def database(self) -> str:
        """As the metastore keeps it: in lower case."""
        first, dot, _ = self.table.partition(".")
        return first.lower() if dot else DEFAULT_DATABASE

    @property
    def table_name(self) -> str:
        """Without the database, in lower case."""
        return self.table.rpartition(".")[2].lower()

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.table_name}"

    @property
    def is_local(self) -> bool:
        """Whether the options themselves say that the files are on a local path."""
        return self.location is not None and is_local(self.location)

    def codec(self, kind: Format) -> str:
        """The compression, or the format's default."""
        return self.compression or COMPRESSIONS[kind][0]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        place = urlsplit(self.metastore)
        if place.scheme != "thrift" or not place.hostname or place.path.strip("/") or "," in self.metastore:
            raise PydanticCustomError(
                "metastore", "`metastore`: expected one address, thrift://host or thrift://host:9083"
            )
        if self.location is not None:
            check_location("location", self.location, "s3a")
        known = COMPRESSIONS[self.format or Format.PARQUET]
        if self.compression is not None and self.compression not in known:
            raise PydanticCustomError(
                "compression",
                "`compression`: {format} cannot be compressed by {codec}; expected one of {known}",
                {"format": self.format or Format.PARQUET, "codec": self.compression, "known": ", ".join(known)},
            )
        return self
