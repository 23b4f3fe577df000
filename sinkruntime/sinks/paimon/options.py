"""The options of the `paimon` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the table can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.spec.base import Model, OptionsModel, Text, UniqueItems
from sinkruntime.spec.quantities import Size
from sinkruntime.storage.settings import Storage, check_file_url, check_location, is_local
from sinkruntime.tables.changes import CONDITIONS, Condition

BUCKETS_MAX = 10_000
_TABLE = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+")


class Write(StrEnum):
    """What rows do to the table."""

    APPEND = "append"
    UPSERT = "upsert"
    CHANGES = "changes"


class CatalogType(StrEnum):
    """Which catalog finds the table."""

    FILESYSTEM = "filesystem"


class Catalog(Model):
    """Where the tables are."""

    type: CatalogType = Field(
        default=CatalogType.FILESYSTEM,
        strict=False,
        description="Only `filesystem`: tables are directories of the warehouse. Hive, JDBC and REST catalogs are not "
        "supported.",
    )
    warehouse: Text = Field(description="A local directory, or `s3://bucket/prefix` (also `s3a://`).")


class Options(OptionsModel):
    """Options of the `paimon` sink."""

    catalog: Catalog = Field(description="Where the tables are.")
    table: Text = Field(description="`database.table`. No branches, no system tables.")
    write: Write = Field(
        default=Write.APPEND,
        description="`append` (a table without a primary key), `upsert` (the last row of each key counts), or "
        "`changes` (as `upsert`, and rows delete where `deleteWhen` holds).",
    )
    key: UniqueItems[Text] = Field(
        default=(), description="upsert, changes: the table's primary key; the partition's columns belong to it."
    )
    order_by: UniqueItems[Text] = Field(
        default=(),
        description="upsert, changes: of several rows with one key in a checkpoint the last by these columns counts; "
        "left out: the one that came last.",
    )
    delete_when: Text | None = Field(
        default=None, description=f"changes: which rows delete the row of their key: {CONDITIONS}."
    )
    bucket: int | None = Field(
        default=None,
        ge=1,
        le=BUCKETS_MAX,
        description="upsert, changes: into how many buckets a partition's keys are hashed, when the table is made "
        "here. Append tables have none.",
    )
    partition_by: UniqueItems[Text] = Field(default=(), description="The table's partition columns.")
    create_table: bool = Field(default=True, description="Make the database and the table where they are missing.")
    table_properties: dict[str, str] = Field(
        default={}, description="Paimon's own options of a table that is made here, such as `file.compression: zstd`."
    )
    target_file_size: Size = Field(
        default=Size.parse("128MiB"), description="A file that has reached this size is closed and another one begun."
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="append: files that one task holds open; the oldest is closed."
    )
    storage: Storage = Field(default=Storage(), description="How an object store is reached.")

    @property
    def is_local(self) -> bool:
        return is_local(self.catalog.warehouse)

    @property
    def table_path(self) -> str:
        """The directory of the table, as every filesystem catalog has it."""
        database, _, table = self.table.partition(".")
        return f"{self.catalog.warehouse.removeprefix('file://').rstrip('/')}/{database}.db/{table}"

    @property
    def condition(self) -> Condition | None:
        """`deleteWhen`, read."""
        return None if self.delete_when is None else Condition.parse(self.delete_when)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_location("catalog.warehouse", self.catalog.warehouse)
        check_file_url("catalog.warehouse", self.catalog.warehouse)
        if "$" in self.table:
            raise PydanticCustomError(
                "branch", "`table`: branches, system tables and `${...}` are not supported; expected `database.table`"
            )
        if not _TABLE.fullmatch(self.table):
            raise PydanticCustomError("table", "`table` is `database.table`, of letters, digits and `_`")
        if self.storage.upload_lifetime is not None:
            raise PydanticCustomError("lifetime", "`storage.uploadLifetime`: this sink leaves no uploads open")
        self._check_write()
        return self

    def _check_write(self) -> None:
        keyed = {"key": bool(self.key), "orderBy": bool(self.order_by), "bucket": self.bucket is not None}
        if self.write is Write.APPEND:
            for name, is_set in keyed.items():
                if is_set:
                    raise PydanticCustomError(
                        "keyed", "`{name}` belongs to `write: upsert` or `changes`", {"name": name}
                    )
        elif not self.key:
            raise PydanticCustomError("key", "`write: {write}` needs `key`", {"write": self.write.value})
        if (self.delete_when is not None) != (self.write is Write.CHANGES):
            raise PydanticCustomError("delete_when", "`deleteWhen` and `write: changes` belong together")
        if self.delete_when is not None:
            try:
                Condition.parse(self.delete_when)
            except ValueError as error:
                raise PydanticCustomError("condition", "`deleteWhen`: {error}", {"error": str(error)}) from error
        if self.write is not Write.APPEND and (missing := [c for c in self.partition_by if c not in self.key]):
            raise PydanticCustomError(
                "partition", "`key` must hold every column of `partitionBy`; `{name}` is missing", {"name": missing[0]}
            )
