"""The options of the `hudi` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the table can tell is checked by
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
from sinkruntime.tables.changes import CONDITIONS, Condition

#: Hudi names its columns in Avro, so only such names can be written.
Name = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits, `_`, not a digit first", 255)]


class Write(StrEnum):
    """What rows do to the table."""

    INSERT = "insert"
    UPSERT = "upsert"


class Compression(StrEnum):
    """Of the Parquet files."""

    SNAPPY = "snappy"
    ZSTD = "zstd"
    GZIP = "gzip"
    NONE = "none"


class Options(OptionsModel):
    """Options of the `hudi` sink."""

    path: Text = Field(description="Directory of the table: a local path, or `s3://bucket/prefix` (also `s3a://`).")
    table: Name = Field(description="Name of the table; it is made where there is none.")
    record_key: UniqueItems[Name] = Field(
        default=(),
        description="Columns that together name a record: strings, whole numbers, dates, booleans. `insert` may do "
        "without: each row then gets a key of its own.",
    )
    ordering_field: Name | None = Field(
        default=None, description="`upsert`: of several rows with one key the one with the highest value here is kept."
    )
    partition_by: UniqueItems[Name] = Field(default=(), description="Columns whose values make the partition path.")
    write: Write = Field(default=Write.INSERT, description="`insert` adds every row; `upsert` keeps one for each key.")
    delete_when: Text | None = Field(
        default=None, description=f"`upsert`: rows for which this holds delete the record of their key: {CONDITIONS}."
    )
    hive_style: bool = Field(default=False, description="Partition paths are `month=1`, not `1`.")
    url_encode: bool = Field(
        default=True, description="Escape `/`, `:` and the like in partition paths; without, such values are refused."
    )
    buckets: int = Field(
        default=8,
        ge=1,
        le=4096,
        description="`upsert`: a partition has so many files, and each record its place in one of them by its key. "
        "Never to change for a table.",
    )
    target_file_size: Size = Field(
        default=Size.parse("120MiB"), description="`insert`: a file that has reached this size is closed."
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="Files that one task holds open; the least recently used is closed."
    )
    compression: Compression = Field(default=Compression.SNAPPY, description="Of the Parquet files.")
    storage: Storage = Field(default=Storage(), description="How an object store is reached.")

    @property
    def is_local(self) -> bool:
        return is_local(self.path)

    @property
    def is_upsert(self) -> bool:
        return self.write is Write.UPSERT

    @property
    def condition(self) -> Condition | None:
        return None if self.delete_when is None else Condition.parse(self.delete_when)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_location("path", self.path)
        check_file_url("path", self.path)
        self._check_write()
        return self

    def _check_write(self) -> None:
        if self.is_upsert:
            needed = {"recordKey": bool(self.record_key), "orderingField": self.ordering_field is not None}
            if missing := [name for name, given in needed.items() if not given]:
                raise PydanticCustomError("upsert", "`write: upsert` needs `{name}`", {"name": missing[0]})
            if self.ordering_field in self.record_key:
                raise PydanticCustomError("ordering", "`orderingField` is a part of the key, and orders nothing")
        for name, given in {"deleteWhen": self.delete_when, "orderingField": self.ordering_field}.items():
            if given is not None and not self.is_upsert:
                raise PydanticCustomError("insert", "`{name}` belongs to `write: upsert`", {"name": name})
        try:
            _ = self.condition
        except ValueError as error:
            raise PydanticCustomError("condition", "`deleteWhen`: {error}", {"error": str(error)}) from error
